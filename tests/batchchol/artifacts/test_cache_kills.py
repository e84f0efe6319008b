"""The long attacks on the cache, in short: `make fuzz` has more kills and more processes."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "fuzz" / "cache_kills.py"


def test_kills_while_compiling_and_cold_starts_leave_nothing(
    run_python: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    done = run_python(SCRIPT, "--kills", "2", "--processes", "2")
    assert done.returncode == 0, done.stderr
    assert "of 2 killed before they were done" in done.stdout
    assert "2 cold processes at once were right, and left one entry" in done.stdout
