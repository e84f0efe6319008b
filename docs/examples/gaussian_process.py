"""Hyperparameters of many Gaussian processes at once, by gradients of their likelihoods through a batched solve.

Each of a batch of small data sets (x, y) has its own length scale, signal and noise. The negative log marginal
likelihood is (y^T K^-1 y + log det K + n log 2 pi) / 2 with K = k(x, x) + noise I; one call solves and has the
determinant, and `jitter` repairs the matrices that rounding has made indefinite: nearly noiseless data do.

    python docs/examples/gaussian_process.py --n 32 --sets 1000
"""

from __future__ import annotations

import argparse
import math
import time

import torch

from batchchol.interop import torch as linalg


def data(sets: int, n: int, *, device: str = "cpu", seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Places (sets, n) in 0 … 1 and values (sets, n): sines of different frequencies, noise in half of the sets."""
    make = torch.Generator().manual_seed(seed)
    x = torch.rand(sets, n, generator=make).sort(-1).values
    frequency = 2 + 6 * torch.rand(sets, 1, generator=make)
    noise = torch.where(torch.arange(sets) % 2 == 0, 0.1, 0.0)[:, None]
    y = torch.sin(frequency * x) + noise * torch.randn(sets, n, generator=make)
    return x.to(device), y.to(device)


def negative_log_likelihood(
    x: torch.Tensor, y: torch.Tensor, parameters: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Of each data set, with the info and what was added to the diagonal; `parameters` (sets, 3) are logarithms."""
    scale, signal, noise = parameters.exp().unbind(-1)
    apart = (x[:, :, None] - x[:, None, :]) / scale[:, None, None]
    k = signal[:, None, None] * torch.exp(-apart.square() / 2)
    k = k + torch.diag_embed(noise[:, None].expand_as(y))
    solved, info, added = linalg.solve_ex(k, y, jitter="auto")
    repaired = k + torch.diag_embed(added[:, None].expand_as(y))
    logdet = linalg.slogdet_ex(repaired).logabsdet
    return ((y * solved).sum(-1) + logdet + y.shape[-1] * math.log(2 * math.pi)) / 2, info, added


def fit(x: torch.Tensor, y: torch.Tensor, steps: int = 100) -> tuple[torch.Tensor, list[float], int]:
    """Fitted parameters (sets, 3) as logarithms, the mean likelihood by step, and how many matrices were repaired."""
    start = torch.tensor([0.3, 1.0, 0.1]).log().repeat(len(x), 1).to(x)
    parameters = start.requires_grad_()
    optimizer = torch.optim.Adam([parameters], lr=0.05)
    history, repaired = [], 0
    for _ in range(steps):
        optimizer.zero_grad()
        values, info, added = negative_log_likelihood(x, y, parameters)
        # What could not be repaired has no gradient that means anything.
        mean = torch.where(info == 0, values, 0).mean()
        mean.backward()
        optimizer.step()
        history.append(mean.item())
        repaired += int((added > 0).sum())
    return parameters.detach(), history, repaired


def main() -> None:
    """Fit, and print how the likelihood went."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=32, help="points of a data set")
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    x, y = data(given.sets, given.n, device=given.device)
    fit(x, y, 1)  # the first step compiles the kernels
    begin = time.perf_counter()
    _, history, repaired = fit(x, y, given.steps)
    taken = (time.perf_counter() - begin) / given.steps
    print(f"{given.sets:,} sets of {given.n} points: {1e3 * taken:.1f} ms a step; {repaired:,} matrices repaired")
    print(f"negative log likelihood: {history[0]:.3f} at first, {history[-1]:.3f} in the end")


if __name__ == "__main__":
    main()
