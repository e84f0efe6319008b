"""What two commits would run is equal, or it is measured: nothing changed may pass for unchanged."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from batchchol.asv_plugin.gate import proof
from batchchol.files import make_folder

FILES = {
    "batchchol/__init__.py": '"""The library."""\nfrom batchchol.api import cholesky\n',
    "batchchol/api/__init__.py": (
        '"""Calls."""\n\n\ndef cholesky(a):\n    """Factor."""\n    from batchchol.lazy import packed\n\n'
        "    return packed(a)  # the result\n"
    ),
    "batchchol/lazy.py": "LATER = 'batchchol.named'\n\n\ndef packed(a):\n    return a\n",
    "batchchol/named.py": "ROWS = 4\n",
    "batchchol/relative.py": "COLUMNS = 4\n",
    "batchchol/peers/__init__.py": "",
    "batchchol/peers/one.py": "PEER = 1\n",
    "batchchol/tune/__init__.py": "",
    "batchchol/tune/search.py": "STEPS = 10\n",
    "batchchol/report/page.py": "TITLE = 'a'\n",
    "batchchol/artifacts/compiler.py": "FLAGS = ('-O3',)\n",
    "batchchol/defaults/table.json": '{"n": 1}\n',
    "kernelgen/__init__.py": "",
    "kernelgen/templates/kernel.c.jinja": "int kernel;\n",
}
SPEC = {"layout": {"kind": "chunked"}, "batch": 8, "threads": 1, "nrhs": 1, "lanes": 8, "launch": None}
DESCRIBED = {**SPEC, "text_sha256": "ab", "flags": ["-mavx2"], "entry": "potrf"}


def checkout(folder: Path, **changed: str) -> Path:
    """A small library, some of its files others."""
    for name, text in {**FILES, **changed}.items():
        make_folder((folder / name).parent)
        (folder / name).write_text(text)
    return folder


def alike(tmp_path: Path, **changed: str) -> bool:
    return proof.calls_alike(checkout(tmp_path / "base"), checkout(tmp_path / "head", **changed))


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"batchchol/api/__init__.py": FILES["batchchol/api/__init__.py"].replace("# the result", "# what it is")},
        {"batchchol/api/__init__.py": FILES["batchchol/api/__init__.py"].replace('"""Factor."""', '"""Factors."""')},
        {"batchchol/api/__init__.py": FILES["batchchol/api/__init__.py"].replace("cholesky(a):", "cholesky( a ):")},
        {"batchchol/tune/search.py": "STEPS = 20\n"},
        {"batchchol/report/page.py": "TITLE = 'b'\n"},
        {"batchchol/tune/other.py": "STEPS = 20\n"},
    ],
    ids=["nothing", "a comment", "a docstring", "spaces", "tune", "report", "a new file of tune"],
)
def test_calls_are_alike_where_what_they_reach_says_the_same(tmp_path: Path, changed: dict[str, str]) -> None:
    assert alike(tmp_path, **changed)


@pytest.mark.parametrize(
    "changed",
    [
        {"batchchol/api/__init__.py": FILES["batchchol/api/__init__.py"].replace("packed(a)", "packed(a.T)")},
        {"batchchol/lazy.py": FILES["batchchol/lazy.py"].replace("return a", "return +a")},
        {"batchchol/named.py": "ROWS = 5\n"},
        {"batchchol/defaults/table.json": '{"n": 2}\n'},
        {"batchchol/defaults/other.json": "{}\n"},
        {"kernelgen/templates/kernel.c.jinja": "int kernel = 1;\n"},
        {"batchchol/api.py": "a module that the package of its name hides\n"},
        {"batchchol/named.py": "ROWS =\n"},
    ],
    ids=["a call", "a late import", "a name", "a table", "a new table", "a template", "hidden", "no Python"],
)
def test_calls_are_not_alike_where_something_that_they_reach_changed(tmp_path: Path, changed: dict[str, str]) -> None:
    assert not alike(tmp_path, **changed)


@pytest.mark.parametrize(
    ("line", "module"),
    [
        ("from . import relative", "batchchol/relative.py"),
        ("from .relative import COLUMNS", "batchchol/relative.py"),
        ("from .peers import one", "batchchol/peers/one.py"),
        ("import batchchol.relative as other", "batchchol/relative.py"),
        ("START = 'batchchol.relative:main'", "batchchol/relative.py"),
        ("PEERS = f'batchchol.peers.{ROWS}'", "batchchol/peers/one.py"),
    ],
)
def test_every_way_to_import_reaches_the_module(tmp_path: Path, line: str, module: str) -> None:
    lines = {"batchchol/named.py": f"{line}\n"}
    base = checkout(tmp_path / "base", **lines)
    assert proof.calls_alike(base, checkout(tmp_path / "equal", **lines))
    assert not proof.calls_alike(base, checkout(tmp_path / "head", **lines, **{module: "COLUMNS = PEER = 7\n"}))


def test_building_is_how_machine_code_is_made(tmp_path: Path) -> None:
    base = proof.building(checkout(tmp_path / "base"))
    said = {"batchchol/artifacts/compiler.py": "# As fast as it gets.\nFLAGS = ('-O3',)\n"}
    assert proof.building(checkout(tmp_path / "comment", **said)) == base
    other = {"batchchol/artifacts/compiler.py": "FLAGS = ('-O2',)\n"}
    assert proof.building(checkout(tmp_path / "flags", **other)) != base
    # What cannot be read as Python fails where it is imported, not here.
    broken = {"batchchol/artifacts/compiler.py": "FLAGS = (\n"}
    assert proof.building(checkout(tmp_path / "broken", **broken)) != base


@pytest.mark.parametrize("name", ["layout", "batch", "threads", "nrhs", "lanes", "launch"])
def test_equal_code_that_is_launched_otherwise_is_not_alike(name: str) -> None:
    assert proof.launched_alike(DESCRIBED, {**DESCRIBED})
    assert not proof.launched_alike(DESCRIBED, {**DESCRIBED, name: "another"})
    assert not proof.written_alike(DESCRIBED, {**DESCRIBED, name: "another"})


def test_other_text_or_flags_are_not_written_alike() -> None:
    assert proof.written_alike(DESCRIBED, {**DESCRIBED})
    assert not proof.written_alike(DESCRIBED, {**DESCRIBED, "text_sha256": "cd"})
    assert not proof.written_alike(DESCRIBED, {**DESCRIBED, "flags": ["-mavx512f"]})


def record(folder: Path, key: str, text: str, flags: list[str], payload: str) -> dict[str, Any]:
    """An entry of a cache, of PTX: any bytes will do; and what a commit says of such a kernel."""
    make_folder(folder)
    (folder / f"{key}.json").write_text(
        json.dumps({"payload": payload, "metadata": {"entry": "potrf", "flags": flags}})
    )
    (folder / f"{key}.cu").write_text(text)
    (folder / payload).write_bytes(payload.encode())
    return {**DESCRIBED, "text_sha256": hashlib.sha256(text.encode()).hexdigest(), "flags": flags}


def test_machine_code_is_found_by_source_and_flags(tmp_path: Path) -> None:
    wanted = record(tmp_path, "a", "text", ["--fast"], "one.ptx")
    record(tmp_path, "b", "text", ["--slow"], "two.ptx")
    record(tmp_path, "c", "other", ["--fast"], "three.ptx")
    records = proof.read_records(tmp_path)
    code = proof.find_code(records, wanted)
    assert code is not None
    assert code.path == tmp_path / "one.ptx"
    assert code.fingerprint == hashlib.sha256(b"one.ptx").hexdigest()
    assert proof.find_code(records, {**wanted, "flags": ["--other"]}) is None
    assert proof.find_code(records, {**wanted, "entry": "potrs"}) is None
