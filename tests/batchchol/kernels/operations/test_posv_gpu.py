"""Kernels of GPUs that factor and solve at once, emulated, against LAPACK in float64."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from math import inf, prod
from typing import Any

import numpy as np
import pytest

from batchchol.batches.layouts import array_shape, stride
from batchchol.operations.posv import oracle, ratio_bound, ratios
from kernelgen import KernelSpec, Layout, SpecError, generate

from ....covering import Choice, covering_design
from ....emulation.checks import CompiledTogether, spec_of
from ....emulation.kernels import EmulatedKernel
from ....emulation.programs import EmulationError
from ....fenced_memory import sparse_zeros
from ....kernel_runs import Array, Solved, make_spec, run_posv
from ....matrices import DATA, UNIT_ROUNDOFF, lapack_factor, with_bad_pivots
from ....matrix_kinds import make
from ....offsets import element_offset

posv_spec = partial(make_spec, op="posv", target="cuda")

FACTORS: Mapping[str, Sequence[Any]] = {
    # Several matrices to a warp's read, one, and parts of one; whole tiles and others; rows that go back.
    "n": (1, 2, 3, 5, 8, 17, 21),
    "nb": (1, 3, 4),
    "rhs": (1, 2, 4),
    "unroll": ("tiles", "full"),
    "staged": (None, True),
    # An integer is the chunk of the chunked layout.
    "layout": ("canonical", "interleaved", 3, 32, 64),
    "constant_chunk": (False, True),
    "order": ("row", "col"),
    "uplo": ("lower", "upper"),
    "dtype": ("float32", "float64"),
    "math": ("ieee", "fast"),
    "threads": (32, 64),
    "pdl": (None, True),
    "in_place": (False, True),
    # Fewer than a warp, whole warps, and some more.
    "batch": (1, 37, 64, 75),
}
CONSTRAINED = ("n", "nb", "rhs", "unroll", "staged", "layout", "constant_chunk")
FORWARD_BOUND = 1.0


def cost_of(choice: Choice) -> float:
    """What running a choice costs; infinite for what is refused."""
    try:
        spec_of({"op": "posv", "math": "fast"} | choice)
    except SpecError:
        return inf
    # A layout that is no integer has no chunk to be constant.
    odd = choice["constant_chunk"] and not isinstance(choice["layout"], int)
    return inf if odd else choice["n"] ** 2 * (choice["rhs"] + 1) + 100


def kernel_spec(choice: Choice) -> tuple[KernelSpec, int | None]:
    """The spec of a choice, and its chunk."""
    return spec_of({name: value for name, value in choice.items() if name != "in_place"} | {"op": "posv"})


def case_id(choice: Choice) -> str:
    return f"{kernel_spec(choice)[0].name}-{choice['batch']}"


def system(n: int, batch: int, nrhs: int, dtype: str, data: str = "wishart") -> tuple[Array, Array]:
    """Matrices and right-hand sides, rounded to a dtype."""
    b = np.random.default_rng((n, batch)).standard_normal((batch, n, nrhs))
    return DATA[data](batch, n).astype(dtype), b.astype(dtype)


DESIGN = sorted(covering_design(FACTORS, CONSTRAINED, cost_of), key=lambda each: (each["math"], each["dtype"]))
emulated = CompiledTogether(kernel_spec(choice)[0] for choice in DESIGN)


@pytest.mark.parametrize("choice", DESIGN, ids=case_id)
def test_every_pair_of_values(choice: Choice) -> None:
    (spec, chunk), batch = kernel_spec(choice), choice["batch"]
    n, dtype = spec.problem.n, spec.problem.dtype
    for place, nrhs in enumerate((1, choice["rhs"] + 1, 2 * choice["rhs"])):
        a, b = system(n, batch, nrhs, dtype, list(DATA)[place % 2])
        solved = run_posv(spec, a, b, chunk, solver=emulated(spec), in_place=choice["in_place"])
        assert not solved.info.any()
        assert ratios(a, b, solved.x).max() <= ratio_bound(n, spec.problem.math), nrhs
    expected = oracle(a, b)
    away = np.linalg.norm(solved.x - expected, axis=(1, 2)) / np.linalg.norm(expected, axis=(1, 2))
    assert (away / ((3 * n + 1) * UNIT_ROUNDOFF[dtype] * np.linalg.cond(a.astype(float)))).max() <= FORWARD_BOUND


# ---- The same bits ----

N = 20
# The factor in registers, in shared memory, first rows of it there, and all of it, of packed batches and of arrays.
PLACES: Mapping[str, KernelSpec] = {
    "registers": posv_spec(N, 1, unroll="full"),
    "rows that go back": posv_spec(N, 1, unroll="full", staged=True, threads=64),
    "tiles": posv_spec(N, 4, layout="interleaved"),
    "arrays": posv_spec(N, 8, layout="canonical", order="row"),
    "arrays, rows that go back": posv_spec(N, 1, unroll="full", staged=True, layout="canonical", order="row"),
}
placed = CompiledTogether(PLACES.values())
every_place = pytest.mark.parametrize("place", PLACES)


def run(place: str, a: Array, b: Array, **how: Any) -> Solved:
    return run_posv(PLACES[place], a, b, solver=placed(PLACES[place]), **how)


@cache
def solved() -> tuple[Array, Array, Array]:
    """Matrices, right-hand sides and their solutions."""
    a, b = system(N, 70, 3, "float32")
    return a, b, run("tiles", a, b).x


@every_place
def test_a_solution_depends_on_nothing_but_its_own_matrix_and_right_hand_side(place: str) -> None:
    """Not on where the factor is, on others, on where it stands among them, nor on where the arrays begin."""
    a, b, x = solved()
    for few, nrhs in ((70, 3), (33, 1), (1, 2)):
        for offset in (0, 4):
            some = run(place, a[-few:], b[-few:, :, -nrhs:], offset=offset)
            assert some.x.tobytes() == x[-few:, :, -nrhs:].tobytes(), (few, nrhs, offset)


@every_place
@pytest.mark.parametrize("value", [-1.0, 0.0, np.nan])
def test_info(place: str, value: float) -> None:
    """The first bad pivot's number, wherever it is; the neighbours have the bits that they have without it."""
    a, b, x = solved()
    minors = np.arange(70) % 3 % 2 * (np.arange(70) // 3 % N + 1)
    bad = run(place, with_bad_pivots(a, minors, value), b)
    assert np.array_equal(bad.info, minors)
    assert bad.x[minors == 0].tobytes() == x[minors == 0].tobytes()


def test_the_second_of_two_bad_pivots_is_not_told() -> None:
    a, b, _ = solved()
    bad = a.copy()
    bad[5, 7, 7] = bad[5, 12, 12] = -1
    assert run("registers", bad, b).info[5] == 8


# ---- Hard matrices ----


@pytest.mark.parametrize("math", ["ieee", "fast"])
def test_hard_matrices(math: str) -> None:
    for n in (1, 2, 5):
        spec = posv_spec(n, 1, unroll="full", math=math, layout="interleaved")
        kernel = EmulatedKernel.of(spec)
        for kind in ("condition 1e6", "graded", "badly scaled"):
            a = make(kind, np.random.default_rng(7), 100, n, "float32")
            good = a[lapack_factor(a)[1] == 0]
            b = np.random.default_rng(8).standard_normal((len(good), n, 1)).astype(np.float32)
            solved = run_posv(spec, good, b, solver=kernel)
            fine = solved.info == 0
            assert fine.mean() > 0.9, kind
            assert ratios(good[fine], b[fine], solved.x[fine]).max() <= ratio_bound(n, math), kind


# ---- Batches of more than 2**32 ----


@pytest.mark.parametrize("layout", [Layout.canonical(), Layout.interleaved(), Layout.chunked(32)], ids=str)
def test_last_matrices_of_a_batch_past_32_bits(layout: Layout) -> None:
    """In memory that is mostly not there."""
    n, nrhs, batch, last = 2, 3, 2**32 + 77, 40
    spec = posv_spec(n, 1, rhs=2, layout=layout.kind, order=layout.order)
    a, b = system(n, last, nrhs, "float32")
    try:
        data = sparse_zeros(prod(array_shape(n, batch, layout)), np.float32)
        given, x = (sparse_zeros(batch * n * nrhs, np.float32) for _ in range(2))
        info = sparse_zeros(batch, np.int32)
    except OSError as error:
        pytest.skip(f"needs 290 GB of addresses, not of memory: {error}")
    for m, i, j in np.ndindex(last, n, n):
        data[element_offset(n, batch, layout, batch - last + m, i, j)] = a[m, i, j]
    given[-b.size :] = b.ravel()
    info[-last:] = -1
    kernel = EmulatedKernel.of(spec)
    blocks = ((batch - last) // 32, -(-batch // 32))
    pointers = [each.ctypes.data for each in (data, given, x, info)]
    kernel.program.launch_unfenced(kernel.source, batch, *pointers, nrhs, stride(batch, layout), batch, blocks=blocks)
    assert not info[-last:].any()
    assert ratios(a, b, x[-b.size :].reshape(b.shape)).max() <= ratio_bound(n, "ieee")


# ---- One line changed ----

MUTANTS: Mapping[str, tuple[str, str, str]] = {
    "an update dropped": ("registers", r"l\[i\]\[j\] -= l\[i\]\[p\] \* l\[j\]\[p\];", "if (p != 3) \\g<0>"),
    "a row that does not go back": ("rows that go back", r"if \(j < RETURNED\)", "if (j < RETURNED - 1)"),
    "the forward solve without a row": ("registers", r"y\[0\]\[j\] -= y\[0\]\[p\] \* l\[j\]\[p\];", "if (p) \\g<0>"),
    "a tile's update of another column": (
        "tiles",
        r"read_words\(b, &AT\(l, k \+ j, p\)\);",
        "read_words(b, &AT(l, k + j, p + 1));",
    ),
    "the last right-hand sides left out": ("tiles", r"c < nrhs; c \+= RHS", "c + 1 < nrhs; c += RHS"),
    "no wait for the others": ("arrays", r"wait_for_fetched\(\);\n    __syncwarp\(\);", "wait_for_fetched();"),
    "no wait before solutions are written": ("tiles", r"__syncwarp\(\);\n    store_columns", "store_columns"),
    "a matrix left out": ("arrays", r"k < WARP; k \+= TOGETHER", "k < WARP - 1; k += TOGETHER"),
    "a group of columns not waited for": ("rows that go back", r"wait_for_groups<2>\(\)", "wait_for_groups<3>()"),
}


@pytest.mark.parametrize("change", MUTANTS)
def test_the_source_with_one_line_changed_fails(change: str) -> None:
    place, pattern, replacement = MUTANTS[change]
    source = generate(PLACES[place])
    text, count = re.subn(pattern, replacement, source.text, count=1)
    assert count == 1, f"there is no {pattern}"
    a, b, x = solved()
    try:
        kernel = EmulatedKernel.of(PLACES[place], replace(source, text=text))
        assert run_posv(PLACES[place], a, b, solver=kernel).x.tobytes() != x.tobytes()
    except EmulationError:
        pass


# ---- What cannot be built ----


@pytest.mark.parametrize(
    ("n", "nb", "choices", "named"),
    [
        (8, 2, {"unroll": "full"}, "nb"),
        (8, 2, {"looking": "right"}, "looking"),
        (8, 2, {"threads": 48}, "threads"),
        (59, 4, {}, "threads"),
    ],
)
def test_refused(n: int, nb: int, choices: Mapping[str, Any], named: str) -> None:
    with pytest.raises(SpecError, match=f"^{named}="):
        posv_spec(n, nb, **choices)
