"""What pages publish is what the committed data say, and a claim can be asked of any other rows."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import matplotlib as mpl
import pytest

from batchchol.errors import BatchcholError, DataFileError
from batchchol.report.claims.__main__ import main
from batchchol.report.claims.listed import LIST, Listed, load
from batchchol.report.claims.pages import linked, rendered
from batchchol.report.claims.plots import drawn
from batchchol.report.claims.quantities import THREE_DIGITS, written
from batchchol.report.claims.timed import read_timed

ROOT = Path(__file__).parents[3]
pytestmark = pytest.mark.skipif(not (ROOT / LIST).exists(), reason="docs/claims.toml belongs to the clone")


@pytest.fixture(scope="module")
def listed() -> Listed:
    return load(ROOT)


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Path]:
    """The list but for its plots, the data and a page of a clone."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "datasets").symlink_to(ROOT / "datasets")
    text, _, _ = (ROOT / LIST).read_text().partition("[plots.")
    (tmp_path / LIST).write_text(text)
    return tmp_path


def test_pages_say_what_the_data_say(listed: Listed) -> None:
    stale = [page.name for page in listed.pages if rendered(page.read_text(), listed) != page.read_text()]
    assert stale == [], "run `python -m batchchol.report.claims`"


def test_launches_are_subtracted_from_both(listed: Listed) -> None:
    claim = listed.find("posv-few-above/n32/b1024/above")
    side = claim.group.side(claim.group.rows, claim.point)
    own, peer = (min(row.seconds - row.floor_seconds for row in rows) for rows in (side.own, side.peers))
    assert claim.text(".3f") == f"{peer / own:.3f}"


def test_every_claim_is_of_a_number_on_a_page(listed: Listed) -> None:
    """What no page shows any more is no claim: drop its quantity or its group."""
    texts = [page.read_text() for page in sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])]
    shown = {name for text in texts for name in re.findall(r"<!--=\s*(\S+?)(?:\s+\S+?)?\s*-->", text)}
    for name in {name for text in texts for name in re.findall(r"<!-- claims: (\S+) -->", text)} & {*listed.tables}:
        table = listed.tables[name]
        cells = [(column, line) for column in table.columns for line in table.lines if line["n"] not in column.empty]
        shown |= {claim.format(**line) for column, line in cells for claim in column.claims}
    patterns = [pattern for text in texts for pattern in re.findall(r"--only '([^']+)'", text)]
    shown |= {name for name in listed.claims for pattern in patterns if fnmatchcase(name, pattern)}
    kinds = {(claim.group.name, claim.quantity) for name, claim in listed.claims.items() if name in shown}
    assert {(claim.group.name, claim.quantity) for claim in listed.claims.values()} - kinds == set()
    assert {lookup.name for lookup in listed.lookups} - {name.partition("/")[0] for name in shown} == set()


def test_the_site_lists_every_claim(listed: Listed) -> None:
    page = rendered((ROOT / "docs" / "claims.md").read_text(), listed)
    assert all(f"## {group.name}\n" in page for group in [*listed.groups, *listed.lookups])


def test_numbers_of_the_site_lead_to_their_claims(listed: Listed) -> None:
    assert rendered("by <!--=h200/copy ,.0f-->1<!--/-->", listed, linked).endswith(
        '[4,235](claims.md#h200 "h200/copy")<!--/-->'
    )
    text = rendered("<!-- claims: epyc -->\n<!-- /claims -->", listed, linked)
    assert '| [21.6](claims.md#epyc "epyc/n8/b16384/ns") |' in text


def test_every_group_is_published_and_measured_here(listed: Listed) -> None:
    assert len(listed.claims) > 100
    for claim in listed.claims.values():
        assert claim.text()
        known = re.fullmatch(r"[0-9a-f]{7}|[0-9a-f]{12}(-dirty)?(, [0-9a-f]{12}(-dirty)?)*", claim.commits)
        assert known or (claim.commits == "not recorded" and claim.group.name.startswith(("xeon", "potrs"))), (
            claim.name
        )


