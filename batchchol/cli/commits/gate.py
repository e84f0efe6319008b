"""`python -m batchchol gate`: is a commit slower than another?"""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import replace
from pathlib import Path

from batchchol.asv_plugin.gate import answer, history, journal, sides
from batchchol.asv_plugin.gate.outcome import Answer
from batchchol.asv_plugin.gate.run import run as run_gate
from batchchol.asv_plugin.gate.settings import Settings
from batchchol.asv_plugin.suite import find_subject
from batchchol.backends import get_backend
from batchchol.batches.sizes import duration
from batchchol.cli import interrupts
from batchchol.cli.options import Option, declare, option
from batchchol.errors import BatchcholError
from batchchol.files import make_folder, replace_file
from batchchol.measure import machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what is compared, how, and where the answer goes."""
    declare(
        parser,
        option("base", nargs="?", metavar="BASE", help="a commit (default: the last that passed here, else HEAD~1)"),
        option("head", nargs="?", default="HEAD", metavar="HEAD", help="the commit to judge (default: HEAD)"),
        *measured_options(),
        option("--measure-all", action="store_true", help="also measure what is proven to be equal"),
        option("--proof-only", action="store_true", help="compile and compare GPU kernels; measures nothing"),
        option("--arch", default="sm_90", help="for --proof-only: the GPU's architecture (default: %(default)s)"),
        option("--all", action="store_true", help="show every case that was measured"),
        option("--out", type=Path, help="folder of gate.json, gate.md and gate.xml (default: .asv/gate/answer)"),
    )


def measured_options() -> list[Option]:
    """The options that `noise` has as well."""
    return [
        option("--profile", default="ci", choices=("quick", "ci", "full"), help="which cases (default: %(default)s)"),
        option("--backend", default="cpu", choices=("cpu", "cuda"), help="where (default: %(default)s)"),
        option("--bench", type=pattern, default="", metavar="REGEX", help="only cases whose names it matches"),
        option("--budget", type=duration, default=600.0, metavar="TIME", help="for measuring, as 10m (default: 10m)"),
    ]


def run(arguments: argparse.Namespace) -> int:
    """Compare two commits; the exit status is the answer's: see `Answer.status`."""
    settings = settings_of(arguments, arguments.base, arguments.head)
    settings = replace(settings, prove=not arguments.measure_all)
    if arguments.proof_only:
        settings = replace(settings, backend="cuda", arch=arguments.arch)
    out = arguments.out or settings.store / "answer"
    make_folder(out)
    said, path = described(settings)
    with interrupts.advice("what was measured is kept: run the same command again to go on"):
        made, controls = _made(settings, said, path)
    print(answer.table(made, every=arguments.all))
    answer.write(made, out)
    if controls:
        history.add(path, controls)
    if made.status == 0 and not settings.arch and not settings.bench:
        replace_file(settings.store / f"last-{settings.backend}", f"{made.head}\n".encode())
    if not made.failure:
        journal.forget(settings)
    return made.status


def settings_of(arguments: argparse.Namespace, base: str | None, head: str) -> Settings:
    """What is compared, of the clone in this folder."""
    folder = find_subject(Path.cwd()).folder
    store = folder / ".asv" / "gate"
    if base is None:
        last = store / f"last-{arguments.backend}"
        base = last.read_text().strip() if last.exists() else f"{head}~1"
    commits = [sides.resolve(folder, commit) for commit in (base, head)]
    chosen = {"bench": arguments.bench, "budget": arguments.budget}
    return Settings(folder, commits[0], commits[1], arguments.profile, arguments.backend, **chosen)


def described(settings: Settings) -> tuple[dict[str, str], Path]:
    """What asv stores of the machine, and the file of its noise."""
    if settings.arch:
        return {"architecture": settings.arch}, settings.store / f"noise-{settings.arch}.jsonl"
    found = machine.describe(get_backend(settings.backend).device())
    return found, settings.store / f"noise-{found['machine']}.jsonl"


def pattern(text: str) -> str:
    """A regular expression."""
    try:
        re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a regular expression: {error}") from error
    return text


def _made(settings: Settings, said: dict[str, str], path: Path) -> tuple[Answer, list[history.Control]]:
    """The answer; what keeps a commit from being measured at all is one as well."""
    noise = history.read_history(path)
    for damaged in noise.damaged:
        say(damaged)
    try:
        return run_gate(settings, said, noise, say)
    except BatchcholError as error:
        failed = Answer(
            settings.base, settings.head, said, settings.profile, (), 0.0, settings.budget, failure=str(error)
        )
        return failed, []


def say(text: str) -> None:
    """Tell how far it is, beside the answer."""
    print(text, file=sys.stderr, flush=True)
