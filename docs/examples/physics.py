"""A step of many rigid-body worlds: one fused solve with each world's mass matrix.

Physics engines that run thousands of worlds side by side, for reinforcement learning, solve M(q) a = f for the
accelerations of n = 6 … 64 joints in each of 8,192 worlds, once or more a step. M is symmetric positive definite and
the factor is not needed: `solve_ex` factors and solves in one kernel, never writes it, and does not wait for the GPU.

    python docs/examples/physics.py --n 32 --worlds 8192
    python docs/examples/physics.py --n 32 --worlds 8192 --backend cuda
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import batchchol


def chains(worlds: int, n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mass matrices (worlds, n, n) of chains of n links at random angles, and forces (worlds, n).

    Planar links of unit length and mass, with angles theta from a fixed axis: of the links behind joint j >= i, M_ij
    has cos(theta_i - theta_j) for each, half of it for link j itself, and M_ii has 1/3 for link i.
    """
    rng = np.random.default_rng(seed)
    theta = rng.uniform(-np.pi, np.pi, (worlds, n))
    behind = n - np.maximum.outer(np.arange(n), np.arange(n)) - 0.5
    mass = behind * np.cos(theta[:, :, None] - theta[:, None, :]) - np.eye(n) / 6
    return mass.astype(np.float32), rng.normal(size=(worlds, n)).astype(np.float32)


def solved(mass: Any, force: Any) -> Any:
    """The solutions, without the info that says which of them mean nothing."""
    return batchchol.solve_ex(mass, force).x


def accelerations(mass: Any, force: Any, solve: Callable[..., Any] = solved) -> Any:
    """Of every world; on a GPU with its arrays and `solve`."""
    return solve(mass, force)


def on_gpu() -> tuple[Any, Any]:
    """What brings arrays to the GPU, and back."""
    import torch

    return partial(torch.as_tensor, device="cuda"), lambda a: a.cpu().numpy()


def main() -> None:
    """Solve, and print how long it took and how well it fits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=32, help="links of a chain")
    parser.add_argument("--worlds", type=int, default=8192)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    mass, force = chains(given.worlds, given.n)
    asarray, asnumpy = on_gpu() if given.backend == "cuda" else (np.asarray, np.asarray)
    there = asarray(mass), asarray(force)
    asnumpy(accelerations(*there))  # the first call compiles
    begin = time.perf_counter()
    for _ in range(given.steps):
        last = accelerations(*there)
    found = asnumpy(last)
    taken = (time.perf_counter() - begin) / given.steps
    off = np.abs(np.einsum("wij,wj->wi", mass, found, dtype=np.float64) - force).max()
    print(f"{given.worlds:,} worlds of n = {given.n}: {1e3 * taken:.3f} ms a step; residual {off:.1e}")


if __name__ == "__main__":
    main()
