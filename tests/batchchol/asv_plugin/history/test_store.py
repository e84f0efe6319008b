"""The store of results: what goes in comes out once, across runs, processes and versions."""

from __future__ import annotations

import datetime
import json
import math
from pathlib import Path

import pytest

from batchchol.asv_plugin.history.due import measured_texts
from batchchol.asv_plugin.history.store import opened
from batchchol.errors import DataFileError
from tests.batchchol.asv_plugin.history.results import DAY, NAME, result, series


def test_results_come_back_once_with_every_run(tmp_path: Path) -> None:
    path, rows = tmp_path / "new" / "history.sqlite", [*series([1e-9, 2e-9]), result(2, 3e-9, night=1)]
    with opened(path) as store:
        assert store.add([*rows, result(3, math.nan)]) == 4
        assert store.add(rows) == 0
    with opened(path) as store:
        found = store.measurements()
        assert store.measurements("another machine") == []
    assert [each.median for each in found[:3]] == [1e-9, 2e-9, 3e-9]
    assert (found[3].status, math.isnan(found[3].median)) == ("failed", True)
    first = found[0]
    assert (first.params["n"], first.params["nb"], first.date) == (8, None, DAY + datetime.timedelta(days=1))
    assert first.samples == pytest.approx([0.996e-9, 0.998e-9, 1e-9, 1.002e-9, 1.004e-9])
    assert first.about["source_sha256"] == "a"
    assert first.about["device"] == {"gpu": "A GPU", "driver": "1.2"}


def test_a_run_that_fails_midway_adds_nothing(tmp_path: Path) -> None:
    def rows():  # type: ignore[no-untyped-def]
        yield result(1, 1e-9)
        raise KeyboardInterrupt

    with opened(tmp_path / "history.sqlite") as store:
        with pytest.raises(KeyboardInterrupt):
            store.add(rows())
        assert store.measurements() == []


def test_old_runs_are_thinned_and_medians_stay(tmp_path: Path) -> None:
    rows = [result(1, 1e-9 + night * 1e-12, kernel="a", night=night) for night in range(4)]
    with opened(tmp_path / "history.sqlite") as store:
        store.add(rows)
        assert store.thin(DAY + datetime.timedelta(days=4)) == (2, 1)
        found = store.measurements()
        assert store.thin(DAY + datetime.timedelta(days=4)) == (0, 0)
    assert [each.median for each in found] == pytest.approx([1.002e-9, 1.003e-9])
    assert [len(each.samples) for each in found] == [0, 5]


def test_it_goes_to_pandas(tmp_path: Path) -> None:
    with opened(tmp_path / "history.sqlite") as store:
        store.add(series([1e-9, 2e-9], n=16))
        frame = store.frame()
    assert list(frame["median"]) == [1e-9, 2e-9]
    assert list(frame["param_n"]) == [16, 16]


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + bytes(84)])
def test_what_is_no_store_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "history.sqlite"
    path.write_bytes(content)
    with pytest.raises(DataFileError, match=r"history\.sqlite"), opened(path) as store:
        store.measurements()
    assert path.read_bytes() == content


def test_a_newer_store_is_refused(tmp_path: Path) -> None:
    import sqlite3

    path = tmp_path / "history.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 9")
    with pytest.raises(DataFileError, match="a newer batchchol wrote it"), opened(path):
        pass


def test_what_was_measured_lately_with_the_same_text_is_not_due(tmp_path: Path) -> None:
    rows = [
        *series([1e-9, 2e-9], kernels="ab", n=4),
        *series([1e-9, math.nan], kernels="ab", n=8),
        *series([1e-9], kernels="a", n=16),
        result(2, 1e-9, n=24),
    ]
    with opened(tmp_path / "history.sqlite") as store:
        store.add(rows)
        texts = measured_texts(store, "mine", DAY + datetime.timedelta(days=2))
        assert measured_texts(store, "another machine", DAY) == {}
    ((point, text),) = texts[NAME].items()
    assert (json.loads(point)["n"], text) == (4, "b")
