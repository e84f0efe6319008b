"""One matrix by one block of threads, timed beside cuSOLVER's potrf: on a real GPU, and against stand-ins."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from batchchol.compare.peers import cusolver
from batchchol.compare.single_matrix import WAYS, sample_single
from batchchol.errors import ResidualError
from kernelgen import SpecError

from ...fakes.pycuda import FakeGpu
from .test_gpu_peers import floats

N = 33


@pytest.fixture
def potrf(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """CuPy's cusolver; what it is asked for, and by how much its factors are wrong."""
    seen: dict[str, Any] = {"calls": 0, "wrong": 1.0}

    def spotrf(handle: int, uplo: int, n: int, a: int, lda: int, work: int, elements: int, info: int) -> None:
        assert (handle, uplo, lda, elements) == (77, 0, n, 5)
        seen["calls"] += 1
        floats(work, elements, "float32")[:] = 0
        columns = floats(a, n * n, "float32").reshape(n, n)
        columns[:] = np.linalg.cholesky(columns).T * seen["wrong"]
        floats(info, 1, "int32")[:] = 0

    library = ModuleType("cupy_backends.cuda.libs.cusolver")
    library.__dict__.update(
        create=lambda: 77, setStream=lambda *_: None, spotrf=spotrf, spotrf_bufferSize=lambda *_: 5
    )
    monkeypatch.setitem(sys.modules, library.__name__, library)
    for cached in (cusolver._library, cusolver._handle):
        monkeypatch.setattr(cusolver, cached.__name__, cached.__wrapped__)
    return seen


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("protocol", ["queued", "single"])
def test_samples_of_every_way(fake_gpu: FakeGpu, potrf: dict[str, Any], way: str, protocol: str) -> None:
    fake_gpu.seconds_per_launch = 1e-3
    sample = sample_single(N, way, protocol=protocol, samples=5)
    assert (len(sample.seconds), sample.protocol) == (5, protocol)
    assert 0 < sample.ratio <= 1.5
    launched = [entry for entry, *_ in fake_gpu.launches if "single" in entry]
    assert (len(launched) > 5, potrf["calls"] > 5) == (way != "cusolver", way == "cusolver")


def test_a_wrong_factor_has_no_time(fake_gpu: FakeGpu, potrf: dict[str, Any]) -> None:
    potrf["wrong"] = 1 + 1e-4
    with pytest.raises(ResidualError, match="over the bound"):
        sample_single(N, "cusolver", samples=5)


def test_what_is_refused(fake_gpu: FakeGpu) -> None:
    with pytest.raises(ValueError, match="way: got 'magma', expected one of 'shared', 'panel', 'cusolver'"):
        sample_single(N, "magma")
    with pytest.raises(SpecError, match="n=1025"):
        sample_single(1025)
    assert not fake_gpu.launches


@pytest.mark.gpu
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("n", [1, 131, 1024])
def test_on_a_gpu(way: str, n: int) -> None:
    if way == "cusolver":
        pytest.importorskip("cupy")
    assert sample_single(n, way, samples=5).median > 0
