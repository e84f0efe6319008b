"""One matrix on a block of threads, its panel in shared memory, emulated: every order of evaluation and tile size."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSource, SpecError
from kernelgen.emit.families.single import generate_single_panel

from ....emulation.checks import FORWARD_BOUND
from ....emulation.programs import launch
from ....kernel_runs import UNTOUCHED
from ....matrices import reference

# n, dtype, math, looking, nb: a corner of a tile, and whole ones.
CASES = (
    (75, "float64", "ieee", "left", 8),
    (21, "float32", "ieee", "right", 8),
    (40, "float32", "ieee", "top", 8),
    (80, "float32", "fast", "right", 16),
    (100, "float32", "ieee", "left", 32),
    (70, "float32", "fast", "top", 32),
)


def factor(source: KernelSource, a: np.ndarray, *, in_place: bool = False) -> tuple[np.ndarray, int]:
    """The factor and info of a symmetric matrix of which one triangle is given."""
    given = np.where(np.tri(len(a), dtype=bool), a, np.nan).T.copy(order="C")
    l, info = given if in_place else np.full_like(given, UNTOUCHED), np.full(1, -7, np.int32)
    launch(source, 1, given, l, info, np.int64(1), np.int64(1))
    return l.T, int(info[0])


@pytest.mark.parametrize(("n", "dtype", "math", "looking", "nb"), CASES)
def test_factors_and_info(n: int, dtype: str, math: str, looking: str, nb: int) -> None:
    expected = reference("wishart", 1, n, dtype)
    source = generate_single_panel(n, dtype, math, looking, nb)
    l, info = factor(source, expected.a[0].astype(dtype))
    assert info == 0
    assert ratios(expected.a, l[None]).max() <= RATIO_BOUND[math]
    assert expected.distance(l[None]).max() <= FORWARD_BOUND[math]
    assert not np.triu(l, 1).any()
    assert np.array_equal(factor(source, expected.a[0].astype(dtype), in_place=True)[0], l)
    for bad in (1, nb + 2, n):
        l, info = factor(source, failing(n, bad).astype(dtype))
        assert info == bad
        factored = (np.eye(n) + np.diag(np.ones(n - 1), -1))[:, : bad - 1]
        assert np.allclose(l[:, : bad - 1], factored, atol=1e-5 if math == "fast" else 0)


def failing(n: int, bad: int) -> np.ndarray:
    """Tridiagonal, so that the factor is known: ones on the diagonal and below it, to the pivot that is -1."""
    a = np.diag(np.full(n, 2)) + np.diag(np.ones(n - 1), 1) + np.diag(np.ones(n - 1), -1)
    a[0, 0] = 1
    a[bad - 1, bad - 1] -= 2
    return a


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((1025,), "n=1025 .*from 1 to 1024"),
        ((1024, "float64"), "n=1024 .* bytes of shared memory"),
        ((40, "float16"), "dtype='float16'"),
        ((40, "float32", "exact"), "math='exact'"),
        ((40, "float32", "ieee", "down"), "looking='down'"),
        ((40, "float32", "ieee", "top", 12), "nb=12 .*8, 16, 32"),
    ],
)
def test_refusals(arguments: tuple[object, ...], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        partial(generate_single_panel, *arguments)()  # type: ignore[arg-type]
