"""Interop where the other library is missing."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

Run = Callable[..., subprocess.CompletedProcess[str]]

SCRIPT = """
import sys
sys.modules["torch"] = None
import batchchol.interop
try:
    import batchchol.interop.torch
except ImportError as error:
    print(error)
"""


def test_a_missing_library_is_named(run_python: Run) -> None:
    done = run_python("-c", SCRIPT)
    assert done.stdout.startswith("batchchol.interop.torch needs torch, which cannot be imported"), done.stderr
    assert "[torch]" in done.stdout
