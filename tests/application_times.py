"""The applications of docs/examples at full size, beside what people use today.

    python -m tests.application_times --backend cuda    # on a machine with a GPU and PyTorch, in about a minute
    python -m tests.application_times --backend cpu     # with the package implicit, in some minutes

write datasets/applications_h200.csv and datasets/applications_epyc.csv (--out FILE for another). `seconds` are those
of an iteration of alternating least squares, of a step of all Kalman filters, or of a solve of all worlds: medians of
runs that take turns. `quality` is the loss of least squares after the iterations; the mean error of the filters'
places; the largest residual of the worlds.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

import batchchol
from batchchol import get_backend
from batchchol.measure.provenance import about

ROOT = Path(__file__).parents[1]
OUT = {"cuda": ROOT / "datasets" / "applications_h200.csv", "cpu": ROOT / "datasets" / "applications_epyc.csv"}
COLUMNS = (
    *("application", "n", "batch", "way", "seconds", "quality"),
    *("gpu", "cpu", "driver", "toolkit", "commit", "date"),
)
ITERATIONS, ROUNDS, STEPS = 3, 7, 5
Way = Callable[[], Any]
Line = dict[str, Any]


def example(name: str) -> ModuleType:
    """An example as a module, which no package has."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "examples" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Place:
    """Where it runs: how arrays get there and back, who solves, and how to wait for it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        if backend == "cuda":
            import torch

            from batchchol.interop import torch as linalg

            self.solvers = {"batchchol": lambda a, b: linalg.solve_ex(a, b)[0], "torch.linalg": torch_solve}
            self.asarray: Way = partial(torch.as_tensor, device="cuda")
            self.asnumpy: Way = lambda a: a.cpu().numpy()
            self.wait: Way = torch.cuda.synchronize
        else:
            self.solvers = {"batchchol": batchchol.solve, "numpy.linalg": numpy_solve}
            self.asarray, self.asnumpy, self.wait = np.asarray, np.asarray, lambda: None

    def medians(self, ways: Mapping[str, Way]) -> dict[str, float]:
        """Seconds of each way: they take turns, after a round that warms up."""
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS + 1):
            for name, way in ways.items():
                self.wait()
                begin = perf_counter()
                way()
                self.wait()
                taken[name].append(perf_counter() - begin)
        return {name: median(each[1:]) for name, each in taken.items()}


def torch_solve(a: Any, b: Any) -> Any:
    """By PyTorch's own factor and solve."""
    import torch

    column = b.ndim == a.ndim - 1
    x = torch.cholesky_solve(b[..., None] if column else b, torch.linalg.cholesky_ex(a)[0])
    return x[..., 0] if column else x


def numpy_solve(a: Any, b: Any) -> Any:
    """By NumPy."""
    column = b.ndim == a.ndim - 1
    x = np.linalg.solve(a, b[..., None] if column else b)
    return x[..., 0] if column else x


def line(application: str, n: int, batch: int, way: str, seconds: float, quality: float) -> Line:
    """A line of the file, without where it comes from."""
    numbers = {"seconds": f"{seconds:.4g}", "quality": f"{quality:.4g}"}
    return {"application": application, "n": n, "batch": batch, "way": way, **numbers}


def kalman(place: Place, orders: Sequence[int], filters: int) -> Iterator[Line]:
    """A step of Kalman filters."""
    module = example("kalman")
    for n in orders:
        model = module.constant_velocity(n)
        true, z = module.measurements(model, filters, STEPS)
        given = place.asarray(z)
        ways = {name: partial(module.run, model, given, each, place.asarray) for name, each in place.solvers.items()}
        for name, seconds in place.medians(ways).items():
            off = np.abs(place.asnumpy(ways[name]()[-1]) - true[-1])[:, : n // 2].mean()
            yield line("kalman", n, filters, name, seconds / STEPS, off)


def physics(place: Place, orders: Sequence[int], worlds: int) -> Iterator[Line]:
    """A solve of all worlds."""
    module = example("physics")
    for n in orders:
        mass, force = module.chains(worlds, n)
        there = place.asarray(mass), place.asarray(force)
        ways = {name: partial(module.accelerations, *there, each) for name, each in place.solvers.items()}
        for name, seconds in place.medians(ways).items():
            found = place.asnumpy(ways[name]())
            off = np.abs(np.einsum("wij,wj->wi", mass, found, dtype=np.float64) - force).max()
            yield line("physics", n, worlds, name, seconds, off)


def least_squares(place: Place, factors: Sequence[int], scale: float) -> Iterator[Line]:
    """An iteration of alternating least squares; `batch` counts the ratings."""
    module = example("als")
    ratings = module.made_up_ratings(scale)
    for n in factors:
        ways = {name: partial(_train, module, ratings, n, place, name) for name in place.solvers}
        if place.backend == "cpu":
            del ways["numpy.linalg"]
            with suppress(ImportError):
                ways |= {f"implicit, {name}": partial(_implicit, ratings, n, cg) for name, cg in _IMPLICIT.items()}
        for name, way in ways.items():
            users, items, taken = way()
            yield line("als", n, ratings.nnz, name, median(taken), module.loss(ratings, users, items))


_IMPLICIT = {"Cholesky": False, "conjugate gradients": True}


def _train(module: ModuleType, ratings: Any, n: int, place: Place, solver: str) -> tuple[Any, Any, list[float]]:
    users, items, taken = module.train(ratings, n, ITERATIONS + 1, backend=place.backend, solve=place.solvers[solver])
    return users, items, taken[1:]


def _implicit(ratings: Any, n: int, cg: bool) -> tuple[Any, Any, list[float]]:
    from implicit.cpu.als import AlternatingLeastSquares

    taken: list[float] = []
    model = AlternatingLeastSquares(n, regularization=0.05, use_cg=cg, iterations=ITERATIONS + 1, random_state=0)
    model.fit(ratings, show_progress=False, callback=lambda _, elapsed, *__: taken.append(elapsed))
    return model.user_factors, model.item_factors, taken[1:]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.application_times", description=__doc__)
    parser.add_argument("--backend", choices=tuple(OUT), default="cuda")
    parser.add_argument("--scale", type=float, default=1.0, help="of the ratings")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    place, said = Place(given.backend), about(get_backend(given.backend))
    with (given.out or OUT[given.backend]).open("w", newline="") as stream:
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        lines = (
            kalman(place, (6, 12, 24, 32), 10_000),
            physics(place, (6, 12, 24, 32, 48, 64), 8192),
            least_squares(place, (16, 32, 64, 128), given.scale),
        )
        for each in (line for of in lines for line in of):
            print(*each.values(), flush=True)
            writer.writerow({name: value for name, value in said.items() if name in COLUMNS} | each)
            stream.flush()


if __name__ == "__main__":
    main()
