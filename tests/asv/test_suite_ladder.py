"""The ladder of batches: which rungs fit, what the limit is, and what a record says of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from batchchol.asv_plugin.samples import FILE_VARIABLE, load_samples

WHY = "the suite's extra is not installed: there is no asv"
pytest.importorskip("asv", reason=WHY)

NAME = "ladder.Ladder.device_factor"
Part = Callable[[str], Any]


@pytest.fixture
def free(suite: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Says how many bytes of the host's memory are free; its cache is small, as few buffers are quickly filled."""
    monkeypatch.setenv("BATCHCHOL_PROFILE", "full")
    monkeypatch.setattr("batchchol.backends.cpu.CpuBackend.last_level_cache_bytes", lambda self: 1 << 20)

    def say(nbytes: int) -> None:
        monkeypatch.setattr("batchchol.backends.cpu.CpuBackend.free_bytes", lambda self: nbytes)

    return say


@pytest.mark.parametrize(("batch", "expected"), [(2_048, 2_048), ("limit", 3_000)])
def test_rungs_and_the_limit_are_measured_and_recorded(
    batch: Any,
    expected: int,
    free: Callable[[int], None],
    benchmark_at: Callable[..., Any],
    tmp_path: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Room for 3,999 matrices of order 8 and their factors in the half that is used.
    free(2 * 3_999 * (2 * 8 * 8 * 4 + 12))
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "samples"))
    benchmark = benchmark_at(NAME, n=8, batch=batch)
    assert not benchmark.do_setup()
    # Per matrix: per call, it would be a thousand times more.
    assert all(1e-12 < sample < 1e-4 for sample in benchmark.do_run()["samples"])
    (record,) = load_samples(tmp_path / "samples")
    assert (record.params["batch"], record.about["batch"]) == (batch, expected)


def test_a_rung_that_does_not_fit_is_skipped_with_what_would(
    free: Callable[[int], None], benchmark_at: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    free(2 * 3_999 * (2 * 8 * 8 * 4 + 12))
    assert benchmark_at(NAME, n=8, batch=4_096).do_setup()
    assert "4,096 matrices of order 8 do not fit: at most 3,000 do" in capsys.readouterr().out


def test_steps_are_powers_of_two_beyond_any_memory(part: Part) -> None:
    grid = part("harness.grid")
    steps = grid.LADDER_STEPS
    assert steps[0] == 1_024
    assert all(second == 2 * first for first, second in pairwise(steps))
    assert 2 * grid.Point(n=8, batch=steps[-1]).matrix_bytes >= 2 << 40
    assert grid.point_of({"n": 8, "batch": grid.LIMIT}).batch == steps[-1]
