"""The strip family on a device: every pair of values, each block busy more than once, and members that fail."""

from __future__ import annotations

import numpy as np
import pytest

from batchchol.backends import Backend, get_backend
from kernelgen import KernelSpec

from ....covering import Choice
from ....kernel_runs import layout_of
from ....matrices import wishart, with_bad_pivots
from .test_block_device import REPETITIONS, built_on_a_gpu, check, factored
from .test_strip import DESIGN, case_id, spec_of, strip_spec


@pytest.mark.parametrize(
    "spec",
    [
        strip_spec(17, warps=2, stride=8),
        strip_spec(37, warps=6, ahead=1, blocks=2, order="row", in_place=True),
        strip_spec(48, warps=12, uplo="upper", pdl=True),
    ],
    ids=lambda spec: spec.name,
)
def test_every_block_has_several_groups(cuda: Backend, spec: KernelSpec, request: pytest.FixtureRequest) -> None:
    layout = layout_of(spec, spec.schedule.stride)
    check(cuda, spec, layout, 10, REPETITIONS[request.node.callspec.params["cuda"]])


@pytest.fixture(scope="module")
def built() -> Backend:
    """The backend of a real GPU, with the kernels of the design."""
    return built_on_a_gpu(spec_of(choice)[0] for choice in DESIGN)


@pytest.mark.gpu
@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values_on_a_gpu(built: Backend, choice: Choice) -> None:
    spec, chunk = spec_of(choice)
    check(built, spec, layout_of(spec, chunk), groups=9)


@pytest.mark.gpu
@pytest.mark.parametrize("value", [-1.0, -0.0, 0.0, np.nan, -np.inf])
@pytest.mark.parametrize("n", [37, 128])
def test_failing_members_on_a_gpu(n: int, value: float) -> None:
    """In every row; the good ones have the bits that they have among good ones."""
    backend, spec, batch = get_backend("cuda"), strip_spec(n, warps=20, ahead=1), 3 * 128 * 20 + 3
    a = wishart(1000, n).astype(np.float32)[np.arange(batch) % 1000]
    minors = np.where(np.arange(batch) % 3 == 1, np.arange(batch) // 3 % n + 1, 0)
    good, _ = factored(backend, spec, a)
    failed, info = factored(backend, spec, with_bad_pivots(a, minors, value))
    assert np.array_equal(info, minors)
    assert np.array_equal(failed[minors == 0], good[minors == 0])
