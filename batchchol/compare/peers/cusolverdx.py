"""cuSOLVERDx: its factorizations and solves by a block, in kernels that load and store canonical arrays."""

from __future__ import annotations

import hashlib
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import cache, partial
from itertools import zip_longest
from typing import NamedTuple, TypeAlias, TypeVar

from batchchol.artifacts.cache import ArtifactCache
from batchchol.artifacts.stats import CompileStats
from batchchol.backends.cuda.device import device
from batchchol.backends.cuda.launching.functions import Code, Function
from batchchol.compare.contenders import Arena, Contender
from batchchol.compare.factors import LuArena, LuFactored
from batchchol.compare.peers.base import Peer
from batchchol.compare.peers.mathdx import VARIABLE, Shape, cubin, suggestion, version
from batchchol.compare.reflections import QrArena, QrFactored
from batchchol.compare.solves import FusedArena
from batchchol.errors import BatchcholError, DeviceLost
from batchchol.parallel import available_threads
from kernelgen import Launch
from kernelgen.operations import OPERATIONS

# The suggested block and others, the likeliest first: to the first order these many times its threads and its
# matrices, and beyond it. 32 matrices of n = 8 by 128 threads take half as long as 4 by 32 as suggested (H200).
_SMALL_N, _SMALL = 40, ((1, 1), (4, 8), (1, 4), (2, 4), (1, 8), (1, 2))
_LARGE = ((1, 1), (2, 1), (0.5, 1), (1, 2))
_MOST_MATRICES, _THREADS = 64, range(32, 1025)
_MOST_SHARED_BYTES = 200 << 10

_Item = TypeVar("_Item")
_AnyArena: TypeAlias = "Arena | FusedArena | LuArena | QrArena"


class _What(NamedTuple):
    """What a kernel does beside factoring: solve for `nrhs` right-hand sides, if any; `general` matrices or not, if
    it `reflects` by Householder reflectors.
    """

    nrhs: int = 0
    general: bool = False
    pdl: bool = False
    reflects: bool = False

    @classmethod
    def of(cls, op: str, nrhs: int, *, pdl: bool) -> _What:
        """What an operation takes."""
        operation = OPERATIONS[op]
        return cls(nrhs if operation.has_columns else 0, operation.general, pdl, operation.rectangular)

    def shape(self, n: int, dtype: str, architecture: str) -> Shape:
        """Its kernel of an order, without a block."""
        kind = {"pdl": self.pdl, "general": self.general, "reflects": self.reflects}
        return Shape(n, dtype, 0, 0, architecture, nrhs=self.nrhs, **kind)


_FACTORIZATION = _What()


def contenders(arena: _AnyArena, *, pdl: bool = False, most: int | None = None) -> list[Contender]:
    """A kernel for each block that is tried, or of the first `most`; with `pdl` launched before others have ended."""
    what = _What.of(arena.op, arena.nrhs if isinstance(arena, FusedArena) else 0, pdl=pdl)
    if pdl and not device().has_pdl:
        raise BatchcholError("the GPU has no programmatic dependent launches")
    found, refused = list[Contender](), ""
    for shape in shapes(arena.n, arena.dtype, device().architecture, what)[:most]:
        try:
            found.append(_made(arena, shape))
        except DeviceLost:
            raise
        except BatchcholError as error:
            refused = str(error)
    if not found:
        raise BatchcholError(f"no block works at n = {arena.n}: {refused}")
    return found


def shapes(n: int, dtype: str, architecture: str, what: _What = _FACTORIZATION) -> list[Shape]:
    """The blocks that are tried: the suggested one and larger or smaller ones, rows of even lengths padded first.

    Cholesky factors are in columns; where there is no padding, in rows as well.
    """
    threads, matrices = _suggestion(n, dtype, architecture, what)
    tried = [(int(threads * more), matrices * each) for more, each in (_SMALL if n <= _SMALL_N else _LARGE)]
    places = [*[(1, False)] * (n % 2 == 0), (0, False), *[(0, True)] * (not (what.nrhs or what.general))]
    found = [
        Shape(
            n, dtype, number, each, architecture, what.pdl, what.nrhs, padding, by_rows, what.general, what.reflects
        )
        for padding, by_rows in places
        for number, each in tried
        if number in _THREADS and each <= _MOST_MATRICES
    ]
    return [shape for shape in found if shape.shared_bytes <= _MOST_SHARED_BYTES]


