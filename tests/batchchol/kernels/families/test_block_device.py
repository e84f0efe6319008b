"""The block family on a device: as many matrices as it takes for every block to be busy more than once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol.backends import Backend, get_backend
from batchchol.batches.batch import Batch
from kernelgen import KernelSpec, Layout, generate

from ....covering import Choice
from ....emulation import checks
from ....kernel_runs import layout_of, make_spec
from . import test_block, test_block_pipeline

# On a GPU a result may depend on the run; what is emulated does not, but for what was never written.
REPETITIONS = {"real": 4, "emulated": 2}

SPECS = [
    make_spec(n, nb, family="block", target="cuda", **choices)
    for n, nb, choices in (
        (33, 7, {"lanes": 8, "pipeline": 1, "early": 1, "blocks": 2, "math": "fast"}),
        (20, 8, {"lanes": 2, "pipeline": 2, "layout": "canonical", "order": "row", "in_place": True}),
        (24, 8, {"lanes": 16, "pipeline": 1, "early": 3, "layout": "interleaved", "in_place": True}),
        (17, 4, {"lanes": 4, "pipeline": 3, "early": 2, "uplo": "upper", "dtype": "float64"}),
        (17, 4, {"lanes": 4, "uplo": "upper", "dtype": "float64"}),
        (40, 8, {"lanes": 8, "pipeline": 1, "early": 4, "spare": 2, "math": "fast", "pdl": True}),
    )
]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_every_block_has_several_groups(cuda: Backend, spec: KernelSpec, request: pytest.FixtureRequest) -> None:
    check(cuda, spec, layout_of(spec), 5, REPETITIONS[request.node.callspec.params["cuda"]])


@pytest.fixture(scope="module")
def built() -> Backend:
    """The backend of a real GPU, with the kernels of both designs."""
    choices = [*test_block.DESIGN, *test_block_pipeline.DESIGN]
    return built_on_a_gpu(checks.spec_of(choice, "block")[0] for choice in choices)


@pytest.mark.gpu
@pytest.mark.parametrize("choice", [*test_block.DESIGN, *test_block_pipeline.DESIGN], ids=test_block.case_id)
def test_every_pair_of_values_on_a_gpu(built: Backend, choice: Choice) -> None:
    spec, chunk = checks.spec_of(choice, "block")
    check(built, spec, layout_of(spec, chunk), groups=3)


# A process of its own: a launch that fails loses the GPU's context to its process, and a wrong one may never end.
RUN_ALONE = """
from batchchol import Layout, get_backend
from tests.batchchol.kernels.families.test_block_device import FEW_WARPS
backend = get_backend("cuda")
batch = backend.empty(23, 8000, Layout.chunked(33))
backend.fill(batch, "wishart")
result, info = batch.copy(), backend.info(batch, FEW_WARPS)
backend.kernel(FEW_WARPS)(batch, result, info, threads=1)
assert not backend.host(info).any()
assert backend.check(batch, result.marked("upper"), info, "fast") >= 0
"""
# Two warps and a spare one: ptxas 13.0 had taken their columns for others (block_pipeline.cu.jinja says how).
FEW_WARPS = make_spec(
    23, 6, family="block", target="cuda", lanes=4, pipeline=1, early=3, spare=1, blocks=2, math="fast", uplo="upper"
)


@pytest.mark.gpu
def test_a_spare_warp_beside_early_columns_of_two_warps() -> None:
    subprocess.run([sys.executable, "-c", RUN_ALONE], check=True, cwd=Path(__file__).parents[4], timeout=300)


def built_on_a_gpu(specs: Iterable[KernelSpec]) -> Backend:
    """The backend of a real GPU, with kernels that are compiled together."""
    backend = get_backend("cuda")
    outcomes = backend.build(list(specs))
    assert {outcome.status for outcome in outcomes} == {"built"}
    return backend


def check(
    backend: Backend, spec: KernelSpec, layout: Layout, groups: int, repetitions: int = REPETITIONS["real"]
) -> None:
    """Each block of a whole GPU has several groups of matrices, and the last group is not complete."""
    launch = generate(spec).launch
    assert launch is not None
    matrices = launch.items * (launch.resident or 1) * int(backend.device()["multiprocessors"])
    batch = backend.empty(spec.problem.n, groups * matrices + 1, layout, spec.problem.dtype)
    for recipe in ("diagonally_dominant", "wishart"):
        backend.fill(batch, recipe)
        factors = [factor(backend, spec, batch) for _ in range(repetitions)]
        for factored, info in factors:
            assert backend.check(batch, factored.marked(spec.problem.uplo), info, spec.problem.math) >= 0
        bits = {np.asarray(backend.host(factored.data)).tobytes() for factored, _ in factors}
        assert len(bits) == 1, f"{recipe}: the result depends on the run"
        check_zeros(backend, spec, factors[0][0])


def factor(backend: Backend, spec: KernelSpec, batch: Batch) -> tuple[Batch, object]:
    """The factor and the info of one call; what is not written is that of the input."""
    result = batch.copy()
    info = backend.info(batch, spec)
    backend.kernel(spec)(result if spec.in_place else batch, result, info, threads=1)
    return result, info


def factored(backend: Backend, spec: KernelSpec, a: NDArray[np.floating]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Lower factors and infos of matrices, on the host."""
    result, info = factor(backend, spec, backend.from_dense(a, layout_of(spec, spec.schedule.stride)))
    return np.tril(np.asarray(backend.host(result.to_dense()))), np.asarray(backend.host(info))[: len(a)]


def check_zeros(backend: Backend, spec: KernelSpec, factored: Batch) -> None:
    if spec.layout == "canonical":
        lower = (spec.problem.uplo == "lower") == (spec.order == "row")
        whole = np.asarray(backend.host(factored.data))
        assert not (np.triu(whole, 1) if lower else np.tril(whole, -1)).any()
