"""Signals in the middle of calls: nothing is written to after a call has ended, and the next call is right."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "fuzz" / "interrupts.py"


@pytest.mark.parametrize("threads", [1, 64])
def test_interrupted_calls_leave_no_thread_behind(
    run_python: Callable[..., subprocess.CompletedProcess[str]], threads: int
) -> None:
    small = ["--interrupts", "4", "--n", "48", "--batch", "2000"]
    done = run_python(SCRIPT, *small, "--threads", str(threads))
    assert done.returncode == 0, done.stderr
    assert f"4 interrupts under {threads} threads: no byte changed" in done.stdout
