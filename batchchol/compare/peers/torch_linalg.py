"""PyTorch: `torch.linalg.cholesky_ex`, one call for the whole batch, into memory that it is given, and solves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from importlib.metadata import version
from typing import Any

from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.compare.contenders import Arena, Contender, Factored, Latest
from batchchol.compare.factors import LuArena, LuFactored
from batchchol.compare.inversions import DeterminantArena, InverseArena, Inverted
from batchchol.compare.peers.base import Peer
from batchchol.compare.reflections import LeastSquaresArena, QrArena, QrFactored
from batchchol.compare.solves import BaseSolveArena, FusedArena, GeneralArena, SolveArena, Solved


def contenders(arena: Arena) -> list[Contender]:
    """Tensors over the arena's own arrays; the factors column by column, as PyTorch itself lays them out."""
    # Backends have the names that PyTorch has for devices.
    torch, place = import_module("torch"), arena.backend.name
    inputs = [torch.as_tensor(array, device=place) for array in arena.each(arena.input)]
    factors = [torch.as_tensor(array, device=place).mT for array in arena.each(arena.output)]
    info = torch.zeros(arena.batch, dtype=torch.int32, device=place)
    status = _array(info, place)
    if place == "cuda":
        device().synchronize()

    def call(index: int) -> None:
        torch.linalg.cholesky_ex(inputs[index], out=(factors[index], info))

    spec = "torch.linalg.cholesky_ex" + ", out given" * (place == "cuda")

    def result(index: int) -> Factored:
        return arena.result(index, info=status, order="col")

    return [Contender(spec, arena.calls(call), result, poison=arena.poison)]


def solvers(arena: SolveArena) -> list[Contender]:
    """`torch.cholesky_solve`, by the factors in rows and by the same memory in columns, which are upper factors.

    PyTorch works on copies in columns. It makes a new tensor in any case, and would copy that into a given one.
    """
    torch, place, given = import_module("torch"), arena.backend.name, _tensors(arena)

    def way(upper: bool) -> Contender:
        factors = [(l.mT if upper else l, b) for l, b in given]
        made = Latest(lambda each: torch.cholesky_solve(each[1], each[0], upper=upper), factors)

        def result(index: int) -> Solved:
            return arena.solved(index, _array(made.value.contiguous(), place))

        return Contender(f"torch.cholesky_solve, upper={upper}", made.calls, result, forget=made.forget)

    return [way(False), way(True)]


def fused(arena: FusedArena) -> list[Contender]:
    """`torch.linalg.cholesky_ex` and `torch.cholesky_solve`, and `torch.linalg.solve_ex`, which makes LU factors."""
    torch = import_module("torch")

    def two_steps(each: Sequence[Any]) -> tuple[Any, Any]:
        factors, info = torch.linalg.cholesky_ex(each[0])
        return torch.cholesky_solve(each[1], factors), info

    return [
        _way(arena, "torch.linalg.cholesky_ex and torch.cholesky_solve", two_steps),
        _way(arena, "torch.linalg.solve_ex", lambda each: torch.linalg.solve_ex(*each)),
    ]


def general(arena: GeneralArena) -> list[Contender]:
    """`torch.linalg.solve_ex`, and `torch.linalg.lu_factor_ex` with `torch.linalg.lu_solve`."""
    torch = import_module("torch")

    def two_steps(each: Sequence[Any]) -> tuple[Any, Any]:
        factors, pivots, info = torch.linalg.lu_factor_ex(each[0])
        return torch.linalg.lu_solve(factors, pivots, each[1]), info

    return [
        _way(arena, "torch.linalg.solve_ex", lambda each: torch.linalg.solve_ex(*each)),
        _way(arena, "torch.linalg.lu_factor_ex and torch.linalg.lu_solve", two_steps),
    ]


def lu_factors(arena: LuArena) -> list[Contender]:
    """`torch.linalg.lu_factor_ex`; it returns its factors in columns."""
    torch, place = import_module("torch"), arena.backend.name
    given = [torch.as_tensor(array, device=place) for array in arena.each(arena.input)]
    if place == "cuda":
        device().synchronize()
    made = Latest(torch.linalg.lu_factor_ex, given)

    def result(index: int) -> LuFactored:
        return arena.factored(index, *(_array(each.contiguous(), place) for each in made.value))

    return [Contender("torch.linalg.lu_factor_ex", made.calls, result, forget=made.forget)]


def reflectors(arena: QrArena) -> list[Contender]:
    """`torch.geqrf`, whose factors are in columns, and `torch.linalg.qr`, which makes one Q after the other."""
    torch, place = import_module("torch"), arena.backend.name
    given = [torch.as_tensor(array, device=place) for array in arena.each(arena.input)]
    if place == "cuda":
        device().synchronize()
    factored, made = Latest(torch.geqrf, given), Latest(torch.linalg.qr, given)

    def reflected(index: int) -> QrFactored:
        return arena.reflected(index, *(_array(each.contiguous(), place) for each in factored.value))

    def multiplied(index: int) -> QrFactored:
        return arena.multiplied(index, *(_array(each.contiguous(), place) for each in made.value))

    return [
        Contender("torch.geqrf", factored.calls, reflected, forget=factored.forget),
        Contender("torch.linalg.qr", made.calls, multiplied, forget=made.forget),
    ]


