"""What calls take the host: on arrays of PyTorch, CuPy, PyCUDA and JAX on a GPU, beside the libraries' own.

On a machine with a GPU, from the root of the repository, in a minute:

    python -m tests.times.host

writes datasets/calls/interop_host_h200.csv (--out FILE for another). Microseconds of one call, of samples of many
calls back to back: `host` until they return, `wall` until the GPU is done; the medians, and the least. The calls on a
library's arrays take turns: hosts have seconds in which all takes longer.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import batchchol
from batchchol import get_backend
from batchchol.api.arrays import device_addresses as at
from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.device import device
from batchchol.measure.provenance import about, installed

OUT = Path(__file__).parents[2] / "datasets" / "calls" / "interop_host_h200.csv"
N, BATCH, DTYPE = 32, 1024, "float32"
TIMES = ("host_us", "host_least_us", "wall_us", "wall_least_us")
COLUMNS = ("n", "batch", "dtype", "call", *TIMES, "gpu", "driver", "toolkit", "library", "version", "commit", "date")
SAMPLES, CALLS = 41, 200

Call = Callable[[], Any]
Named = Iterator[tuple[str, Call]]


def matrices() -> tuple[Any, Any]:
    """Matrices and right-hand sides."""
    r = np.random.default_rng(1).random((BATCH, N, N), np.float32)
    return (r + r.swapaxes(1, 2)) / 2 + N * np.eye(N, dtype=DTYPE), np.ones((BATCH, N), DTYPE)


def public_calls(a: Any, b: Any) -> Named:
    """The calls on a library's arrays; of those that raise for values one, which waits for the GPU."""
    l, (lu, pivots, _), factors = batchchol.cholesky_ex(a).L, batchchol.lu_factor_ex(a), batchchol.qr(a, "raw")
    calls: dict[str, Call] = {
        "cholesky_ex": lambda: batchchol.cholesky_ex(a),
        "solve_ex": lambda: batchchol.solve_ex(a, b),
        "cho_solve": lambda: batchchol.cho_solve(l, b),
        "inv_ex": lambda: batchchol.inv_ex(a),
        "cho_inverse": lambda: batchchol.cho_inverse(l),
        "slogdet_ex": lambda: batchchol.slogdet_ex(a),
        "lu_factor_ex": lambda: batchchol.lu_factor_ex(a),
        "lu_solve": lambda: batchchol.lu_solve(lu, pivots, b),
        "solve_ex, general": lambda: batchchol.solve_ex(a, b, assume_a="gen"),
        "inv_ex, general": lambda: batchchol.inv_ex(a, assume_a="gen"),
        "slogdet_ex, general": lambda: batchchol.slogdet_ex(a, assume_a="gen"),
        "qr, raw": lambda: batchchol.qr(a, "raw"),
        "qr, r": lambda: batchchol.qr(a, "r"),
        "qr": lambda: batchchol.qr(a),
        "ormqr": lambda: batchchol.ormqr(factors, b),
        "lstsq_ex": lambda: batchchol.lstsq_ex(a, b),
        "solve": lambda: batchchol.solve(a, b),
        "solve, general": lambda: batchchol.solve(a, b, assume_a="gen"),
    }
    return ((f"batchchol.{name}", call) for name, call in calls.items())


def of_pycuda() -> Named:
    """Launches, and calls on PyCUDA's arrays."""
    a, b = (memory.to_device(each, "an argument") for each in matrices())
    l, info = batchchol.cholesky_ex(a)
    places = [int(each.gpudata) for each in (a, l, info)]
    factor = at.factoring(at.Case(N, BATCH, DTYPE, False, "ieee"))(memory.room)
    nothing = device().prepared(device().load(support.support_kernel("empty")), 1, 0, ())
    yield "launch of an empty kernel, by PyCUDA", lambda: support.empty(device())
    yield "launch of an empty kernel, laid out", lambda: nothing(0)
    yield "cholesky_ex by addresses", lambda: factor(0, *places)
    make = memory.maker(a.shape, a.dtype, "room")
    yield "room for two arrays", lambda: [make(), make()]
    yield from public_calls(a, b)


