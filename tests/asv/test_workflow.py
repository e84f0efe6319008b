"""The workflow of the GPU machine: nobody's code but what is in the repository may run there."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

WORKFLOW = Path(__file__).resolve().parents[2] / ".github" / "workflows" / "gpu.yml"
pytestmark = pytest.mark.skipif(not WORKFLOW.exists(), reason="not a clone: there is no .github")
SECTION = re.compile(r"^on:\n((?: .*\n|\n)*)", re.MULTILINE)


@pytest.fixture(scope="module")
def text() -> str:
    """The workflow without its comments."""
    return "".join(re.sub(r"(^|\s)#.*", "", line) + "\n" for line in WORKFLOW.read_text().splitlines())


def test_it_is_started_by_a_push_to_main_the_clock_or_hand_alone(text: str) -> None:
    section = SECTION.search(text)
    assert section is not None
    assert re.findall(r"^  (\w+):", section[1], re.MULTILINE) == ["push", "schedule", "workflow_dispatch"]
    assert "branches: [main]" in section[1]


def test_it_may_read_and_nothing_else(text: str) -> None:
    assert re.search(r"^permissions:\n  contents: read\n(?! )", text, re.MULTILINE)
    assert "secrets." not in text
    assert "persist-credentials: false" in text


def test_actions_are_pinned_to_commits(text: str) -> None:
    used = re.findall(r"uses: (\S+)", text)
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", action) for action in used)


def test_no_script_contains_what_somebody_typed(text: str) -> None:
    # ${{ }} is replaced before the shell reads the script: what comes from outside goes through the environment.
    scripts = re.findall(r"run: (.*(?:\n {10}.*)*)", text)
    assert scripts
    assert all("${{" not in script for script in scripts)


def job(text: str, name: str) -> str:
    found = re.search(rf"^  {name}:\n((?: {{4}}.*\n|\s*\n)*)", text, re.MULTILINE)
    assert found is not None
    return found[1]


def test_only_the_job_that_measures_runs_on_a_machine_of_our_own_one_at_a_time(text: str) -> None:
    assert re.findall(r"^  (\w+):$", text.split("\njobs:\n")[1], re.MULTILINE) == ["proof", "gpu"]
    assert "runs-on: ubuntu" in job(text, "proof")
    assert "self-hosted" not in job(text, "proof")
    assert "runs-on: [self-hosted, linux, gpu]" in job(text, "gpu")
    assert "repository.fork" in job(text, "gpu")
    assert "group: gpu\n      cancel-in-progress: false" in job(text, "gpu")


def test_both_jobs_ask_the_gate_and_keep_its_answer_whatever_it_is(text: str) -> None:
    for name, command in (("proof", ".ci/gate proof"), ("gpu", ".ci/gate")):
        assert f"run: {command}\n" in job(text, name)
        assert "if: always()" in job(text, name)
        assert re.search(r"path: .*\n? *gate/", job(text, name))
        assert "fetch-depth: 0" in job(text, name)
    assert "asv continuous" not in text


def test_a_night_compares_with_what_was_measured_last(text: str) -> None:
    # A schedule has no commit that it began from, and HEAD~1 in its place would leave out what came before.
    assert "BASE: ${{ inputs.base }}\n" in job(text, "gpu")
    assert "HEAD~1" not in text
    assert "schedule" in job(text, "proof").splitlines()[0]


def test_a_night_adds_to_the_history_whatever_the_gate_says(text: str) -> None:
    steps = job(text, "gpu").split("- name: ")[-2:]
    assert [step.splitlines()[0] for step in steps] == ["Add the night to the history", "Keep the history"]
    assert all("if: ${{ !cancelled() && github.event_name == 'schedule' }}\n" in step for step in steps)
    assert "OUT: history\n        run: .ci/nightly\n" in steps[0]
    assert "path: history/\n" in steps[1]


@pytest.mark.parametrize(("suite", "history", "status"), [(0, 0, 0), (1, 0, 1), (1, 1, 2)])
def test_a_night_measures_what_is_due_and_keeps_the_rest(
    tmp_path: Path, suite: int, history: int, status: int
) -> None:
    python, said = tmp_path / "python", tmp_path / "said"
    python.write_text(
        f'#!/bin/sh\necho "$*" >> "{said}"\ncase $3 in\nsuite) exit {suite} ;;\nhistory) exit {history} ;;\nesac\n'
    )
    python.chmod(0o755)
    night = WORKFLOW.parents[2] / ".ci" / "nightly"
    given = {**os.environ, "PYTHON": str(python), "BACKEND": "cpu", "DUE": "3", "KEEP": "30", "OUT": str(tmp_path)}
    assert subprocess.run([night], env=given, check=False).returncode == status
    called = [
        "-m batchchol suite --backend cpu --profile ci --due 3",
        "-m batchchol history --thin 30",
        f"-m batchchol publish --out {tmp_path}",
    ]
    assert said.read_text().splitlines() == called[: 2 if history else 3]
