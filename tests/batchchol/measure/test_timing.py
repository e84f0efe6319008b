"""Samples: as many as asked for, from cold data, and none of a wrong result."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, KernelSpec, Layout, default_spec
from batchchol.artifacts.c_library import supported_targets
from batchchol.backends.base import rotation
from batchchol.backends.cpu import CpuBackend
from batchchol.errors import ResidualError
from batchchol.measure.timing import QUIET, WARM_UP_CALLS, Sample, busy_warning, disagreement, drift, sample_factor

Spd = Callable[..., NDArray[np.floating]]

SMALL_CACHE = 1 << 16

Spoil = Callable[[Batch, NDArray[np.int32]], None]


class ScriptedBackend(CpuBackend):
    """Factors as the real one does, tells made-up seconds, 0, 1, 2, ..., and can spoil what it made.

    Its last-level cache is small, so that the buffers of cold calls are.
    """

    def __init__(self, spoil: Spoil | None = None) -> None:
        super().__init__()
        self.calls: list[tuple[Batch, Batch, int]] = []
        self.spoil = spoil

    def last_level_cache_bytes(self) -> int:
        return SMALL_CACHE

    def seconds(
        self, calls: Sequence[Callable[[], None]], *, samples: int, protocol: str | None = None, warm_up: int = 3
    ) -> list[float]:
        taken = []
        for call in rotation(calls, samples, warm_up):
            call()
            kernel, (a, out, info) = call.func, call.args  # type: ignore[attr-defined]
            assert kernel.spec.problem.n == a.n
            if self.spoil:
                self.spoil(out, info)
            self.calls.append((a, out, call.keywords["threads"]))  # type: ignore[attr-defined]
            taken.append(float(len(self.calls) - 1))
        return taken[warm_up:]


@pytest.fixture
def batch(spd: Spd) -> Batch:
    return Batch.from_dense(spd(100, 4))


@pytest.fixture
def spec() -> KernelSpec:
    return default_spec(4, target=supported_targets()[0])


def test_as_many_samples_as_asked_for_and_no_warm_up_among_them(batch: Batch, spec: KernelSpec) -> None:
    backend = ScriptedBackend()
    sample = sample_factor(backend, spec, batch, samples=7)
    assert sample.seconds == tuple(float(WARM_UP_CALLS + index) for index in range(7))
    assert 0 < sample.ratio < 1.5
    assert len(sample_factor(backend, spec, batch).seconds) == 20


def test_real_seconds(batch: Batch, spec: KernelSpec) -> None:
    sample = sample_factor(CpuBackend(), spec, batch, samples=3)
    assert len(sample.seconds) == 3
    assert all(0 < seconds < 60 for seconds in sample.seconds)


def test_cold_samples_rotate_past_the_cache(batch: Batch, spec: KernelSpec) -> None:
    backend = ScriptedBackend()
    dense = batch.to_dense()
    sample_factor(backend, spec, batch, samples=40)
    arrays = {array.data.ctypes.data: array for a, out, _ in backend.calls for array in (a, out)}
    assert sum(array.nbytes for array in arrays.values()) >= 4 * SMALL_CACHE
    inputs = [a.data.ctypes.data for a, _, _ in backend.calls]
    outputs = [out.data.ctypes.data for _, out, _ in backend.calls]
    assert not set(inputs) & set(outputs), "out of place"
    period = len(set(inputs))
    assert period == len(set(outputs)) > 1
    assert all(len(set(inputs[start : start + period])) == period for start in range(40 - period))
    for a, _, _ in backend.calls:
        np.testing.assert_array_equal(a.to_dense(), dense, err_msg="a factored matrix is not an input")


def test_hot_samples_repeat_one_call(batch: Batch, spec: KernelSpec) -> None:
    backend = ScriptedBackend()
    sample_factor(backend, spec, batch, samples=5, cold=False)
    assert len({(id(a.data), id(out.data)) for a, out, _ in backend.calls}) == 1
    assert backend.calls[0][0] is batch


def test_batch_larger_than_the_caches_is_not_copied(spd: Spd) -> None:
    backend = ScriptedBackend()
    large = Batch.from_dense(spd(5000, 4))
    sample_factor(backend, default_spec(4, target=supported_targets()[0]), large, samples=5)
    assert all(a is large for a, _, _ in backend.calls)


def test_threads_are_passed_on(batch: Batch, spec: KernelSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_THREADS", "5")
    backend = ScriptedBackend()
    sample_factor(backend, spec, batch, samples=2, threads=1)
    assert {threads for _, _, threads in backend.calls} == {1}
    backend.calls.clear()
    sample_factor(backend, spec, batch, samples=2)
    assert {threads for _, _, threads in backend.calls} == {5}


def change_one_element(out: Batch, info: NDArray[np.int32]) -> None:
    last = out.get(99, 100)
    last[0, 3, 1] *= np.float32(1.001)
    out.put(99, last)


def write_nan(out: Batch, info: NDArray[np.int32]) -> None:
    first = out.get(0, 1)
    first[0, 2, 2] = np.nan
    out.put(0, first)


def clear_all(out: Batch, info: NDArray[np.int32]) -> None:
    out.data[...] = 0


def report_a_failure(out: Batch, info: NDArray[np.int32]) -> None:
    info[57] = 3


def report_nothing(out: Batch, info: NDArray[np.int32]) -> None:
    info[...] = -1


@pytest.mark.parametrize("spoil", [change_one_element, write_nan, clear_all, report_a_failure, report_nothing])
@pytest.mark.parametrize("cold", [True, False])
def test_no_number_of_a_wrong_result(batch: Batch, spec: KernelSpec, spoil: Spoil, cold: bool) -> None:
    with pytest.raises(ResidualError, match="matrix"):
        sample_factor(ScriptedBackend(spoil), spec, batch, samples=3, cold=cold)


def test_no_number_of_a_batch_that_is_not_spd(spd: Spd, spec: KernelSpec) -> None:
    dense = spd(100, 4)
    dense[98, 1, 1] = -1
    with pytest.raises(ResidualError, match="matrix 98 has info 2"):
        sample_factor(ScriptedBackend(), spec, Batch.from_dense(dense), samples=3)


def test_specs_that_do_not_fit_the_batch_are_refused(spd: Spd, batch: Batch) -> None:
    backend, target = ScriptedBackend(), supported_targets()[0]
    refused = [
        (default_spec(8, target=target), batch, "spec: got a kernel for"),
        (default_spec(4, target=target, dtype="float64"), batch, "spec: got a kernel for"),
        (
            default_spec(4, target=target),
            Batch.from_dense(spd(10, 4), Layout.chunked(6)),
            "chunk=6 is not",
        ),
        (default_spec(4, target=target, in_place=True), batch, "in_place=True"),
        (default_spec(4, target=target), Batch.empty(4, 0), "0 matrices"),
    ]
    for spec, given, words in refused:
        with pytest.raises(ValueError, match=words):
            sample_factor(backend, spec, given, samples=2)
    assert backend.calls == [], "nothing was run"


def test_calls_take_turns_and_the_last_is_the_one_that_is_checked() -> None:
    made: list[int] = []
    calls = [lambda place=place: made.append(place) for place in range(3)]
    seconds = CpuBackend().seconds(calls, samples=4, warm_up=2)
    assert len(seconds) == 4
    assert made == [1, 2, 0, 1, 2, 0]


def test_what_cannot_be_timed(batch: Batch, spec: KernelSpec) -> None:
    backend = CpuBackend()
    with pytest.raises(ValueError, match=r"protocol: got 'queued', expected one of 'single' for backend 'cpu'"):
        sample_factor(backend, spec, batch, protocol="queued")
    with pytest.raises(ValueError, match=r"calls, samples: got 0 calls and 3 samples, expected at least 1 of each"):
        backend.seconds([], samples=3)
    with pytest.raises(ValueError, match=r"stream: got 7, expected None: backend 'cpu' has none"):
        backend.kernel(spec)(batch, batch.copy(), backend.info(batch, spec), threads=1, stream=7)


def test_a_sample_says_how_it_was_taken(batch: Batch, spec: KernelSpec) -> None:
    sample = sample_factor(CpuBackend(), spec, batch, samples=2)
    assert (sample.protocol, sample.floor) == ("single", 0.0)
    assert sample.conditions == {"before": {}, "after": {}}, "docs/benchmarks.md reads both, on a CPU too"


def test_median_and_spread() -> None:
    sample = Sample((4.0, 1.0, 2.0, 3.0, 100.0), 0.1)
    assert sample.median == 3.0
    assert sample.spread == pytest.approx((4 - 2) / 3)


def test_disagreement_is_a_part_of_the_faster_whichever_came_first() -> None:
    assert disagreement(2.0, 2.0) == 0
    assert disagreement(2.0, 3.0) == disagreement(3.0, 2.0) == 0.5


@pytest.mark.parametrize("seconds", [0.0, -1.0, float("nan"), float("inf")])
def test_disagreement_of_what_was_not_measured_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=r"seconds: got .*, expected a positive"):
        disagreement(1.0, seconds)


def test_warning_of_a_busy_machine_names_the_worst() -> None:
    assert busy_warning([]) is None
    assert busy_warning([0.0, QUIET]) is None
    warning = busy_warning([0.01, 0.98, 0.3])
    assert warning is not None
    assert warning.startswith("this machine is busy: two measurements of the same kernel differ by 98%")


def test_drift_is_between_the_halves() -> None:
    assert drift([1.0, 1.0, 1.0]) == 0
    assert drift([1.0, 9.0, 1.0, 1.0, 1.0, 1.0]) == 0, "one that was disturbed is none"
    assert drift([1.0, 1.0, 1.5, 1.5]) == 0.5
