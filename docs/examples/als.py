"""Recommendations from implicit feedback: alternating least squares, of which every step is a batch of solves.

Hu, Koren and Volinsky (ICDM 2008): user u saw item i with confidence c_ui, where nothing is known c is 1. With the
items' factors Y fixed, the best factors of user u solve

    (Y^T Y + sum_i (c_ui - 1) y_i y_i^T + regularization I) x_u = sum_i c_ui y_i,

a system of order 16 … 128 for each user, then one for each item, and so on: summed by als_cores.py, or on a GPU by
als_gpu.py, and solved by batchchol. Run it on a file of MovieLens, or on
ratings that are made up in the shape of MovieLens-25M (162,541 users, 59,047 films, 25,000,095 ratings):

    python docs/examples/als.py --ratings ratings.csv --factors 32
    python docs/examples/als.py --scale 0.01 --backend cuda
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import batchchol

USERS, ITEMS, RATINGS = 162_541, 59_047, 25_000_095


def read_ratings(path: Path) -> sparse.csr_matrix:
    """Users × items of a file in MovieLens' format: userId,movieId,rating,timestamp below a heading."""
    columns = np.loadtxt(path, delimiter=",", skiprows=1, usecols=(0, 1, 2), dtype=np.float32)
    users, items = (np.unique(columns[:, column], return_inverse=True)[1] for column in (0, 1))
    return sparse.csr_matrix((columns[:, 2], (users, items)), dtype=np.float32)


def made_up_ratings(scale: float = 1.0, seed: int = 0) -> sparse.csr_matrix:
    """Ratings with the shape of MovieLens-25M, times `scale`: few items are popular, few users busy."""
    rng = np.random.default_rng(seed)
    users, items, count = (max(8, int(scale**0.5 * each)) for each in (USERS, ITEMS, RATINGS * scale**0.5))
    busy, popular = rng.lognormal(0, 1.2, users), 1 / np.arange(10, items + 10)
    who = rng.choice(users, count, p=busy / busy.sum())
    # Two genres: of users like of items, and three in four ratings are of one's own.
    what = rng.choice(items, count, p=popular / popular.sum())
    own = rng.random(count) < 0.75
    what = np.where(own, np.minimum(what // 2 * 2 + who % 2, items - 1), what)
    values = rng.integers(1, 11, count).astype(np.float32) / 2
    ratings = sparse.csr_matrix((values, (who, what)), shape=(users, items), dtype=np.float32)
    ratings.data = np.minimum(ratings.data, 5)
    return ratings


def train(
    ratings: sparse.csr_matrix,
    factors: int,
    iterations: int,
    *,
    backend: str = "cpu",
    solve: Any = None,
    steps: Any = None,
    regularization: float = 0.05,
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """Factors of users and items, and the seconds that each iteration took.

    `steps` makes the half steps, of users' rows and of items', that are called with fixed factors and where to write
    what is found; default: `own_steps`.
    """
    asarray, asnumpy = np.asarray, np.asarray
    if backend == "cuda":
        import torch

        asarray, asnumpy = partial(torch.as_tensor, device="cuda"), lambda a: a.cpu().numpy()
    make = steps or partial(own_steps, backend)
    step_of_users, step_of_items = make(ratings, factors, regularization, solve or batchchol.solve)
    rng = np.random.default_rng(0)
    users, items = (asarray(rng.normal(0, 0.1, (each, factors)).astype(np.float32)) for each in ratings.shape)
    taken = []
    for _ in range(iterations):
        begin = time.perf_counter()
        step_of_users(items, users)
        step_of_items(users, items)
        asnumpy(items[:1])  # a GPU is done when this is there
        taken.append(time.perf_counter() - begin)
    return asnumpy(users), asnumpy(items), taken


def own_steps(backend: str, ratings: sparse.csr_matrix, factors: int, regularization: float, solve: Any) -> list[Any]:
    """The half steps of users and of items, by als_cores.py or als_gpu.py."""
    own = import_module({"cpu": "als_cores", "cuda": "als_gpu"}[backend])
    sides = (own.placed(each, factors) for each in (ratings, ratings.T.tocsr()))
    return [partial(own.half_step, side, regularization=regularization, solve=solve) for side in sides]


def loss(ratings: sparse.csr_matrix, users: np.ndarray, items: np.ndarray, regularization: float = 0.05) -> float:
    """What the steps make smaller: the weighted squares of all users × items, and the regularization."""
    seen = ratings.tocoo()
    predicted = np.einsum("ij,ij->i", users[seen.row], items[seen.col])
    unseen = np.sum((users.T @ users) * (items.T @ items), dtype=np.float64)
    of_seen = np.sum(seen.data * (1 - predicted) ** 2 - predicted**2, dtype=np.float64)
    return float(unseen + of_seen + regularization * (np.sum(users**2) + np.sum(items**2)))


def main() -> None:
    """Train, and print what each iteration took and came to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ratings", type=Path, help="a ratings.csv of MovieLens; default: made up")
    parser.add_argument("--scale", type=float, default=1.0, help="of ratings that are made up (default: 1)")
    parser.add_argument("--factors", type=int, default=32)
    parser.add_argument("--iterations", type=int, default=5)
    parser.add_argument("--backend", choices=("cpu", "cuda"), default="cpu")
    given = parser.parse_args()
    ratings = read_ratings(given.ratings) if given.ratings else made_up_ratings(given.scale)
    print(f"{ratings.shape[0]:,} users, {ratings.shape[1]:,} items, {ratings.nnz:,} ratings")
    users, items, taken = train(ratings, given.factors, given.iterations, backend=given.backend)
    print("seconds of each iteration:", " ".join(f"{each:.3f}" for each in taken))
    print(f"loss: {loss(ratings, users, items):.6g}")


if __name__ == "__main__":
    main()
