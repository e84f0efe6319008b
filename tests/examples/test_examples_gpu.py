"""The applications' kernels for GPUs, which are in Triton: they compute what the programs for CPUs do."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from .programs import example

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install -e '.[torch]'")
WHERE = "cuda" if torch.cuda.is_available() else "cpu"
# Without a GPU Triton's interpreter runs the kernels; it looks for this when it is imported, and at each kernel.
os.environ["TRITON_INTERPRET"] = str(int(WHERE == "cpu"))
pytest.importorskip("triton", reason="Triton, which PyTorch for GPUs brings, is not installed")
pytestmark = pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION is unset")


def there(array: Any) -> Any:
    """An array where the kernels run."""
    return torch.as_tensor(array, device=WHERE)


@pytest.mark.parametrize("factors", [5, 32])
def test_least_squares_take_the_best_factors(factors: int, monkeypatch: pytest.MonkeyPatch) -> None:
    als_gpu = example("als_gpu")
    # Rows without ratings, with as many as a piece has, and longer ones; two slices.
    monkeypatch.setattr(als_gpu, "PIECE", 40)
    monkeypatch.setattr(als_gpu, "SLICE_ELEMENTS", 5 * factors**2)
    rng, lengths = np.random.default_rng(3), [0, 1, 40, 41, 95, 7, 120, 33]
    begins, items = np.cumsum([0, *lengths]), [rng.choice(150, each, replace=False) for each in lengths]
    values = rng.integers(1, 11, begins[-1]).astype(np.float32) / 2
    ratings = sparse.csr_matrix((values, np.concatenate(items), begins), shape=(8, 150))
    fixed = rng.normal(0, 0.3, (150, factors)).astype(np.float32)
    found = there(np.full((8, factors), np.nan, np.float32))
    als_gpu.half_step(als_gpu.placed(ratings, factors, WHERE), there(fixed), found, 0.05, torch.linalg.solve)
    y, dense = fixed.astype(np.float64), ratings.toarray().astype(np.float64)
    a = np.einsum("if,ui,ig->ufg", y, np.where(dense > 0, dense, 1), y) + 0.05 * np.eye(factors)
    want = np.linalg.solve(a, (dense @ y)[:, :, None])[:, :, 0]
    np.testing.assert_allclose(found.cpu().numpy(), want, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("n", [6, 34])
def test_filters_are_those_of_the_cpu(n: int) -> None:
    kalman, kalman_gpu = example("kalman"), example("kalman_gpu")
    model = kalman.constant_velocity(n)
    given = *kalman.start(n, 2), kalman.measurements(model, 2, 4)[1]
    on_gpu = kalman.Model(*map(there, model)), *map(there, given)
    found = kalman_gpu.run(*on_gpu, torch.linalg.inv)
    for states, want in zip(found, kalman.run(model, *given), strict=True):
        np.testing.assert_allclose(states.cpu().numpy(), want, rtol=1e-4, atol=1e-4)
