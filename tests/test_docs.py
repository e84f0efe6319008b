"""The pages of docs/: their examples run, their links lead somewhere, and the site has every page and public name."""

from __future__ import annotations

import dataclasses
import doctest
import re
import shlex
from collections import Counter
from functools import cache
from itertools import takewhile
from pathlib import Path

import numpy as np
import pytest

import batchchol
from batchchol import cli
from batchchol.tune.space import load_space

from .pages import DOCS, ROOT, blocks, run, text

PAGES = sorted(DOCS.glob("*.md"))
OTHERS = [ROOT / "README.md", ROOT / "datasets" / "README.md"]
# Pages with blocks of Python that print nothing, and the tests that run them, as README's beside docs/api.md's.
RUN_BY = {
    "api": "batchchol/test_readme.py",
    "benchmarks": "test_docs.py",
    "defaults": "batchchol/test_pages.py",
    "gate": "batchchol/asv_plugin/test_gate_answer.py",
    "gpu-ci": "test_docs.py",
    "interop": "batchchol/interop/test_torch.py",
    "launching": "batchchol/test_pages.py",
    "small-batches": "batchchol/test_pages.py",
}
TOML = [each for page in PAGES for each in re.findall(r"^```toml\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", [page for page in PAGES if ">>> " in text(page)], ids=lambda page: page.stem)
def test_examples_print_what_the_page_says(page: Path) -> None:
    without_fences = re.sub(r"^```.*$", "", text(page), flags=re.MULTILINE)
    examples = doctest.DocTestParser().get_doctest(without_fences, {}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL)
    told: list[str] = []
    runner.run(examples, out=told.append)
    assert runner.failures == 0, "".join(told)
    assert runner.tries > 0


def documented() -> list[str]:
    """The public names whose docstrings have examples."""
    return [name for name in batchchol.__all__ if ">>> " in (getattr(batchchol, name).__doc__ or "")]


@pytest.mark.parametrize("name", documented())
def test_examples_of_docstrings_run(name: str) -> None:
    batch = batchchol.Batch.from_dense(np.full((3, 16, 16), np.eye(16, dtype=np.float32)))
    known = {**vars(batchchol), "batchchol": batchchol, "np": np, "dataclasses": dataclasses, "batch": batch}
    (found,) = doctest.DocTestFinder(recurse=False).find(getattr(batchchol, name), name, globs=known)
    assert doctest.DocTestRunner().run(found) == (0, len(found.examples))


def test_examples_of_docstrings_are_those_of_public_names() -> None:
    """An example elsewhere would not be run: move it to a public name."""
    rooms = ("batchchol", "kernelgen", "benchmarks")
    sources = [path for room in rooms for path in sorted((ROOT / room).rglob("*.py"))]
    written = sum(len(re.findall(r"^ *>>> ", text(path), re.MULTILINE)) for path in sources)
    run = sum(len(re.findall(r"^ *>>> ", getattr(batchchol, name).__doc__, re.MULTILINE)) for name in documented())
    assert written == run > 10


def test_every_block_of_python_is_run() -> None:
    """A page with a new block goes into the list, and into a test that runs it."""
    assert {page.stem for page in PAGES if blocks(page.stem)} == {*RUN_BY}
    for page, test in RUN_BY.items():
        assert f'"{page}' in text(ROOT / "tests" / test), f"{test} does not run {page}"
    sections = [blocks("interop", name) for name in ("PyTorch", "JAX", "Arrays on a GPU")]
    assert sum(map(len, sections)) == len(blocks("interop"))


@pytest.mark.parametrize("block", range(len(TOML)))
def test_spaces_of_pages_are_read(block: int, tmp_path: Path) -> None:
    (tmp_path / "tune_h200.csv").symlink_to(ROOT / "datasets" / "sweeps" / "tune_h200.csv")
    (tmp_path / "mine.toml").write_text(TOML[block])
    assert load_space(tmp_path / "mine.toml").tables


@pytest.mark.parametrize("page", ["benchmarks", "gpu-ci"])
def test_results_of_the_suite_are_read_as_a_page_says(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    results = tmp_path / ".asv" / "results"
    results.mkdir(parents=True)
    (results / "benchmarks.json").symlink_to(ROOT / "datasets" / "asv_h200" / "benchmarks.json")
    (results / "gpu-ci").symlink_to(ROOT / "datasets" / "asv_h200" / "h200")
    monkeypatch.chdir(tmp_path)
    run(page, {})
    assert "32" in capsys.readouterr().out


def commands() -> list[list[str]]:
    """The words of every command of this project in a block of a page, but for those that leave something out."""
    joined = "\n".join(text(page) for page in [*PAGES, *OTHERS]).replace("\\\n", " ")
    lines = set(re.findall(r"^    (?:\S+/)?python -m batchchol (.+)$", joined, re.MULTILINE))
    words = [shlex.split(line, comments=True) for line in sorted(lines) if "..." not in line]
    return [list(takewhile(lambda word: word not in ("<", ">", "|", "&&", "||"), each)) for each in words]


def test_commands_of_pages_are_understood(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(commands()) > 40
    refused = []
    for words in commands():
        try:
            cli._parser(words).parse_args(words)
        except SystemExit:
            refused.append(capsys.readouterr().err)
    assert refused == []


@cache
def anchors(page: Path) -> frozenset[str]:
    """Of a page's headings, as GitHub and MyST make them."""
    headings = re.findall(r"^#{1,6} +(.+)$", FENCE.sub("", text(page)), re.MULTILINE)
    plain = [re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading) for heading in headings]
    slugs = [re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in plain]
    seen: Counter[str] = Counter()
    numbered = []
    for slug in slugs:
        numbered.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return frozenset(numbered)


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.stem)
def test_links_lead_somewhere(page: Path) -> None:
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text(page))):
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if re.match(r"https?:", target):
            continue
        if not there.exists() or (anchor and anchor not in anchors(there)):
            broken.append(target)
    assert broken == []


@pytest.mark.parametrize("page", [*PAGES, *OTHERS], ids=lambda page: page.stem)
def test_rows_of_tables_have_a_cell_for_each_head(page: Path) -> None:
    """A cell too many is not shown."""
    code = re.compile(r"`[^`]*`")
    for table in re.findall(r"(?:^\|.*\n)+", text(page), re.MULTILINE):
        cells = {len(re.findall(r"(?<!\\)\|", code.sub("", line))): line for line in table.splitlines()}
        assert len(cells) == 1, [*cells.values()]


def test_statements_are_judged_as_in_the_report() -> None:
    judged = re.findall(r'class="verdict ([\w-]+)"', text(DOCS / "report_h200" / "report.html"))
    # What follows those of the study's text says no more than what is shown.
    statements = judged[: judged.index("shown")]
    assert re.findall(r"\| \*\*(\w+)\*\*", text(DOCS / "report.md")) == statements
    assert Counter(statements) == {"agrees": 5, "partly": 7, "differs": 2}, "docs/report.md counts them in words"


def test_the_site_has_every_page_once() -> None:
    listed = [
        name
        for page in PAGES
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```$", text(page), re.MULTILINE | re.DOTALL)
        for name in block.split("\n\n")[-1].split()
    ]
    assert sorted([*listed, "index"]) == sorted(page.stem for page in PAGES)
    assert not {"search", "genindex"} & {*listed}, "Sphinx writes pages of its own by these names"


def test_the_reference_has_every_public_name() -> None:
    """A name that is missing goes into the list of docs/names.md that it belongs to."""
    assert sorted(re.findall(r"^   (\w+)$", text(DOCS / "names.md"), re.MULTILINE)) == sorted(batchchol.__all__)
