"""The library's own contenders: its kernels, and its calls as users make them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from batchchol.backends.cuda.measuring.clock import MOST_CALLS
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import Arena, Contender, Factored, Latest, poison
from kernelgen import KernelSpec, Layout


def packed_kernels(arena: Arena, specs: Sequence[KernelSpec], layout: Layout) -> list[Contender]:
    """Kernels on batches of a packed layout, out of place; they share their buffers."""
    pairs = arena.packed(layout)
    return [_packed_kernel(arena, spec, pairs) for spec in specs]


def _packed_kernel(arena: Arena, spec: KernelSpec, pairs: Sequence[tuple[Batch, Batch]]) -> Contender:
    run, info = arena.backend.kernel(spec), arena.backend.info(pairs[0][0], spec)
    calls = [partial(run, a, out, info, threads=arena.threads) for a, out in pairs]

    def result(index: int) -> Factored:
        a, out = pairs[index]
        return Factored(a, out.marked(spec.problem.uplo), info)

    def spoil() -> None:
        for _, out in pairs:
            poison(out)

    return Contender(spec.name, calls, result, poison=spoil, most=MOST_CALLS, math=spec.problem.math)


def canonical_kernel(arena: Arena, spec: KernelSpec) -> list[Contender]:
    """A kernel on canonical arrays, out of place or in place, as the spec says."""
    run, info = arena.backend.kernel(spec), arena.info()
    results = [arena.result(index, info=info, order=spec.order) for index in range(arena.sets)]
    calls = [
        partial(run, each.l if spec.in_place else each.a, each.l, info, threads=arena.threads) for each in results
    ]
    restore, spoil = (arena.restore, None) if spec.in_place else (None, arena.poison)
    math = spec.problem.math
    return [Contender(spec.name, calls, results.__getitem__, restore, spoil, most=MOST_CALLS, math=math)]


def array_call(arena: Arena, spec: KernelSpec, function: Callable[[Any], Any]) -> list[Contender]:
    """`batchchol.cholesky` or `cholesky_ex`, from array to array; `spec` is what it chooses by itself."""
    made = Latest(function, arena.each(arena.input))

    def result(index: int) -> Factored:
        factors, info = getattr(made.value, "L", made.value), getattr(made.value, "info", None)
        return arena.result(index, factors, info)

    return [Contender(spec.name, made.calls, result, forget=made.forget, math=spec.problem.math)]
