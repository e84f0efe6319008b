"""The applications of docs/examples at full size, beside what people use today.

    python -m tests.times.applications --backend cuda    # on a machine with a GPU and PyTorch, in some two minutes
    python -m tests.times.applications --backend cpu     # with the package implicit, in some minutes

write datasets/comparisons/applications_h200.csv and datasets/comparisons/applications_epyc.csv (--out FILE for
another). `seconds` are those of an iteration of alternating least squares, of a step of all Kalman filters, of the
likelihood and the gradients of all Gaussian processes, or of a solve of all worlds: medians of runs that take turns.
Runs of filters and worlds have many steps, of which the last is waited for; "one at a time": each is.

"batchchol" and "torch.linalg" are whole programs, the second with PyTorch's products and solves; "torch.linalg, our
products" is the first with PyTorch's solves, "no solves" without any; "graph" replays it as a CUDA graph. `quality`
is the loss of least squares after the iterations; the mean error of the filters' places; the mean likelihood; the
largest residual of the worlds.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from time import perf_counter
from types import ModuleType
from typing import Any

import numpy as np

import batchchol
from batchchol import get_backend
from batchchol.measure.provenance import about
from tests.times import padded

ROOT = Path(__file__).parents[2]
OUT = {
    "cuda": ROOT / "datasets" / "comparisons" / "applications_h200.csv",
    "cpu": ROOT / "datasets" / "comparisons" / "applications_epyc.csv",
}
COLUMNS = (
    *("application", "n", "batch", "way", "seconds", "quality"),
    *("gpu", "cpu", "driver", "toolkit", "commit", "date"),
)
ITERATIONS, ROUNDS, STEPS = 3, 7, 20
Way = Callable[[], Any]
Line = dict[str, Any]


def example(name: str) -> ModuleType:
    """An example as a module; its folder is no package."""
    if (folder := str(ROOT / "docs" / "examples")) not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(name)


class Place:
    """Where it runs: how arrays get there and back, who solves, and how to wait for it."""

    def __init__(self, backend: str) -> None:
        self.backend = backend
        if backend == "cuda":
            import torch

            # Without gradients that is quicker than the operators of `batchchol.interop`.
            self.solvers = {"batchchol": lambda a, b: batchchol.solve_ex(a, b)[0], "torch.linalg": torch_solve}
            self.asarray: Way = partial(torch.as_tensor, device="cuda")
            self.asnumpy: Way = lambda a: a.cpu().numpy()
            self.wait: Way = torch.cuda.synchronize
        else:
            self.solvers = {"batchchol": batchchol.solve, "numpy.linalg": numpy_solve}
            self.asarray, self.asnumpy, self.wait = np.asarray, np.asarray, lambda: None

    def medians(self, ways: Mapping[str, Way], calls: int = 1) -> dict[str, float]:
        """Seconds of each way, of many calls before the wait: they take turns, after a round that warms up."""
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS + 1):
            for name, way in ways.items():
                self.wait()
                begin = perf_counter()
                for _ in range(calls):
                    way()
                self.wait()
                taken[name].append((perf_counter() - begin) / calls)
        return {name: median(each[1:]) for name, each in taken.items()}

    def graphs(self, ways: Mapping[str, Way]) -> dict[str, Way]:
        """The ways as CUDA graphs, those that can be captured."""
        return {f"{name}, graph": graph for name, way in ways.items() if (graph := _graph(way))}


def _graph(way: Way) -> Way | None:
    import torch

    way()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            found = way()
    except RuntimeError as error:
        print("not captured:", str(error).splitlines()[0], flush=True)
        return None

    def replay() -> Any:
        graph.replay()
        return found

    return replay


def torch_solve(a: Any, b: Any) -> Any:
    """By PyTorch's own factor and solve."""
    import torch

    column = b.ndim == a.ndim - 1
    x = torch.cholesky_solve(b[..., None] if column else b, torch.linalg.cholesky_ex(a)[0])
    return x[..., 0] if column else x


def torch_inverse(a: Any) -> Any:
    """By PyTorch."""
    import torch

    return torch.linalg.inv_ex(a)[0]


def numpy_solve(a: Any, b: Any) -> Any:
    """By NumPy."""
    column = b.ndim == a.ndim - 1
    x = np.linalg.solve(a, b[..., None] if column else b)
    return x[..., 0] if column else x


def line(application: str, n: int, batch: int, way: str, seconds: float, quality: float) -> Line:
    """A line of the file, without where it comes from."""
    numbers = {"seconds": f"{seconds:.4g}", "quality": "" if np.isnan(quality) else f"{quality:.4g}"}
    return {"application": application, "n": n, "batch": batch, "way": way, **numbers}


def nothing(_: Any, b: Any) -> Any:
    """In place of solutions: what is measured is all the rest."""
    return b * 0


NO_SOLVES, OUR_PRODUCTS = {"no solves": nothing}, "torch.linalg, our products"


def kalman(place: Place, orders: Sequence[int], filters: int) -> Iterator[Line]:
    """A step of Kalman filters."""
    module = example("kalman")
    for n in orders:
        model = module.constant_velocity(n)
        true, z = module.measurements(model, filters, STEPS)
        there = [place.asarray(each) for each in (*model, *module.start(n, filters), z)]
        run = partial(module.run, module.Model(*there[:4]), *there[4:])
        ways = {name: partial(run, each) for name, each in (place.solvers | NO_SOLVES).items()}
        if place.backend == "cuda":
            fused = partial(example("kalman_gpu").run, *run.args)
            ways["batchchol"] = partial(fused, lambda s: batchchol.inv_ex(s)[0])
            ways |= {OUR_PRODUCTS: partial(fused, torch_inverse), "no solves": partial(fused, lambda s: s)}
            ways |= place.graphs({name: ways[name] for name in ("batchchol", OUR_PRODUCTS)})
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
        alone = {f"{name}, one at a time": seconds for name, seconds in place.medians(ways).items()}
        ways |= place.graphs(ways) if place.backend == "cuda" else {}
        for name, seconds in (place.medians(ways, STEPS) | alone).items():
            found = place.asnumpy(ways[name.removesuffix(", one at a time")]())
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
        train = partial(_train, module, ratings, n, place)
        ways = {name: partial(train, each) for name, each in (place.solvers | NO_SOLVES).items()}
        if place.backend == "cuda":
            ways |= {OUR_PRODUCTS: ways["torch.linalg"]}
            ways["torch.linalg"] = partial(train, torch_solve, partial(padded.steps, place.asarray, 1 << 24))
        else:
            del ways["numpy.linalg"]
            if find_spec("implicit"):
                ways |= {f"implicit, {name}": partial(_implicit, ratings, n, cg) for name, cg in _IMPLICIT.items()}
        for name, way in ways.items():
            users, items, taken = way()
            yield line("als", n, ratings.nnz, name, median(taken), module.loss(ratings, users, items))


_IMPLICIT = {"Cholesky": False, "conjugate gradients": True}


def _train(
    module: ModuleType, ratings: Any, n: int, place: Place, solve: Way, steps: Any = None
) -> tuple[Any, Any, list[float]]:
    users, items, taken = module.train(ratings, n, ITERATIONS + 1, backend=place.backend, solve=solve, steps=steps)
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
