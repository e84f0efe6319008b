"""Interop where the other library is missing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Run = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = """
import sys
import batchchol.interop
for name in ("torch", "jax"):
    sys.modules[name] = None
    try:
        __import__("batchchol.interop." + name)
    except ImportError as error:
        print(error)
"""


def test_a_missing_library_is_named(run_python: Run) -> None:
    done = run_python("-c", SCRIPT)
    for name, said in zip(("torch", "jax"), done.stdout.splitlines(), strict=True):
        assert said.startswith(f"batchchol.interop.{name} needs {name}, which cannot be imported"), done.stderr
        assert f"[{name}]" in said
