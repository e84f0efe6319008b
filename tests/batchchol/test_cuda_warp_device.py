"""The warp family on a device: every pair of values, matrices enough for every multiprocessor to be busy."""

from __future__ import annotations

import numpy as np
import pytest

from batchchol.backends import Backend, get_backend
from kernelgen import KernelSpec

from ..covering import Choice
from ..kernel_runs import layout_of
from ..matrices import wishart
from .test_cuda_block_device import built_on_a_gpu, check
from .test_cuda_warp import DESIGN, case_id, spec_of, warp_spec


@pytest.mark.parametrize(
    "spec",
    [
        warp_spec(17, matrices=4, math="fast", stride=4),
        warp_spec(20, matrices=2, teams=4, layout="canonical", order="row", in_place=True, math="fast"),
        warp_spec(40, warps=2, teams=1, layout="interleaved", uplo="upper"),
    ],
    ids=lambda spec: spec.name,
)
def test_every_multiprocessor_has_teams(cuda: Backend, spec: KernelSpec) -> None:
    check(cuda, spec, layout_of(spec, spec.schedule.stride), groups=2)


@pytest.fixture(scope="module")
def built() -> Backend:
    """The backend of a real GPU, with the kernels of the design."""
    return built_on_a_gpu(spec_of(choice)[0] for choice in DESIGN)


@pytest.mark.gpu
@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values_on_a_gpu(built: Backend, choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check(built, spec, layout_of(spec, chunk), groups=3)


@pytest.mark.gpu
@pytest.mark.parametrize("value", [-1.0, -0.0, 0.0, np.nan, -np.inf])
@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_failing_members_on_a_gpu(math: str, value: float) -> None:
    backend, spec = get_backend("cuda"), warp_spec(33, matrices=2, math=math)
    a = wishart(1000, 33).astype(np.float32)
    minors = np.where(np.arange(1000) % 3 == 1, np.arange(1000) % 33 + 1, 0)
    bad = np.flatnonzero(minors)
    for member in bad:
        pivot = minors[member] - 1
        a[member, pivot, :] = a[member, :, pivot] = 0
        a[member, pivot, pivot] = value
    batch = backend.from_dense(a, layout_of(spec))
    result, info = batch.copy(), backend.info(batch, spec)
    backend.kernel(spec)(batch, result, info, 1)
    assert np.array_equal(backend.host(info)[:1000], minors)


@pytest.mark.gpu
def test_roots_and_reciprocals_are_correctly_rounded_on_a_gpu() -> None:
    backend, spec = get_backend("cuda"), warp_spec(2, layout="canonical", order="row")
    bits = np.random.default_rng(1).integers(0x00800000, 0x7F800000, 1 << 20, np.uint32)
    bits[:64] = 0x0D000000 + np.arange(-32, 32)
    pivots = bits.view(np.float32)
    a = np.ones((len(pivots), 2, 2), np.float32)
    a[:, 0, 0], a[:, 1, 1] = pivots, np.finfo(np.float32).max
    batch = backend.from_dense(a, layout_of(spec))
    result, info = batch.copy(), backend.info(batch, spec)
    backend.kernel(spec)(batch, result, info, 1)
    assert not np.asarray(backend.host(info)).any()
    l = np.asarray(backend.host(result.data))[: len(pivots)]
    assert np.array_equal(l[:, 0, 0], np.sqrt(pivots))
    assert np.array_equal(l[:, 1, 0], 1 / np.sqrt(pivots))
