"""Answers requests, a line each: what a process of the gate's does. Run by path, hence standard library only:

    python lines.py MODULE:CLASS

reads a JSON object from each line of standard input, {"do": name, argument: value ...}, calls the method of that name
of an instance of the class, and answers on what was standard output, {"value": ...} or {"error": text}. The request
"start" makes the instance. What code prints goes to standard error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout, suppress
from typing import Any


def serve(requests: Iterable[str], start: Callable[..., Any], say: Callable[[str], None]) -> None:
    """Answer each request; an error of whatever a commit's code raises is an answer as well."""
    made: Any = None
    for line in requests:
        request = json.loads(line)
        do = request.pop("do")
        try:
            if do == "start":
                made, value = start(**request), None
            else:
                value = getattr(made, do)(**request)
            answer = {"value": value}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        say(json.dumps(answer))


def main(named: str) -> None:
    """Serve standard input until it ends."""
    requests = os.fdopen(os.dup(0), encoding="utf-8")
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    # Neither is for what a commit's code, or a process of its, reads or prints.
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    with redirect_stdout(sys.stderr), suppress(BrokenPipeError):
        module, _, name = named.partition(":")
        start = getattr(importlib.import_module(module), name)
        serve(requests, start, lambda text: print(text, file=answers, flush=True))


if __name__ == "__main__":
    main(sys.argv[1])