def prepare(ns: Iterable[int], dtype: str, nrhs: int, op: str, *, pdl: bool = False, most: int | None = None) -> None:
    """Compile the kernels of all orders, in parallel; failures are reported when a kernel is used.

    The blocks that are tried first of every order come first: an interrupted run continues where it was.
    """
    architecture, what = device().architecture, _What.of(op, nrhs, pdl=pdl)
    orders, store = [(n, dtype, architecture) for n in ns], ArtifactCache()
    _in_parallel(partial(_suggest, what=what), [o for o in orders if store.get(_suggestion_key(*o, what)) is None])
    turns = zip_longest(*(_tried(order, what)[:most] for order in orders))
    _in_parallel(_compile, [shape for turn in turns for shape in turn if shape and not store.get(_image_key(shape))])


def limited(peer: Peer, most: int) -> Peer:
    """A peer of this module of which the first `most` blocks of an order are tried: each compiles for a while."""
    pdl = peer is EARLY_PEER
    ways = dict.fromkeys(peer.ways, partial(contenders, pdl=pdl, most=most))
    return replace(peer, ways=ways, prepare=partial(prepare, pdl=pdl, most=most))


def _in_parallel(work: Callable[[_Item], None], items: Sequence[_Item]) -> None:
    if not items:
        return
    # Spawned: a forked child of a process that uses CUDA cannot live.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(available_threads(), len(items)), mp_context=context) as pool:
        list(pool.map(work, items))


def _suggest(order: tuple[int, str, str], what: _What) -> None:
    with suppress(BatchcholError):
        _suggestion(*order, what)


def _tried(order: tuple[int, str, str], what: _What) -> list[Shape]:
    """The blocks of an order; none if the library refuses to suggest one."""
    try:
        return shapes(*order, what)
    except BatchcholError:
        return []


def _compile(shape: Shape) -> None:
    with suppress(BatchcholError):
        _image(shape)


def _made(arena: _AnyArena, shape: Shape) -> Contender:
    match arena:
        case FusedArena():
            return _solver(arena, shape)
        case LuArena():
            return _lu(arena, shape)
        case QrArena():
            return _qr(arena, shape)
    return _contender(arena, shape)


def _contender(arena: Arena, shape: Shape) -> Contender:
    run, info = partial(device().run, _function(shape)), arena.info()
    order = "row" if shape.by_rows else "col"
    results = [arena.result(index, info=info, order=order) for index in range(arena.sets)]
    words = [(each.a.address, each.l.address, int(info.gpudata), arena.batch) for each in results]
    calls = [partial(run, arena.batch, each) for each in words]
    spec = f"potrf of a block, {_said(shape)}"
    return Contender(spec, calls, results.__getitem__, poison=arena.poison)


def _lu(arena: LuArena, shape: Shape) -> Contender:
    run, info, pivots = partial(device().run, _function(shape)), arena.info(), arena.pivots()

    def call(index: int) -> None:
        a, lu = arena.input(index), arena.output(index)
        run(arena.batch, (*(int(each.gpudata) for each in (a, lu, pivots, info)), arena.batch))

    def result(index: int) -> LuFactored:
        return arena.factored(index, arena.output(index), pivots, info)

    return Contender(f"getrf of a block, {_said(shape)}", arena.calls(call), result)


