"""Factors that are written past the caches, and groups that matrices do not fill."""

from __future__ import annotations

import numpy as np
import pytest

from batchchol.backends import cpu, get_backend
from batchchol.batches.host_memory import address_of, aligned_empty
from kernelgen import generate

from ....kernel_runs import Array, make_spec, require_target
from ....matrices import wishart

BATCH = 37


def factors(kernel: cpu.CpuKernel, a: Array, *, used: bool, shift: int = 0) -> Array:
    """To memory that begins `shift` elements behind a cache line, and that alone."""
    room = aligned_empty((a.size + 32,), a.dtype, "a test")
    room[:] = np.nan
    l = room[shift : shift + a.size].reshape(a.shape)
    info = kernel.factor_arrays(address_of(a), address_of(l), len(a), (a, room), used=used)
    assert not info.any()
    assert len(info) == len(a)
    assert np.isnan(room[:shift]).all()
    assert np.isnan(room[shift + a.size :]).all()
    return l


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("target", ["avx512", "avx2"])
@pytest.mark.parametrize(
    ("n", "order", "overlap"),
    [(n, "row", None) for n in (4, 8, 20, 36)] + [(12, "col", None), (7, "col", None), (10, "row", True)],
)
def test_same_bits_past_the_caches(
    monkeypatch: pytest.MonkeyPatch, n: int, order: str, overlap: bool | None, target: str, dtype: str
) -> None:
    require_target(target)
    monkeypatch.setattr(cpu, "STREAM_BYTES", 0)
    spec = make_spec(n, 3, target=target, dtype=dtype, layout="canonical", order=order, overlap=overlap)
    kernel = get_backend("cpu").kernel(spec)
    assert isinstance(kernel, cpu.CpuKernel)
    a = wishart(BATCH, n).astype(dtype)
    expected = factors(kernel, a, used=False)
    assert kernel.streaming is not None
    for shift in (0, 1, 4, 7):
        for used in (True, False):
            np.testing.assert_array_equal(factors(kernel, a, used=used, shift=shift), expected)
    # In columns the lower triangle is what rows call the upper one.
    rows = expected.swapaxes(1, 2) if order == "col" else expected
    assert not np.triu(rows, 1).any()
    np.testing.assert_allclose(rows, np.linalg.cholesky(a), rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("target", ["avx512", "avx2", "generic"])
def test_groups_that_are_not_full(target: str) -> None:
    require_target(target)
    kernel = get_backend("cpu").kernel(make_spec(9, 3, target=target, layout="canonical"))
    assert isinstance(kernel, cpu.CpuKernel)
    a = wishart(BATCH, 9).astype(np.float32)
    whole = factors(kernel, a, used=False)
    for batch in range(1, 18):
        np.testing.assert_array_equal(factors(kernel, a[:batch], used=False), whole[:batch])


def test_which_kernels_write_past_the_caches() -> None:
    for n, layout, target in ((8, "chunked", "avx2"), (8, "canonical", "generic"), (2, "canonical", "avx2")):
        assert generate(make_spec(n, 2, layout=layout, target=target)).streaming is None
    assert generate(make_spec(7, 2, layout="canonical", target="avx2")).streaming is not None