def of_torch() -> Named:
    """Calls on tensors."""
    import torch

    from batchchol.interop import torch as linalg
    from batchchol.interop.torch import device as operators
    from batchchol.interop.torch.operators import OPERATORS

    a, b = (torch.from_numpy(each).cuda() for each in matrices())
    wanted, how = a.clone().requires_grad_(), (False, "ieee", False)
    yield "torch.add", lambda: torch.add(a, a)
    yield "two torch.empty_like", lambda: [torch.empty_like(a), torch.empty_like(a)]
    yield "what the operator calls, cholesky", lambda: operators.cholesky(a, *how)
    yield "the operator cholesky", lambda: OPERATORS["cholesky"](a, *how)
    yield "interop cholesky_ex", lambda: linalg.cholesky_ex(a)
    yield "interop cholesky_ex, for gradients", lambda: linalg.cholesky_ex(wanted)
    yield "interop solve_ex", lambda: linalg.solve_ex(a, b)
    yield from public_calls(a, b)
    yield "torch.linalg.cholesky_ex", lambda: torch.linalg.cholesky_ex(a)
    yield "torch.linalg.solve_ex", lambda: torch.linalg.solve_ex(a, b)
    yield "torch.linalg.lu_factor_ex", lambda: torch.linalg.lu_factor_ex(a)


def of_cupy() -> Named:
    """Calls on CuPy's arrays."""
    import cupy

    a, b = (cupy.asarray(each) for each in matrices())
    yield "cupy.add", lambda: cupy.add(a, a)
    yield "two cupy.ndarray", lambda: [cupy.ndarray(a.shape, a.dtype) for _ in range(2)]
    yield from public_calls(a, b)
    yield "cupy.linalg.cholesky", lambda: cupy.linalg.cholesky(a)


def of_jax() -> Named:
    """Calls on JAX's arrays, compiled."""
    import jax

    from batchchol.interop import jax as linalg
    from batchchol.interop.jax import xla

    a, b = (jax.device_put(each) for each in matrices())
    for call in (linalg.cholesky_ex, linalg.solve_ex):
        compiled = jax.jit(call)
        given = (a,) if call is linalg.cholesky_ex else (a, b)
        compiled(*given)[0].block_until_ready()
        yield f"interop {call.__name__}", partial(compiled, *given)

    @jax.jit
    def ten(a: Any, b: Any) -> Any:
        for _ in range(10):
            b = linalg.solve_ex(a, b).x
        return b

    ten(a, b).block_until_ready()
    yield "interop solve_ex, ten in one program", partial(ten, a, b)
    results = jax.ShapeDtypeStruct(a.shape, a.dtype), jax.ShapeDtypeStruct(a.shape[:1], np.int32)
    xla.register("nothing", {"CUDA": lambda _: None})
    yield "jax.ffi.ffi_call that does nothing", partial(jax.jit(jax.ffi.ffi_call("nothing", results)), a)
    for name, call in (("add", lambda a: a + a), ("numpy.linalg.cholesky", jax.numpy.linalg.cholesky)):
        yield f"jax.{name}", partial(jax.jit(call), a)


GROUPS: dict[str, Callable[[], Named]] = {"pycuda": of_pycuda, "torch": of_torch, "cupy": of_cupy, "jax": of_jax}


def microseconds(calls: Sequence[Call], samples: int) -> list[dict[str, float]]:
    """What each of some calls takes the host, and until the GPU is done, after a round that warms up."""
    taken = [[sample(call, 10)] for call in calls]
    for _ in range(samples):
        for call, times in zip(calls, taken, strict=True):
            times.append(sample(call, CALLS))
    return [_summary(*zip(*times[1:], strict=True)) for times in taken]


def sample(call: Call, count: int) -> tuple[float, float]:
    """Microseconds of a call, of many back to back: until they return, and until the GPU is done."""
    gpu = device()
    gpu.synchronize()
    begin = time.perf_counter()
    for _ in range(count):
        call()
    returned = time.perf_counter()
    gpu.synchronize()
    return (returned - begin) / count * 1e6, (time.perf_counter() - begin) / count * 1e6


def _summary(host: Sequence[float], wall: Sequence[float]) -> dict[str, float]:
    taken = (np.median(host), min(host), np.median(wall), min(wall))
    return {name: round(float(each), 2) for name, each in zip(TIMES, taken, strict=True)}


def main() -> None:
    """Measure the calls of the libraries that are there, print them and write them."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--samples", type=int, default=SAMPLES)
    asked = parser.parse_args()
    machine = about(get_backend("cuda"))
    case = {"n": N, "batch": BATCH, "dtype": DTYPE}
    with asked.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        for library, calls in GROUPS.items():
            version = next((f"{name} {found}" for name in _packages(library) if (found := installed(name))), None)
            if version is None:
                print(f"{library} is not installed")
                continue
            named = dict(calls())
            for name, times in zip(named, microseconds(list(named.values()), asked.samples), strict=True):
                writer.writerow(case | {"call": name, "library": version} | times | machine)
                print(f"{version:24s}", f"{name:40s}", *(f"{each:8.2f}" for each in times.values()), flush=True)
            file.flush()


def _packages(library: str) -> tuple[str, ...]:
    """The names that a library is distributed under."""
    return (library, "cupy-cuda12x", "cupy-cuda13x") if library == "cupy" else (library,)


if __name__ == "__main__":
    main()
