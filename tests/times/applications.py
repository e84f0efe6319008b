"""The applications of docs/examples at full size, beside what people use today.

    python -m tests.times.applications --backend cuda    # on a machine with a GPU and PyTorch, in about a minute
    python -m tests.times.applications --backend cpu     # with the package implicit, in some minutes

write datasets/applications_h200.csv and datasets/applications_epyc.csv (--out FILE for another). `seconds` are those
of an iteration of alternating least squares, of a step of all Kalman filters, of the likelihood and the gradients of
all Gaussian processes, or of a solve of all worlds: medians of runs that take turns. "no solves" is what is left of a
program without them. `quality` is the loss of least squares after the iterations; the mean error of the filters'
places; the mean likelihood; the largest residual of the worlds.
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

ROOT = Path(__file__).parents[2]
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


def nothing(_: Any, b: Any) -> Any:
    """In place of solutions: what is measured is all the rest."""
    return b * 0


NO_SOLVES = {"no solves": nothing}


def kalman(place: Place, orders: Sequence[int], filters: int) -> Iterator[Line]:
    """A step of Kalman filters."""
    module = example("kalman")
    for n in orders:
        model = module.constant_velocity(n)
        true, z = module.measurements(model, filters, STEPS)
        given = place.asarray(z)
        solvers = place.solvers | NO_SOLVES
        ways = {name: partial(module.run, model, given, each, place.asarray) for name, each in solvers.items()}
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


def gaussian_processes(place: Place, orders: Sequence[int], sets: int) -> Iterator[Line]:
    """A likelihood with its gradients, by PyTorch's operators."""
    module = example("gaussian_process")
    for n in orders:
        x, y = module.data(sets, n, device=place.backend)
        ways = {"batchchol": partial(_likelihood, module, x, y, module.linalg)}
        ways["torch.linalg"] = partial(_likelihood, module, x, y, _ByTorch())
        for name, seconds in place.medians(ways).items():
            yield line("gaussian_process", n, sets, name, seconds, float(ways[name]()))


def _likelihood(module: ModuleType, x: Any, y: Any, linalg: Any) -> Any:
    import torch

    start = torch.tensor([0.1, 1.0, 0.1]).log().repeat(len(x), 1).to(x).requires_grad_()
    module.__dict__["linalg"] = linalg
    values, info, _ = module.negative_log_likelihood(x, y, start)
    mean = torch.where(info == 0, values, 0).mean()
    mean.backward()
    return mean.detach()


class _ByTorch:
    """What the example calls, by PyTorch's own factors: one factorization for both; nothing is repaired."""

    def solve_ex(self, k: Any, y: Any, jitter: str) -> tuple[Any, Any, Any]:
        import torch

        self.l, info = torch.linalg.cholesky_ex(k)
        return torch.cholesky_solve(y[..., None], self.l)[..., 0], info, torch.zeros_like(y[:, 0])

    def slogdet_ex(self, _: Any) -> Any:
        from batchchol import LogDeterminant

        return LogDeterminant(None, 2 * self.l.diagonal(dim1=-2, dim2=-1).log().sum(-1))


def least_squares(place: Place, factors: Sequence[int], scale: float) -> Iterator[Line]:
    """An iteration of alternating least squares; `batch` counts the ratings."""
    module = example("als")
    ratings = module.made_up_ratings(scale)
    for n in factors:
        solvers = place.solvers | NO_SOLVES
        ways = {name: partial(_train, module, ratings, n, place, each) for name, each in solvers.items()}
        if place.backend == "cpu":
            del ways["numpy.linalg"]
            with suppress(ImportError):
                ways |= {f"implicit, {name}": partial(_implicit, ratings, n, cg) for name, cg in _IMPLICIT.items()}
        for name, way in ways.items():
            users, items, taken = way()
            yield line("als", n, ratings.nnz, name, median(taken), module.loss(ratings, users, items))


_IMPLICIT = {"Cholesky": False, "conjugate gradients": True}


def _train(module: ModuleType, ratings: Any, n: int, place: Place, solve: Way) -> tuple[Any, Any, list[float]]:
    users, items, taken = module.train(ratings, n, ITERATIONS + 1, backend=place.backend, solve=solve)
    return users, items, taken[1:]


def _implicit(ratings: Any, n: int, cg: bool) -> tuple[Any, Any, list[float]]:
    from implicit.cpu.als import AlternatingLeastSquares

    taken: list[float] = []
    model = AlternatingLeastSquares(n, regularization=0.05, use_cg=cg, iterations=ITERATIONS + 1, random_state=0)
    model.fit(ratings, show_progress=False, callback=lambda _, elapsed, *__: taken.append(elapsed))
    return model.user_factors, model.item_factors, taken[1:]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.times.applications", description=__doc__)
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
            *([gaussian_processes(place, (16, 32, 64), 10_000)] * (given.backend == "cuda")),
            least_squares(place, (16, 32, 64, 128), given.scale),
        )
        for each in (line for of in lines for line in of):
            print(*each.values(), flush=True)
            writer.writerow({name: value for name, value in said.items() if name in COLUMNS} | each)
            stream.flush()


if __name__ == "__main__":
    main()
