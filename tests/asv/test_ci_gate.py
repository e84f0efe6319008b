""".ci/gate, with a stand-in for the gate that writes down what it was asked and ends as it is told."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / ".ci" / "gate"
pytestmark = [
    pytest.mark.skipif(not SCRIPT.exists(), reason="not a clone: there is no .ci"),
    pytest.mark.skipif(shutil.which("git") is None, reason="no git"),
]
GATE = "-m batchchol gate --backend cuda --profile ci --out gate"


class Clone:
    """A clone with two commits, and the script in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / ".ci").mkdir()
        shutil.copy(SCRIPT, folder / ".ci" / "gate")
        python = folder / "python"
        python.write_text('#!/bin/sh\necho "$@" >>asked\nexit "${STATUS:-0}"\n')
        python.chmod(0o755)
        self.git("init", "--quiet")
        for message in "one", "two":
            self.git("commit", "--quiet", "--allow-empty", "--message", message)

    def git(self, *words: str) -> str:
        command = ["git", "-c", "user.name=x", "-c", "user.email=x@example.org", *words]
        return subprocess.run(command, cwd=self.folder, check=True, capture_output=True, text=True).stdout.strip()

    def ask(self, *words: str, **variables: str) -> tuple[int, str]:
        """Run the script: its status, and the command line of the gate."""
        environment = {"PATH": os.environ["PATH"], "PYTHON": "./python", **variables}
        status = subprocess.run([".ci/gate", *words], cwd=self.folder, env=environment, check=False).returncode
        return status, (self.folder / "asked").read_text().strip()


@pytest.fixture
def clone(tmp_path: Path) -> Clone:
    return Clone(tmp_path)


def test_the_gate_itself_finds_the_commit_that_was_measured_last(clone: Clone) -> None:
    assert clone.ask() == (0, f"{GATE} --budget 10m")


def test_a_base_that_was_asked_for_is_compared_with(clone: Clone) -> None:
    assert clone.ask(BASE="HEAD~1", BUDGET="5m") == (0, f"{GATE} --budget 5m {clone.git('rev-parse', 'HEAD~1')} HEAD")


@pytest.mark.parametrize("base", ["", "0" * 40, "--help", "$(touch made)"])
def test_a_base_that_is_not_there_is_left_out(clone: Clone, base: str) -> None:
    assert clone.ask(BASE=base) == (0, f"{GATE} --budget 10m")
    assert not (clone.folder / "made").exists()


def test_a_quiet_night_learns_noise(clone: Clone) -> None:
    last = clone.folder / ".asv" / "gate" / "last-cuda"
    last.parent.mkdir(parents=True)
    last.write_text(clone.git("rev-parse", "HEAD") + "\n")
    assert clone.ask() == (0, "-m batchchol noise --backend cuda --profile ci --budget 10m")


def test_what_was_measured_before_makes_no_quiet_night(clone: Clone) -> None:
    last = clone.folder / ".asv" / "gate" / "last-cuda"
    last.parent.mkdir(parents=True)
    last.write_text(clone.git("rev-parse", "HEAD~1") + "\n")
    assert clone.ask() == (0, f"{GATE} --budget 10m")


@pytest.mark.parametrize("status", [0, 1, 2, 3])
def test_the_status_is_the_gates(clone: Clone, status: int) -> None:
    assert clone.ask(STATUS=str(status))[0] == status


def test_the_proof_needs_an_architecture_in_place_of_a_gpu(clone: Clone) -> None:
    assert clone.ask("proof", ARCH="sm_80") == (0, f"{GATE} --proof-only --arch sm_80 HEAD~1 HEAD")


@pytest.mark.parametrize(("status", "expected"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_that_kernels_changed_is_no_failure_of_the_proof(clone: Clone, status: int, expected: int) -> None:
    assert clone.ask("proof", STATUS=str(status))[0] == expected
