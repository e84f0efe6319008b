"""The pages of the history: every link leads somewhere, nothing is asked of a network, a browser has no complaint."""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import pytest

from batchchol.asv_plugin.history.cases import Case, Number
from batchchol.asv_plugin.history.charts import shown
from batchchol.asv_plugin.history.pages import write
from batchchol.asv_plugin.history.roofline import Kernel, Roofline
from batchchol.asv_plugin.history.store import opened
from batchchol.asv_plugin.results import ResultRow
from batchchol.errors import BatchcholError
from tests.batchchol.asv_plugin.history.results import result, series

# What would make a browser ask another host for more.
LOADS = re.compile(
    r"https?:|//[a-z]|@import|url\(|src=\"(?!keys\.js)"
    r"|<link(?! rel=\"(?:icon\" href=\"data:,|stylesheet\" href=\"style\.css)\")"
)
# Keys pressed on a page, and what came of them.
PRESSED = """<script>addEventListener("load", () => {
  const press = (key) => document.dispatchEvent(new KeyboardEvent("keydown", { key }));
  press("j"); press("j"); press("j");
  const third = document.activeElement.textContent;
  const field = document.getElementById("filter");
  press("/");
  const focused = document.activeElement === field;
  field.value = "n = 16";
  field.dispatchEvent(new Event("input"));
  const left = [...document.querySelectorAll("tr.row")].filter((row) => !row.hidden).length;
  const root = document.documentElement;
  console.log([third, focused, left, root.scrollWidth <= root.clientWidth, innerWidth].join("; "));
});</script>"""
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


def history() -> list[ResultRow]:
    """Two machines and benchmarks, with a case of every state."""
    steady = [1e-9, 1.001e-9] * 3
    return [
        *series(steady, n=4),
        *series([*steady[:4], 1.3e-9, 1.31e-9], n=8),
        *series([*steady[:5], math.nan], n=16),
        *series([1.5e-9] * 6, n=8, nb=4),
        *series(steady, benchmark="floor.Floor.device_nothing"),
        result(1, 2e-9, machine="<other>"),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(history(), tmp_path_factory.mktemp("pages"))


def written(rows: Sequence[ResultRow], folder: Path) -> Path:
    with opened(folder / "history.sqlite") as store:
        store.add(rows)
        write(store.measurements(), folder / "pages")
    return folder / "pages"


def test_every_link_leads_somewhere(folder: Path) -> None:
    pages = {path.name: path.read_text() for path in folder.glob("*.html")}
    assert len(pages) == 1 + 6 + 5 + 4
    for name, text in pages.items():
        assert not LOADS.search(text), name
        for file, _, anchor in (link.partition("#") for link in re.findall(r'href="([^"]+)"', text)):
            target = folder / (file or name)
            assert file in ("data:,", "style.css") or target.is_file(), f"{name}: {file}"
            assert not anchor or f'id="{anchor}"' in target.read_text(), f"{name}: #{anchor}"


def test_the_overview_says_what_to_look_at(folder: Path) -> None:
    text = (folder / "index.html").read_text()
    headings = re.findall(r'<h3 class="\w+">([^<]+) <span>(\d+)', text)
    assert headings == [("Slower lately", "1"), ("Failed", "1")]
    assert "+30.4%" in text
    assert "&lt;other&gt;" in text
    assert "<other>" not in text


def test_a_case_has_its_numbers_and_change(folder: Path) -> None:
    text = (folder / "mine-env--tiles.Tiles.device_factor.html").read_text()
    assert "06060606, 2026-11-07: 1.31 ns (1.3" in text
    assert text.count('<section class="case"') == 4
    assert '<a href="commit-04040404.html"><code>04040404</code></a> to' in text
    assert "1500 MHz" in (folder / "mine-env--conditions.html").read_text()


def test_heat_maps_and_rooflines_have_every_kernel(folder: Path) -> None:
    heat = (folder / "mine-env--heat-maps.html").read_text()
    assert "n × nb" in heat
    assert re.findall(r"--heat: (\d+)%", heat) == ["0", "20", "0"]
    assert (folder / "mine-env--roofline.html").read_text().count("GFLOP/s, ") == 5


def test_a_roofline_names_the_fastest_of_each_intensity_where_there_is_room() -> None:
    kernel = Kernel(cast(Case, None), cast(Number, None), 1.0, 1.0)
    places = [(100.0, 80.0), (100.0, 50.0), (112.0, 52.0), (300.0, 10.0), (301.0, 15.0), (302.0, 18.0)]
    plot = Roofline(640, 360, tuple((x, y, kernel) for x, y in places), 1.0, ((0, 0), (1, 1)), (), ())
    assert plot.names == {1: True, 2: False, 3: True, 5: False}


@pytest.mark.skipif(BROWSER is None, reason="needs a browser: apt install chromium")
@pytest.mark.parametrize("width", [360, 1200])
def test_a_browser_shows_them_without_complaint(folder: Path, tmp_path: Path, width: int) -> None:
    page = folder / "mine-env--tiles.Tiles.device_factor.html"
    pressed = tmp_path / "pages" / "pressed.html"
    shutil.copytree(folder, pressed.parent)
    pressed.write_text(page.read_text().replace("</body>", f"{PRESSED}</body>"))
    frame = pressed.with_name("frame.html")
    # A window of a browser without a screen is no narrower than 500 pixels, a frame is.
    frame.write_text(f'<iframe src="pressed.html" width={width} height=800></iframe>')
    command = [str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=2000"]
    command += [f"--user-data-dir={tmp_path / 'profile'}", "--dump-dom", frame.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said = re.findall(r"CONSOLE.*?\"(.*?)\", source", done.stderr)
    assert said == [f"n = 8; true; 1; true; {width}"]


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(2.5e-9, "seconds", "2.5 ns"), (2.0, "seconds", "2 s"), (5820, "bytes", "5,820 bytes"), (0, "seconds", "0 ps")],
)
def test_numbers_have_units(value: float, unit: str, text: str) -> None:
    assert shown(value, unit) == text


def test_nothing_measured_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(BatchcholError, match="no point of the suite was measured"):
        write([], tmp_path / "pages")
    assert not list(tmp_path.iterdir())
