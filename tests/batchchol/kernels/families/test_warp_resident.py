"""Warps that go on to further matrices, emulated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from kernelgen import generate

from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import compile_program
from ....kernel_runs import make_spec, run_kernel
from ....matrices import dominant

warp_spec = partial(make_spec, family="warp", target="cuda", layout="canonical", math="ieee")


@pytest.mark.parametrize(
    "choices",
    [
        {"n": 17, "order": "row", "matrices": 2, "teams": 2, "unroll": "full", "update": "tensor"},
        {"n": 17, "order": "row", "warps": 2, "teams": 1, "in_place": True},
        {"n": 9, "order": "col", "teams": 4},
    ],
)
def test_results_are_those_of_a_block_to_each_group(choices: Mapping[str, Any]) -> None:
    """Of as many blocks as a GPU has room for, of fewer, and of one to each group."""
    spec = warp_spec(resident=True, **choices)
    source = generate(spec)
    assert source.launch is not None
    a = dominant(21, spec.problem.n).astype(np.float32)
    a[5, 2, 2] = np.nan
    expected = run_kernel(warp_spec(**choices), a)
    program = compile_program((source,))
    for resident in (1, 3, 100):
        launched = replace(source, launch=replace(source.launch, resident=resident))
        run = run_kernel(spec, a, kernel=EmulatedKernel(spec, launched, program))
        assert np.array_equal(run.info, expected.info)
        assert np.array_equal(run.l, expected.l, equal_nan=True)
