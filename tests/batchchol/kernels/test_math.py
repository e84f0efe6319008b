"""math=: the class of accuracy of a call, for arrays and for batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import Batch, cholesky, default_spec, factor
from batchchol.plan import prepare

Spd = Callable[..., NDArray[Any]]

N = 5


def test_the_math_is_that_which_is_asked_for(spd: Spd) -> None:
    """Also of a batch that was factored in another one before, into a new one and into the same."""
    batch = Batch.from_dense(spd(40, N))
    out = batch.like()
    for _ in range(2):
        for math, expected in ((None, "ieee"), ("fast", "fast"), ("ieee", "ieee")):
            assert prepare(batch, None, None, math).choice.spec.problem.math == expected
            assert prepare(batch, None, out, math).choice.spec.problem.math == expected
    np.testing.assert_allclose(
        factor(batch, math="fast").L.to_dense(), cholesky(batch.to_dense()), rtol=1e-5, atol=1e-5
    )
    by_spec = factor(batch, default_spec(N, chunk=batch.layout.chunk, math="fast")).L
    np.testing.assert_array_equal(factor(batch, math="fast").L.to_dense(), by_spec.to_dense())


def test_a_math_that_there_is_not_or_that_is_not_the_specs_is_refused(spd: Spd) -> None:
    dense = spd(40, N)
    batch = Batch.from_dense(dense)
    canonical = default_spec(N, layout="canonical", order="row")
    for call in (partial(factor, batch), partial(cholesky, dense), partial(cholesky, dense[:0])):
        with pytest.raises(ValueError, match="math: got 'exact', expected one of 'ieee', 'fast'"):
            call(math="exact")
    for call in (partial(factor, batch, default_spec(N)), partial(cholesky, dense, spec=canonical)):
        with pytest.raises(ValueError, match="math: got 'fast' beside a spec of 'ieee'"):
            call(math="fast")
        call(math="ieee")