def least_squares(arena: LeastSquaresArena) -> list[Contender]:
    """`torch.linalg.lstsq` by QR factorizations, which has no info of each matrix."""
    torch = import_module("torch")
    return [
        _way(
            arena,
            "torch.linalg.lstsq, driver='gels'",
            lambda given: (torch.linalg.lstsq(*given, driver="gels").solution, None),
        )
    ]


def inverses(arena: InverseArena) -> list[Contender]:
    """`torch.cholesky_inverse`, by given factors or after `cholesky_ex`, and `torch.linalg.inv_ex`."""
    torch, way = import_module("torch"), partial(_way_of_matrices, arena)

    def two_steps(a: Any) -> tuple[Any, Any]:
        factors, info = torch.linalg.cholesky_ex(a)
        return torch.cholesky_inverse(factors), info

    if arena.triangle == "lower":
        return [way("torch.cholesky_inverse", lambda l: (torch.cholesky_inverse(l), None))]
    return [
        way("torch.linalg.cholesky_ex and torch.cholesky_inverse", two_steps),
        way("torch.linalg.inv_ex", torch.linalg.inv_ex),
    ]


def determinants(arena: DeterminantArena) -> list[Contender]:
    """`torch.linalg.slogdet`, which makes LU factors, and the diagonals of what `cholesky_ex` returns."""
    torch, way = import_module("torch"), partial(_way_of_matrices, arena)

    def two_steps(a: Any) -> tuple[Any, Any]:
        factors, info = torch.linalg.cholesky_ex(a)
        return 2 * factors.diagonal(dim1=-2, dim2=-1).log().sum(-1), info

    return [
        way("torch.linalg.cholesky_ex and the logarithms of its diagonals", two_steps),
        way("torch.linalg.slogdet", lambda a: (torch.linalg.slogdet(a)[1], None)),
    ]


def _way_of_matrices(arena: InverseArena, spec: str, function: Callable[[Any], tuple[Any, Any]]) -> Contender:
    """A function of matrices alone that returns a result and, if it has one, the info."""
    torch, place = import_module("torch"), arena.backend.name
    given = [torch.as_tensor(array, device=place) for array in arena.each(arena.input)]
    if place == "cuda":
        device().synchronize()
    made = Latest(function, given)

    def result(index: int) -> Inverted:
        x, info = made.value
        return arena.inverted(index, _array(x.contiguous(), place), None if info is None else _array(info, place))

    return Contender(spec, made.calls, result, forget=made.forget)


def _way(arena: FusedArena, spec: str, function: Callable[[Sequence[Any]], tuple[Any, Any]]) -> Contender:
    """A function of matrices and right-hand sides that returns solutions and the info."""
    place, made = arena.backend.name, Latest(function, _tensors(arena))

    def result(index: int) -> Solved:
        x, info = made.value
        return arena.solved(index, _array(x.contiguous(), place), None if info is None else _array(info, place))

    return Contender(spec, made.calls, result, forget=made.forget)


def _tensors(arena: BaseSolveArena) -> list[list[Any]]:
    """The matrices or factors and the right-hand sides of every set, as tensors over the arena's arrays."""
    torch, place = import_module("torch"), arena.backend.name
    given = [[torch.as_tensor(array, device=place) for array in pair] for pair in arena.pairs()]
    if place == "cuda":
        device().synchronize()
    return given


def _array(tensor: Any, place: str) -> Any:
    """A tensor as an array of the backend, in the same memory."""
    return tensor.numpy() if place == "cpu" else memory.as_gpuarray(tensor)


@contextmanager
def _limit(threads: int) -> Iterator[None]:
    torch: Any = import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _version_on_gpu() -> str:
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        raise ImportError(f"torch {torch.__version__} finds no GPU: install a build of it for this driver's CUDA")
    if torch.cuda.current_stream().cuda_stream:
        raise ImportError("its current stream is not the default one: leave it as it is")
    return f"torch {torch.__version__}"


_WAYS: Mapping[str, Callable[[Any], Sequence[Contender]]] = {
    "potrf": contenders,
    "potrs": solvers,
    "posv": fused,
    "potri": inverses,
    "poinv": inverses,
    "logdet": determinants,
    "gesv": general,
    "getrf": lu_factors,
    "geqrf": reflectors,
    "gels": least_squares,
}
CPU = Peer(
    "torch",
    "cpu",
    lambda: f"torch {version('torch')}",
    _WAYS,
    limit=_limit,
    missing="PyTorch is not installed",
    hint="pip install torch",
)
GPU = Peer(
    "torch",
    "cuda",
    _version_on_gpu,
    _WAYS,
    missing="PyTorch cannot be used ({error})",
    hint="pip install torch",
)