def _qr(arena: QrArena, shape: Shape) -> Contender:
    run, tau = partial(device().run, _function(shape)), arena.tau()

    def call(index: int) -> None:
        a, factors = arena.input(index), arena.output(index)
        run(arena.batch, (*(int(each.gpudata) for each in (a, factors, tau)), arena.batch))

    def result(index: int) -> QrFactored:
        return arena.reflected(index, arena.output(index), tau)

    return Contender(f"geqrf of a block, {_said(shape)}", arena.calls(call), result)


def _solver(arena: FusedArena, shape: Shape) -> Contender:
    run, info, room = partial(device().run, _function(shape)), arena.info(), arena.room

    def call(index: int) -> None:
        a, b = arena.input(index), arena.column(index)
        x = int(room.gpudata) + index * b.nbytes
        run(arena.batch, (int(a.gpudata), int(b.gpudata), x, int(info.gpudata), arena.batch))

    spec = f"{arena.op} of a block, {_said(shape)}"
    return Contender(spec, arena.calls(call), lambda index: arena.solved(index, info=info))


def _said(shape: Shape) -> str:
    padded = f", rows of {shape.lda}" * bool(shape.padding)
    rows = ", factors in rows" * shape.by_rows
    return f"{shape.threads} threads for {shape.matrices} matrices{padded}{rows}{', pdl' * shape.pdl}"


@cache
def _function(shape: Shape) -> Function:
    gpu, image = device(), _image(shape)
    shared = shape.shared_bytes
    with gpu.current(f"loading {shape.entry}"):
        module = gpu.driver.load(image, shape.entry)
        handle = gpu.driver.function(module, shape.entry, shared_bytes=shared, cache="shared")
    launch = Launch(shape.threads, shape.matrices, shared, "shared", pdl=shape.pdl)
    stats = CompileStats(0.0, len(image), version(), None, None, None)
    return Function(Code(launch, handle=handle), shape.entry, launch, stats)


@cache
def _suggestion(n: int, dtype: str, architecture: str, what: _What) -> tuple[int, int]:
    key = _suggestion_key(n, dtype, architecture, what)
    if kept := ArtifactCache().get(key):
        return int(kept.metadata["threads"]), int(kept.metadata["matrices"])
    threads, matrices = suggestion(what.shape(n, dtype, architecture))
    said = {"arch": architecture, "compiler": version(), "threads": threads, "matrices": matrices}
    ArtifactCache().put(key, f"{threads} {matrices}".encode(), ".txt", said, "cuSOLVERDx's suggestion", ".txt")
    return threads, matrices


def _suggestion_key(n: int, dtype: str, architecture: str, what: _What) -> str:
    return _key("suggestion", n, dtype, architecture, *filter(None, (what.nrhs, what.general, what.reflects)))


def _image(shape: Shape) -> bytes:
    """The kernel, from the cache or compiled and kept there."""
    key = _image_key(shape)
    if kept := ArtifactCache().get(key):
        return kept.data
    image = cubin(shape)
    said = {"arch": shape.architecture, "compiler": version(), "entry": shape.entry}
    ArtifactCache().put(key, image, ".cubin", said, shape.source, ".cu")
    return image


def _image_key(shape: Shape) -> str:
    return _key("kernel", shape.source, shape)


def _key(*parts: object) -> str:
    return hashlib.sha256(repr((version(), *parts)).encode()).hexdigest()


_WAYS = dict.fromkeys(("potrf", "posv", "gesv", "getrf", "geqrf", "gels"), contenders)
PEER = Peer(
    "cusolverdx",
    "cuda",
    version,
    _WAYS,
    prepare,
    missing="libmathdx, NVRTC or nvJitLink cannot be used ({error})",
    hint=f"pip install nvidia-libmathdx-cu13 nvidia-cuda-nvrtc nvidia-nvjitlink, or set {VARIABLE} to its path",
)
EARLY_PEER = replace(
    PEER,
    name="cusolverdx_pdl",
    ways={op: partial(way, pdl=True) for op, way in _WAYS.items()},
    prepare=partial(prepare, pdl=True),
)
