"""The export for the autotuning community's tools: valid by their schema, and with the numbers of the data set."""

from __future__ import annotations

import json
import math
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from batchchol.defaults.lookup import default_spec
from batchchol.errors import DataFileError
from batchchol.measure import parquet, t4
from batchchol.measure.point import Point
from batchchol.measure.row import STATUSES, Row
from kernelgen import KernelSpec, Problem, SharedSchedule, ThreadSchedule

pytest.importorskip("pyarrow")
jsonschema = pytest.importorskip("jsonschema")


def schemas() -> list[Any]:
    """What T4 demands: as these tests say it, and as it is published where that is installed."""
    texts = [(Path(__file__).parents[2] / "t4_schema.json").read_text()]
    if find_spec("autotuning_methodology"):
        texts.append((files("autotuning_methodology") / "schemas" / "T4.json").read_text())
    return [json.loads(text) for text in texts]


def rows() -> list[Row]:
    about = {
        "device": "a GPU",
        "gpu": "a GPU",
        "toolkit": "CUDA 13.0",
        "version": "0.1.0",
        "date": "2026-11-21T20:00:00",
    }
    found = []
    for number, status in enumerate(STATUSES, start=1):
        spec = KernelSpec(Problem(16), "chunked", "col", ThreadSchedule(number), "cuda")
        point = Point(spec, 1000, 32, 1, "queued")
        if status != "correct":
            found.append(Row(point, status, "a reason", about=about))
            continue
        code = {"compile_seconds": 1.5, "registers": 40, "spill_bytes": 0}
        columns: dict[str, Any] = {"calls": 2, "ratio": 0.5, "floor_seconds": 1e-6, "about": about | code}
        columns |= {"check_seconds": 1e-3, "wall_seconds": 0.01}
        found.append(Row.timed(point, (1e-5, 2e-5, 3e-5), **columns))
    spec = KernelSpec(Problem(16), "interleaved", "col", SharedSchedule(4), "cuda")
    return [*found, Row.timed(Point(spec, 1000), (1e-5,), ratio=0.1, about=about)]


def test_the_export_is_valid_and_has_every_row(tmp_path: Path) -> None:
    table = parquet.table([row.values() for row in rows()])
    file = tmp_path / "t4.json"
    assert t4.export(table, file) == len(rows())
    found = json.loads(file.read_text())
    for schema in schemas():
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(found, schema)
    assert [result["invalidity"] for result in found["results"]] == [
        "correct",
        "compile",
        "timeout",
        "correctness",
        "runtime",
        "constraints",
        "correct",
    ]
    assert [result["correctness"] for result in found["results"]] == [1, 0, 0, 0, 0, 0, 1]
    assert found["metadata"]["device"] == "a GPU"
    assert found["metadata"]["compute_api"] == "CUDA"


def test_numbers_are_those_of_the_data_set() -> None:
    result = t4.results(parquet.table([rows()[0].values()]))["results"][0]
    assert result["times"]["runtimes"] == pytest.approx([0.01, 0.02, 0.03], rel=1e-6)
    assert result["times"]["compilation_time"] == 1500
    assert result["times"]["validation"] == 1
    assert result["times"]["framework"] == pytest.approx(10 - 2 * 0.06 - 1)
    values = {entry["name"]: entry["value"] for entry in result["measurements"]}
    assert values["time"] == 0.02
    assert values["GFLOP/s"] == pytest.approx(16**3 / 3 * 1000 / 2e-5 / 1e9)
    assert values["registers"] == 40
    configuration = result["configuration"]
    assert (configuration["n"], configuration["nb"], configuration["block"]) == (16, 1, 32)
    assert "matrices" not in configuration, "a choice that no row has"


def test_an_operation_counts_its_own_flops() -> None:
    spec = default_spec(16, target="cuda", op="gesv")
    row = Row.timed(Point(spec, 1000, 32, 1, "queued"), (1e-5,), about=rows()[0].about)
    (result,) = t4.results(parquet.table([row.values()]))["results"]
    values = {entry["name"]: entry["value"] for entry in result["measurements"]}
    assert (result["configuration"]["op"], values["GFLOP/s"]) == ("gesv", pytest.approx(row.gflops))


def test_all_configurations_have_the_same_parameters_and_no_two_are_equal() -> None:
    found = [
        result["configuration"] for result in t4.results(parquet.table([row.values() for row in rows()]))["results"]
    ]
    assert len({tuple(configuration) for configuration in found}) == 1
    assert len({json.dumps(configuration) for configuration in found}) == len(found)
    assert found[-1]["matrices"] == 32


@pytest.mark.parametrize("damage", ["status", "samples", "parameters"])
def test_the_schema_refuses_what_is_wrong(damage: str) -> None:
    found = t4.results(parquet.table([rows()[0].values()]))
    match damage:
        case "status":
            found["results"][0]["invalidity"] = "wrong"
        case "samples":
            found["results"][0]["times"]["runtimes"] = ["fast"]
        case "parameters":
            del found["results"][0]["configuration"]
    # The published one does not look at samples.
    for schema in schemas()[:1] if damage == "samples" else schemas():
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(found, schema)


def test_infinity_is_no_json(tmp_path: Path) -> None:
    values = rows()[0].values() | {"ratio": math.inf}
    with pytest.raises(ValueError, match="JSON"):
        t4.export(parquet.table([values]), tmp_path / "t4.json")
    assert not (tmp_path / "t4.json").exists()


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataFileError, match="absent"):
        t4.export(parquet.table([rows()[0].values()]), tmp_path / "absent" / "t4.json")
