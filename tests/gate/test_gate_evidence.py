"""docs/gate.md shows the tables of the data that were measured."""

from __future__ import annotations

from pathlib import Path

import pytest

from batchchol.asv_plugin.gate.answer import to_json
from batchchol.asv_plugin.gate.outcome import Answer, Outcome, Verdict

from .evidence import DATA, commits, commits_table, tables

PAGE = DATA.parents[1] / "docs" / "gate.md"
# Tables that only the command prints.
PRINTED_ALONE = {"gate_commits_h200", "cases of gate_planted_h200", "gate_planted_epyc"}


@pytest.mark.skipif(not PAGE.is_file(), reason="docs/ and datasets/ are not part of an installed package")
def test_the_tables_are_those_of_the_data() -> None:
    made = tables()
    assert set(made) >= {"gate_noise", "gate_planted_h200", *PRINTED_ALONE}
    page = Path(PAGE).read_text(encoding="utf-8")
    for name, lines in ((name, lines) for name, lines in made.items() if name not in PRINTED_ALONE):
        assert "\n".join(lines) in page, f"{name}: print the tables with python -m tests.gate.evidence"


def test_a_commit_that_could_not_be_measured_is_shown(tmp_path: Path) -> None:
    slower = Outcome("Tiles(n=8)", "kernel", Verdict.SLOWER, ratio=1.05, low=1.04, high=1.06, log_ratios=(0.05,) * 8)
    outcomes = (slower, Outcome("Tiles(n=9)", "kernel", Verdict.UNCHANGED), Outcome("C", "kernel", Verdict.SKIPPED))
    answers = (
        Answer("b" * 40, "a" * 40, {}, "ci", outcomes, 12.3, 40.0),
        Answer("c" * 40, "b" * 40, {}, "ci", (), 0.4, 40.0, failure="c cannot be imported"),
    )
    paths = [tmp_path / f"{number}.json" for number in range(len(answers))]
    for path, answer in zip(paths, answers, strict=True):
        path.write_text(to_json(answer), encoding="utf-8")
    commits(paths, tmp_path / "made.csv")
    assert commits_table(tmp_path / "made.csv")[2:] == [
        "| aaaaaaaa | 1 | 0 | 0 | 1 | +5.0% | 12 |",
        "| bbbbbbbb | failed |  |  |  |  | 0 |",
    ]
