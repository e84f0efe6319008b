"""The warp family on a device: every pair of values, matrices enough for every multiprocessor to be busy."""

from __future__ import annotations

import numpy as np
import pytest

from batchchol.backends import Backend, get_backend
from kernelgen import KernelSpec

from ....covering import Choice
from ....kernel_runs import layout_of
from ....matrices import wishart, with_bad_pivots
from .test_block_device import REPETITIONS, built_on_a_gpu, check, factored
from .test_warp import DESIGN, case_id, spec_of, warp_spec


@pytest.mark.parametrize(
    "spec",
    [
        warp_spec(17, matrices=4, math="fast", stride=4),
        warp_spec(20, matrices=2, teams=4, layout="canonical", order="row", in_place=True, math="fast"),
        warp_spec(40, warps=2, teams=1, layout="interleaved", uplo="upper"),
    ],
    ids=lambda spec: spec.name,
)
def test_every_multiprocessor_has_teams(cuda: Backend, spec: KernelSpec, request: pytest.FixtureRequest) -> None:
    layout = layout_of(spec, spec.schedule.stride)
    check(cuda, spec, layout, 2, REPETITIONS[request.node.callspec.params["cuda"]])


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
    minors = np.where(np.arange(1000) % 3 == 1, np.arange(1000) % 33 + 1, 0)
    a = with_bad_pivots(wishart(1000, 33).astype(np.float32), minors, value)
    _, info = factored(get_backend("cuda"), warp_spec(33, matrices=2, math=math), a)
    assert np.array_equal(info, minors)
