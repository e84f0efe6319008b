"""Recommendations from implicit feedback: alternating least squares, of which every step is a batch of solves.

Hu, Koren and Volinsky (ICDM 2008): user u saw item i with confidence c_ui, where nothing is known c is 1. With the
items' factors Y fixed, the best factors of user u solve

    (Y^T Y + sum_i (c_ui - 1) y_i y_i^T + regularization I) x_u = sum_i c_ui y_i,

a system of order 16 … 128 for each user, then one for each item, and so on. Run it on a file of MovieLens, or on
ratings that are made up in the shape of MovieLens-25M (162,541 users, 59,047 films, 25,000,095 ratings):

    python docs/examples/als.py --ratings ratings.csv --factors 32
    python docs/examples/als.py --scale 0.01 --backend cuda
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

import batchchol

USERS, ITEMS, RATINGS = 162_541, 59_047, 25_000_095
SLICE_ELEMENTS = 1 << 19  # of the padded factors of a slice: they fit a core's cache


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


class Rows(NamedTuple):
    """Rows of about the same length, padded to the longest: what they rated (rows, length), and how confidently."""

    rows: Any
    columns: Any
    confidence: Any


def padded(ratings: sparse.csr_matrix, factors: int, asarray: Any, elements: int) -> list[Rows]:
    """All rows, the shortest first, as arrays that `asarray` makes; of what is padded the confidence is 0.

    A slice has that many `elements` of factors at most, or one row.
    """
    lengths = np.diff(ratings.indptr)
    order = np.argsort(lengths, kind="stable")
    parts, first = [], 0
    while first < len(order):
        # To twice the shortest: three quarters of what is computed, on average, are no padding.
        longest = max(2 * int(lengths[order[first]]), 8)
        last = int(np.searchsorted(lengths[order], longest, side="right"))
        last = min(last, first + max(1, elements // (longest * factors)))
        rows = order[first:last]
        begins, ends = ratings.indptr[rows, None], ratings.indptr[rows + 1, None]
        places = begins + np.arange(int((ends - begins).max()))
        there, places = places < ends, np.minimum(places, ratings.nnz - 1)
        confidence = np.where(there, ratings.data[places], np.float32(0))
        parts.append(Rows(asarray(rows), asarray(ratings.indices[places]), asarray(confidence)))
        first = last
    return parts


def half_step(
    parts: list[Rows], fixed: Any, found: Any, regularization: float, solve: Any, asarray: Any, share: Any = map
) -> None:
    """Write the best factors of the padded rows to `found`, with those of the columns `fixed`.

    `share` has a function work on each of the slices, as `map` does.
    """
    factors = fixed.shape[1]
    gram = fixed.T @ fixed + asarray(regularization * np.eye(factors, dtype=np.float32))

    def work(part: Rows) -> None:
        y = fixed[part.columns]
        more = (part.confidence - 1) * (part.confidence > 0)
        a = gram + (y * more[:, :, None]).swapaxes(1, 2) @ y
        b = (part.confidence[:, None, :] @ y)[:, 0]
        found[part.rows] = solve(a, b)

    for _ in share(work, parts):
        pass


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

    `steps` has the half steps of users and of items, each to be called with fixed and found; default: by `backend`.
    """
    asarray, asnumpy = np.asarray, np.asarray
    if backend == "cuda":
        import torch

        asarray, asnumpy = partial(torch.as_tensor, device="cuda"), lambda a: a.cpu().numpy()
    make = steps or {"cpu": steps_on_cores, "cuda": steps_on_gpu}[backend]
    step_of_users, step_of_items = make(ratings, factors, solve, regularization)
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


def steps_on_cores(ratings: sparse.csr_matrix, factors: int, solve: Any, regularization: float) -> list[Any]:
    """Half steps of users and of items on CPU cores, each on slices of its own.

    Their products are to be made by one thread each (OPENBLAS_NUM_THREADS=1).
    """

    def share(work: Any, parts: list[Rows]) -> Iterator[None]:
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            yield from pool.map(work, parts)

    how = regularization, solve or batchchol.solve, np.asarray, share
    sides = (padded(each, factors, np.asarray, SLICE_ELEMENTS) for each in (ratings, ratings.T.tocsr()))
    return [lambda fixed, found, parts=parts: half_step(parts, fixed, found, *how) for parts in sides]


def steps_on_gpu(ratings: sparse.csr_matrix, factors: int, solve: Any, regularization: float) -> list[Any]:
    """The same on a GPU, with PyTorch's arrays, by the kernel of als_gpu.py."""
    import als_gpu

    from batchchol.interop import torch as linalg

    sides = (als_gpu.on_gpu(each, factors) for each in (ratings, ratings.T.tocsr()))
    return [
        partial(als_gpu.half_step, side, regularization=regularization, solve=solve or linalg.solve) for side in sides
    ]


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
