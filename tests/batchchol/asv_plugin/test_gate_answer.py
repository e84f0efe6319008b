"""What the gate says, in each of its formats: from answers made by hand, each verdict once."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchchol.asv_plugin.gate.answer import from_json, junit, markdown, table, to_json, write
from batchchol.asv_plugin.gate.outcome import Answer, Outcome, Resolution, Verdict
from batchchol.errors import DataFileError

from ...pages import run

BASE, HEAD = "a" * 40, "b" * 40
HOSTILE = "cc1: error: `x` | <y> \x1b[31m\x00\ud800 & *z*\nand a second line"
OUTCOMES = (
    Outcome("tiles.Tiles.device_factor(8)", "kernel", Verdict.UNCHANGED, "the same machine code"),
    Outcome("t.T.same(1)", "kernel", Verdict.SAME, "", 1.001, 0.9994, 1.003, 0.01, 1e-6, 1.001e-6, (0.001, 0.002)),
    Outcome("t.T.faster(1)", "kernel", Verdict.FASTER, "", 0.9, 0.88, 0.91, 0.01, 1.2345e-3, 1.1e-3, (-0.1,) * 8),
    Outcome("t.T.slower(1)", "kernel", Verdict.SLOWER, "", 1.048, 1.041, 1.055, 0.01, 2e-9, 2.096e-9, (0.04,) * 8),
    Outcome("c.C.call(1)", "call", Verdict.UNDECIDED, "the budget ended", 1.02, 0.98, 1.06, 0.03, 1.5, 1.53, (0.02,)),
    Outcome("t.T.new(1)", "kernel", Verdict.NEW),
    Outcome("t.T.gone(1)", "kernel", Verdict.GONE),
    Outcome("t.T.skipped(1)", "kernel", Verdict.SKIPPED, "no GPU"),
    Outcome("t.T.failed(1|2)", "kernel", Verdict.FAILED, HOSTILE),
    Outcome(
        "c.C.track_spills(9)",
        "track",
        Verdict.SLOWER,
        "",
        2.5,
        base_seconds=8,
        head_seconds=20,
        about={"unit": "bytes"},
    ),
)
ANSWER = Answer(BASE, HEAD, {"cpu": "x", "cores": 2}, "ci", OUTCOMES, 42.3, 600.0, Resolution(1, 212, 0.008, 0.025))
CALM = replace(ANSWER, outcomes=OUTCOMES[:2])


def with_verdicts(*verdicts: Verdict) -> Answer:
    return replace(ANSWER, outcomes=tuple(each for each in OUTCOMES if each.verdict in verdicts))


def rows(text: str) -> list[str]:
    """The cases that a table for the terminal shows."""
    return re.findall(r"^[\w.]+\([^ ]*\)", text, re.MULTILINE)


@pytest.mark.parametrize(
    ("answer", "sentence", "status"),
    [
        (CALM, "nothing is slower: 1 case unchanged by proof, 1 measured", 0),
        (ANSWER, "1 case failed, 2 are slower, 1 is undecided: 1 case unchanged by proof, 5 measured", 2),
        (with_verdicts(Verdict.SLOWER), "2 cases are slower: 0 cases unchanged by proof, 2 measured", 1),
        (with_verdicts(Verdict.UNDECIDED), "1 case is undecided: 0 cases unchanged by proof, 1 measured", 3),
        (with_verdicts(Verdict.SKIPPED), "nothing was compared: 0 cases unchanged by proof, 0 measured", 0),
        (replace(CALM, failure="b\n cannot be imported"), "the gate failed: b cannot be imported", 2),
    ],
)
def test_the_verdict_is_the_first_line_and_the_exit_status(answer: Answer, sentence: str, status: int) -> None:
    assert table(answer, width=0).splitlines()[0] == sentence
    assert sentence in markdown(answer)
    assert json.loads(to_json(answer))["verdict"] == sentence
    assert json.loads(to_json(answer))["status"] == answer.status == status


def test_the_terminal_shows_what_changed_the_most_urgent_first() -> None:
    found = table(ANSWER, width=0)
    cases = ["t.T.failed(1|2)", "c.C.track_spills(9)", "t.T.slower(1)", "c.C.call(1)", "t.T.faster(1)"]
    assert rows(found) == cases
    assert rows(table(ANSWER, every=True, width=0))[:6] == [*cases, "t.T.same(1)"]
    assert len(rows(table(ANSWER, every=True, width=0))) == len(OUTCOMES)
    assert not rows(table(CALM, width=0))


@pytest.mark.parametrize(
    "cells",
    [
        ("t.T.slower(1)", "2.000 ns", "2.096 ns", "+4.8% (+4.1 … +5.5%)", "8", "SLOWER"),
        ("t.T.faster(1)", "1.234 ms", "1.100 ms", "-10.0% (-12.0 … -9.0%)", "8", "FASTER"),
        ("c.C.call(1)", "1.500 s", "1.530 s", "+2.0% (-2.0 … +6.0%)", "1", "UNDECIDED"),
        ("c.C.track_spills(9)", "8 bytes", "20 bytes", "+150.0%", "SLOWER"),
        ("t.T.same(1)", "1.000 µs", "1.001 µs", "+0.1% (-0.1 … +0.3%)", "2", "SAME"),
    ],
)
def test_numbers_have_units(cells: tuple[str, ...]) -> None:
    line = next(line for line in table(ANSWER, every=True, width=0).splitlines() if line.startswith(cells[0]))
    assert re.split(r"  +", line) == [*cells]


def test_below_the_cases_is_how_far_to_trust_them() -> None:
    assert table(CALM, width=0).splitlines()[1:] == [
        "",
        "1 same, 1 unchanged",
        "smallest slowdown that this machine shows: kernels 0.8%, calls 2.5%",
        "false alarms: 1 of 212 controls, 0.5% (0.1 … 2.6%, Wilson, 95%)",
        "took 42 s; 600 s were allowed for measuring",
    ]
    assert "skipped: 1 × no GPU" in table(ANSWER, width=0)


def test_what_is_not_known_is_not_mentioned() -> None:
    found = table(replace(CALM, resolution=Resolution()), every=True, width=0)
    assert "false alarms" not in found
    assert "smallest" not in found
    assert "None" not in found
    assert "n/a" not in found


@pytest.mark.parametrize("width", [60, 72, 100])
def test_a_terminal_is_not_overrun(width: int) -> None:
    found = table(ANSWER, every=True, width=width)
    shown = found.split("\n\n")[1]
    assert max(map(len, shown.splitlines())) <= max(width, 72)
    assert "+4.8% (+4.1 … +5.5%)" in shown
    assert "the budget ended" in shown


def test_nothing_from_a_compiler_reaches_the_terminal_as_a_command() -> None:
    assert table(ANSWER, width=0).replace("\n", "").isprintable()
    assert "and a second line" in table(ANSWER, width=0)


def test_markdown_tables_keep_their_columns() -> None:
    lines = [line for line in markdown(ANSWER).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in lines} == {3, 8}
    assert r"\`x\` \| \<y\>" in markdown(ANSWER)
    assert "\x1b" not in markdown(ANSWER)


def test_markdown_folds_long_lists_and_stays_below_githubs_limit() -> None:
    many = tuple(replace(each, key=f"{each.key}{i}", why="y|" * 400) for each in OUTCOMES for i in range(1000))
    found = markdown(replace(ANSWER, outcomes=many))
    assert len(found.encode()) < 2**20
    assert "4,980 more</summary>" in found
    assert "800 more are in gate.json" in found
    assert found.count("<details>") == found.count("</details>") == 6


# What Jenkins, GitLab and GitHub's actions agree upon: attributes, required ones first, and children.
SCHEMA: dict[str, tuple[set[str], set[str], set[str]]] = {
    "testsuites": ({"tests", "failures", "errors", "time"}, {"name"}, {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time"},
        set(),
        {"properties", "testcase", "system-out"},
    ),
    "properties": (set(), set(), {"property"}),
    "property": ({"name", "value"}, set(), set()),
    "testcase": ({"name", "classname"}, {"time"}, {"failure", "error", "skipped", "system-out"}),
    "failure": ({"type", "message"}, set(), set()),
    "error": ({"type", "message"}, set(), set()),
    "skipped": ({"message"}, set(), set()),
    "system-out": (set(), set(), set()),
}


def check_schema(element: ElementTree.Element) -> None:
    required, allowed, children = SCHEMA[element.tag]
    assert required <= set(element.keys()) <= required | allowed, element.tag
    assert {child.tag for child in element} <= children
    for child in element:
        check_schema(child)


@pytest.mark.parametrize("answer", [ANSWER, CALM, replace(CALM, failure=HOSTILE), replace(CALM, outcomes=())])
def test_junit_is_what_ci_systems_read(answer: Answer) -> None:
    root = ElementTree.fromstring(junit(answer).encode())
    check_schema(root)
    cases = root.findall(".//testcase")
    for suite in (root, root[0]):
        assert int(suite.attrib["tests"]) == len(cases) == len(answer.outcomes) + bool(answer.failure)
        assert int(suite.attrib["failures"]) == len(root.findall(".//failure"))
        assert int(suite.attrib["errors"]) == len(root.findall(".//error"))
    assert int(root[0].attrib["skipped"]) == len(root.findall(".//skipped"))
    assert float(root[0].attrib["time"]) == answer.seconds


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda each: each.verdict.value)
def test_junit_is_red_where_the_exit_status_is_not_0(outcome: Outcome) -> None:
    answer = replace(ANSWER, outcomes=(outcome,))
    case = ElementTree.fromstring(junit(answer)).find(".//testcase")
    assert case is not None
    element = {2: "error", 1: "failure", 3: "failure", 0: ""}[answer.status]
    if element:
        assert [(child.tag, child.get("type")) for child in case] == [(element, outcome.verdict.value)]
    elif outcome.verdict in (Verdict.NEW, Verdict.GONE, Verdict.SKIPPED):
        assert [child.tag for child in case] == ["skipped"]
    else:
        assert [child.tag for child in case] == ["system-out"]


def test_json_has_everything() -> None:
    assert from_json(to_json(ANSWER)) == ANSWER
    assert json.loads(to_json(ANSWER))["schema"] == 1
    assert from_json(to_json(replace(ANSWER, failure=HOSTILE))).failure == HOSTILE


finite = st.floats(allow_nan=False)
number = st.none() | finite
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
abouts: st.SearchStrategy[dict[str, Any]] = st.dictionaries(st.text(), json_values, max_size=3)
outcomes = st.builds(
    Outcome,
    key=st.text(),
    kind=st.sampled_from(["kernel", "call", "track"]),
    verdict=st.sampled_from(Verdict),
    why=st.text(),
    ratio=number,
    low=number,
    high=number,
    threshold=finite,
    base_seconds=number,
    head_seconds=number,
    log_ratios=st.lists(finite, max_size=4).map(tuple),
    about=abouts,
)
resolutions = st.integers(0, 10**6).flatmap(
    lambda controls: st.builds(Resolution, st.integers(0, controls), st.just(controls), number, number)
)
whole_numbers = st.floats(0, 1e9)
answers = st.builds(
    Answer,
    base=st.text(),
    head=st.text(),
    machine=abouts,
    profile=st.text(),
    outcomes=st.lists(outcomes, max_size=5).map(tuple),
    seconds=whole_numbers,
    budget=whole_numbers,
    resolution=resolutions,
    failure=st.text(),
)


@settings(max_examples=50)
@given(answers)
def test_json_comes_back_as_it_was(answer: Answer) -> None:
    text = to_json(answer)
    assert from_json(text) == answer
    json.loads(text, parse_constant=pytest.fail)


def test_the_page_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / "gate.json").write_text(to_json(ANSWER))
    monkeypatch.chdir(tmp_path)
    run("gate", {})
    assert capsys.readouterr().out.startswith(f"{ANSWER.status} [('t.T.same(1)', 1.001), ")


@settings(max_examples=50)
@given(answers, st.integers(0, 200), st.booleans())
def test_whatever_the_answer_it_can_be_shown(answer: Answer, width: int, every: bool) -> None:
    for text in (table(answer, every=every, width=width), markdown(answer)):
        assert text.replace("\n", "").isprintable()
        text.encode()
    check_schema(ElementTree.fromstring(junit(answer).encode()))


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"schema": 2}', to_json(CALM).replace('"same"', '"odd"'), to_json(CALM).replace("ratio", "x")],
)
def test_what_is_no_answer_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        from_json(text)


@pytest.fixture
def no_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.mark.usefixtures("no_summary")
def test_files(tmp_path: Path) -> None:
    files = write(ANSWER, tmp_path / "new" / "folder")
    assert [path.name for path in files] == ["gate.json", "gate.md", "gate.xml"]
    assert [path.read_text(encoding="utf-8") for path in files] == [to_json(ANSWER), markdown(ANSWER), junit(ANSWER)]
    assert sorted(files) == sorted(files[0].parent.iterdir())


def test_the_summary_of_a_step_on_github_is_added_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = tmp_path / "summary"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    write(CALM, tmp_path)
    assert summary.read_text(encoding="utf-8") == "before\n" + markdown(CALM)


@pytest.mark.usefixtures("no_summary")
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    tmp_path.joinpath("file").touch()
    with pytest.raises(DataFileError, match="file"):
        write(ANSWER, tmp_path / "file")