def test_claims_are_those_of_a_reader_of_the_file(listed: Listed) -> None:
    with open(ROOT / "datasets" / "comparisons" / "compare_h200.csv", newline="") as stream:
        here = [
            row
            for row in csv.DictReader(stream)
            if (row["n"], row["batch"], row["protocol"]) == ("32", "16384", "queued")
        ]
    peers = [float(row["seconds"]) for row in here if row["contender"] in ("cusolver", "cusolverdx", "torch")]
    own = [row for row in here if row["math"] == "fast" and row["layout"].startswith("chunked")]
    best = min(own, key=lambda row: float(row["seconds"]))
    case = "h200/n32/b16384"
    assert listed.find(f"{case}/speedup").text(".3f") == f"{min(peers) / float(best['seconds']):.3f}"
    assert listed.find(f"{case}/gflops").text() == f"{float(best['gflops']):,.0f}"
    assert listed.find(f"{case}/roofline").text() == f"{float(best['roofline_fraction']):.0%}"
    assert f"{listed.find(f'{case}/family').text()} fast" == best["contender"]


def test_claims_of_timed_kernels_are_those_of_a_reader_of_the_file(listed: Listed) -> None:
    with open(ROOT / "datasets" / "solves" / "staged_solves_h200.csv", newline="") as stream:
        here = [
            row
            for row in csv.DictReader(stream)
            if [row[name] for name in ("n", "batch", "nrhs", "layout")] == ["32", "16384", "1", "chunked32-col"]
        ]
    (own,) = [row for row in here if (row["staged"], row["rhs"], row["split"]) == ("True", "2", "2")]
    (unstaged,) = [row for row in here if row["staged"] == "False"]
    case = "potrs-32/n32/b16384"
    assert listed.find(f"{case}/us").text(".2f") == f"{float(own['seconds']) * 1e6:.2f}"
    assert listed.find(f"{case}/copy_share").text() == f"{float(own['copy']):.0%}"
    ratio = float(unstaged["seconds"]) / float(own["seconds"])
    assert listed.find(f"{case}/speedup").text(".3f") == f"{ratio:.3f}"
    # Microseconds are read as such.
    assert listed.find("poinv/n16/b131072/us").text(".2f") == "62.82"


def test_numbers_that_are_looked_up_are_those_of_a_reader_of_the_file(listed: Listed) -> None:
    with open(ROOT / "datasets" / "calls" / "pdl_h200.csv", newline="") as stream:
        found = [
            float(row["microseconds"])
            for row in csv.DictReader(stream)
            if (row["launch"], row["batch"]) == ("after its predecessors", "1024")
            and re.match(r"potrf_f32_n32_chunked_.*_fast_", row["spec"])
        ]
    assert listed.find("pdl-after/32/1024").text(".2f") == f"{min(found):.2f}"
    with open(ROOT / "datasets" / "comparisons" / "applications_h200.csv", newline="") as stream:
        ours = {
            row["way"]: row for row in csv.DictReader(stream) if (row["application"], row["n"]) == ("physics", "64")
        }
    ratio = float(ours["torch.linalg"]["seconds"]) / float(ours["batchchol"]["seconds"])
    claim = listed.find("application-gain/physics/64/2026-11-27")
    assert (claim.text(".4f"), claim.commits) == (f"{ratio:.4f}", ours["batchchol"]["commit"])
    assert listed.find("branches/8/1024/4").commits == "not recorded"


@pytest.mark.parametrize(
    ("value", "text"), [(8.658, "8.66"), (9.996, "10.0"), (150.1, "150"), (1377.2, "1,377"), (0.0, "0.00")]
)
def test_three_digits(value: float, text: str) -> None:
    assert written(value, THREE_DIGITS) == text


def test_a_line_has_an_empty_cell_where_nothing_was_measured(listed: Listed) -> None:
    text = rendered("<!-- claims: repair -->\n<!-- /claims -->", listed)
    (line,) = [line for line in text.splitlines() if line.startswith("| 64 |")]
    assert [cell.strip() == "" for cell in line.split("|")[1:-1]] == [
        False,
        False,
        True,
        False,
        False,
        True,
        *[False] * 3,
    ]


