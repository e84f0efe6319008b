"""The workflow of the GPU machine: nobody's code but what is in the repository may run there."""

from __future__ import annotations

import re
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
