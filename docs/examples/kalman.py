"""Many Kalman filters at once: each step of each filter solves a small system with its innovation's covariance.

With the state x and its covariance P, a step predicts x = F x, P = F P F^T + Q, and then takes a measurement z in:

    S = H P H^T + R,   K = P H^T S^-1,   x += K (z - H x),   P -= K H P.

S is symmetric positive definite of the order of the measurement; K^T = S^-1 H P is one batched solve with as many
right-hand sides as the state has elements.

    python docs/examples/kalman.py --n 16 --filters 10000
    python docs/examples/kalman.py --n 16 --filters 10000 --backend cuda
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import batchchol


class Model(NamedTuple):
    """Constant velocity in n / 2 dimensions, of which the places are measured."""

    f: Any
    q: Any
    h: Any
    r: Any


def constant_velocity(n: int, step: float = 0.1, noise: float = 0.5) -> Model:
    """The model of states (places, velocities) of `n` elements, an even number."""
    half, eye = n // 2, np.eye(n // 2, dtype=np.float32)
    zero = np.zeros((half, half), np.float32)
    f = np.block([[eye, step * eye], [zero, eye]])
    q = np.block([[step**3 / 3 * eye, step**2 / 2 * eye], [step**2 / 2 * eye, step * eye]])
    return Model(*(each.astype(np.float32) for each in (f, 0.1 * q, np.hstack([eye, zero]), noise**2 * eye)))


def measurements(model: Model, filters: int, steps: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """True states (steps, filters, n) and what is measured of them, (steps, filters, n / 2)."""
    rng, n, m = np.random.default_rng(seed), len(model.f), len(model.r)
    driven, measured = np.linalg.cholesky(model.q + 1e-9 * np.eye(n)), np.linalg.cholesky(model.r)
    x, states = rng.normal(size=(filters, n)), []
    for _ in range(steps):
        x = x @ model.f.T + rng.normal(size=(filters, n)) @ driven.T
        states.append(x)
    true = np.asarray(states, np.float32)
    z = true @ model.h.T + rng.normal(size=(steps, filters, m)) @ measured.T
    return true, z.astype(np.float32)


def step(model: Model, x: Any, p: Any, z: Any, solve: Any) -> tuple[Any, Any]:
    """States (filters, n) and covariances (filters, n, n) after a prediction and a measurement (filters, m)."""
    f, q, h, r = model
    # Covariances are symmetric: f p is (p f^T)^T.
    x, p = x @ f.T, times(times(p, f.T).swapaxes(1, 2), f.T) + q
    hp = times(p, h.T).swapaxes(1, 2)
    k_transposed = solve(times(hp, h.T) + r, hp)
    x = x + ((z - x @ h.T)[:, None, :] @ k_transposed)[:, 0]
    p = p - k_transposed.swapaxes(1, 2) @ hp
    # Rounding makes it a little asymmetric, and that grows from step to step.
    return x, (p + p.swapaxes(1, 2)) / 2


def times(matrices: Any, one: Any) -> Any:
    """Matrices (filters, m, n) times one, as one large product: small ones take libraries several times as long."""
    rows = matrices.reshape(-1, matrices.shape[-1]) @ one
    return rows.reshape(*matrices.shape[:-1], one.shape[-1])


def start(n: int, filters: int) -> tuple[np.ndarray, np.ndarray]:
    """The filters' states and covariances before the first step: nothing is known."""
    return np.zeros((filters, n), np.float32), np.repeat(10 * np.eye(n, dtype=np.float32)[None], filters, 0)


def run(model: Model, x: Any, p: Any, z: Any, solve: Any = batchchol.solve) -> list[Any]:
    """The filters' states after each step, (steps, filters, n); on a GPU with its arrays and `solve`."""
    found = []
    for measured in z:
        x, p = step(model, x, p, measured, solve)
        found.append(x)
    return found


def on_gpu() -> tuple[Any, Any, Any]:
    """What runs filters by the kernel of kalman_gpu.py, and what brings arrays to the GPU and back."""
    import kalman_gpu
    import torch

    return kalman_gpu.run, partial(torch.as_tensor, device="cuda"), lambda a: a.cpu().numpy()


def main() -> None:
    """Run filters, and print how far off they are."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=16, help="elements of the state, even")
    parser.add_argument("--filters", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    model = constant_velocity(given.n)
    true, z = measurements(model, given.filters, given.steps)
    work, asarray, asnumpy = on_gpu() if given.backend == "cuda" else (run, np.asarray, np.asarray)
    there, first = Model(*map(asarray, model)), [asarray(each) for each in start(given.n, given.filters)]
    measured = asarray(z)
    work(there, *first, measured[:1])  # the first call compiles
    begin = time.perf_counter()
    last = asnumpy(work(there, *first, measured)[-1])
    taken = (time.perf_counter() - begin) / given.steps
    places = given.n // 2
    error = np.sqrt(np.mean((last[:, :places] - true[-1, :, :places]) ** 2))
    raw = np.sqrt(np.mean((z[-1] - true[-1, :, :places]) ** 2))
    print(f"{given.filters:,} filters of n = {given.n}: {1e3 * taken:.2f} ms a step")
    print(f"error of places: {error:.3f}; of what was measured: {raw:.3f}")


if __name__ == "__main__":
    main()