def test_rows_of_another_machine_are_asked_the_same(listed: Listed) -> None:
    claim = listed.find("h200/n8/b1024/speedup")
    published = float(claim.of(claim.group.rows))
    peers = claim.group.peers
    twice = [replace(row, seconds=row.seconds * (2 if row.contender in peers else 1)) for row in claim.group.rows]
    assert float(claim.of(twice)) == pytest.approx(2 * published)
    with pytest.raises(BatchcholError, match=r"h200: no row is of .*\(8, 1024\)"):
        claim.of([row for row in twice if row.n != 8])


def test_a_stale_page_is_found_and_rendered(clone: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = clone / "docs" / "page.md"
    page.write_text("by <!--=h200/copy ,.0f-->1<!--/--> GB/s\n\n<!-- claims: epyc -->\nold\n<!-- /claims -->\n")
    assert main(["--root", str(clone), "--check"]) == 1
    assert "page.md: is not what the data say" in capsys.readouterr().out
    assert main(["--root", str(clone)]) == 0
    text = page.read_text()
    assert "<!--=h200/copy ,.0f-->4,235<!--/--> GB/s" in text
    assert "| n | best schedule |" in text
    assert "old" not in text
    assert main(["--root", str(clone), "--check"]) == 0


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("by <!--=h200/spead-->1<!--/-->", "h200/spead"),
        ("by\n- <!--=h200/copy-->1<!--/-->", "line 2 begins with one"),
        ("<!-- claims: h100 -->\n<!-- /claims -->", "'h100'"),
        ("by <!--=h200/copy-->1 and <!--=h200/copy-->2<!--/-->", "has no end"),
        ("<!-- claims: h200 -->\n", "has no end"),
    ],
)
def test_what_is_not_listed_is_refused(clone: Path, page: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    (clone / "docs" / "page.md").write_text(page)
    assert main(["--root", str(clone), "--check"]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("compare_h200.csv", "compare_h100.csv", "compare_h100.csv"),
        ('"gflops", "roofline"', '"gflop", "roofline"', "got 'gflop', expected one of gflops,"),
        ('"chunked*"', '"chunkd*"', "no row is of"),
        (
            'math = "fast", layout = "chunked*"',
            'maths = "fast", layout = "chunked*"',
            "column: got one that the file",
        ),
        ("[groups.h200]", "[groups", "correct it"),
        (
            'value = "terabytes_per_second"\nchoose = "most"',
            'value = "terabytes_per_second"\nchoose = "best"',
            "got 'best'",
        ),
        ('where = { n = "whole" }', 'where = { n = "half" }', "no row is as its `where` says"),
    ],
)
def test_a_list_that_is_wrong_is_refused(
    clone: Path, old: str, new: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = clone / LIST
    path.write_text(path.read_text().replace(old, new))
    (clone / "docs" / "page.md").write_text(
        f"{(ROOT / 'README.md').read_text()}\nby <!--=triangles-copy-->4<!--/-->\n"
    )
    assert main(["--root", str(clone), "--check"]) == 2
    assert said in capsys.readouterr().err


def test_a_folder_without_a_list_is_no_clone(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match=r"claims\.toml: reading: no such file: change to a clone of batchchol"):
        load(tmp_path)


def test_a_file_that_has_no_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("n,batch,commit\n8,1024,0123456\n")
    with pytest.raises(DataFileError, match=r"rows\.csv.*line 2.*no seconds"):
        read_timed(path)


@pytest.mark.skipif(
    f"matplotlib=={mpl.__version__}\n" not in (ROOT / "constraints.txt").read_text(),
    reason="another matplotlib draws other bytes",
)
def test_plots_are_drawn_from_the_data(listed: Listed, tmp_path: Path) -> None:
    for plot in listed.plots:
        drawn(plot, tmp_path)
        name = f"{plot.stem.name}.svg"
        assert (tmp_path / name).read_bytes() == plot.stem.with_name(name).read_bytes()
