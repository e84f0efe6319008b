"""The emulation of CUDA: it runs kernels as GPUs do, and finds what GPUs may leave unnoticed."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from batchchol.artifacts.c_library import cpu_features
from kernelgen import KernelSource, Launch

from ..fenced_memory import Array, FencedMemory
from .programs import FUSED, EmulationError, compile_program, launch


def kernel(text: str, threads: int = 32, *, shared_bytes: int = 0, flags: tuple[str, ...] = ()) -> KernelSource:
    """The source of a kernel whose blocks have a thread for each item."""
    entry = re.search(r"__global__\s+void\s+(?:__launch_bounds__\(.*?\)\s+)?(\w+)\(", text)
    assert entry, text
    return KernelSource(f'extern "C" {text}', entry[1], 1, flags, Launch(threads, threads, shared_bytes))


def numbers(count: int) -> Array:
    return np.arange(count, dtype=np.float32)


def test_every_thread_knows_its_place() -> None:
    source = kernel(
        "__global__ void __launch_bounds__(48) places(int *place, long long count)\n"
        "{\n"
        "    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n"
        "    if (i < count)\n"
        "        place[i] = gridDim.x * 10000 + blockIdx.x * 100 + threadIdx.x;\n"
        "}\n",
        threads=48,
    )
    place = np.full(100, -1, np.int32)
    launch(source, 100, place, 100)
    assert np.array_equal(place, 30000 + np.arange(100) // 48 * 100 + np.arange(100) % 48)


REVERSE = """__global__ void reverse(const float *from, float *to)
{
    %s
    const unsigned t = threadIdx.x, last = blockDim.x - 1;
    from += blockIdx.x * blockDim.x, to += blockIdx.x * blockDim.x;
    memory[t] = from[t];
    __syncthreads();
    to[t] = memory[last - t];
}
"""
DECLARATIONS = {
    "static": "__shared__ float memory[64];",
    "dynamic": "extern __shared__ float memory[];",
    "dynamic, aligned": "extern __shared__ __align__(16) float memory[];",
    "dynamic, aligned first": "extern __align__(16) __shared__ float memory[];",
}


@pytest.mark.parametrize("declaration", DECLARATIONS)
def test_threads_of_a_block_share_memory_and_wait_for_each_other(declaration: str) -> None:
    source = kernel(REVERSE % DECLARATIONS[declaration], 64, shared_bytes=256)
    result = numbers(256) * 0
    launch(source, 256, numbers(256), result)
    assert np.array_equal(result.reshape(4, 64), numbers(256).reshape(4, 64)[:, ::-1])


@pytest.mark.parametrize("declaration", ["static", "dynamic"])
def test_shared_memory_holds_nothing_at_first(declaration: str) -> None:
    text = REVERSE.replace("memory[t] = from[t]", "if (!(memory[t] == from[t])) memory[t] += from[t]")
    result = numbers(256)
    launch(kernel(text % DECLARATIONS[declaration], 64, shared_bytes=256), 256, numbers(256), result)
    assert np.isnan(result).all()


# A change to the kernel above, and what is said of it.
MISTAKES = {
    "no barrier": ("__syncthreads();", "", "depends on the order"),
    "a barrier for some": ("__syncthreads();", "if (t < 9) __syncthreads();", "not all threads reach a barrier"),
    "an early exit": ("__syncthreads();", "if (t == 9) return; __syncthreads();", r"\(9, 0, 0\) of .* has ended"),
    "two barriers": (
        "__syncthreads();",
        "if (t < 9)\n__syncthreads();\nelse\n__syncthreads();",
        "waits at the block's barrier in line 8, but .* in line 10",
    ),
    "a write before the array": ("to[t] =", "to[(long long)t - 1] =", "written before an array"),
    "a write after the array": ("to[t] =", "to[t + 1] =", "may not"),
    "a read before the array": ("= from[t]", "= from[(long long)t - 1]", "may not"),
    "a read after the array": ("= from[t]", "= from[t + 1]", "may not"),
    "a write to constants": ("to[t] =", "const_cast<float *>(from)[t] =", "may not"),
    "a write before the shared memory": ("memory[t] =", "memory[(int)t - 1] =", "wrote before its 256 bytes"),
    "a write after the shared memory": ("memory[t] =", "memory[t + 1] =", "wrote after its 256 bytes"),
    "a write far from the shared memory": ("memory[t] =", "memory[t + 9999] =", "wrote after its 256 bytes"),
    "an overflow": ("= from[t]", "= from[t] + (float)(2147483647 + (int)t)", "forbids"),
    "a division by zero": ("= from[t]", "= from[t] + (float)(1 / (int)t)", "divided by zero|forbids"),
    "a vector across": ("to[t] =", "((float2 *)(to + 1))->y = 0; to[t] =", "forbids"),
    "too much on the stack": (
        "= from[t]",
        "= from[t]; volatile char much[3 << 19]; much[t] = 1; memory[t] += much[9]",
        "may not",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_is_found(mistake: str) -> None:
    old, new, message = MISTAKES[mistake]
    right = kernel(REVERSE % DECLARATIONS["dynamic"], 64, shared_bytes=256)
    wrong = kernel(right.text.removeprefix('extern "C" ').replace(old, new), 64, shared_bytes=256)
    assert wrong.text != right.text
    with pytest.raises(EmulationError, match=message):
        launch(wrong, 256, numbers(256), numbers(256))
    result = numbers(256)
    launch(right, 256, numbers(256), result)
    assert np.array_equal(result[:64], numbers(64)[::-1]), "the failure spoiled the next launch"


def test_index_outside_static_shared_memory_is_found() -> None:
    text = REVERSE.replace("memory[t] =", "memory[t + 1] =") % DECLARATIONS["static"]
    with pytest.raises(EmulationError, match="an index outside an array"):
        launch(kernel(text, 64), 64, numbers(64), numbers(64))


SHUFFLES = {
    "__shfl_sync(~0u, x, 5)": lambda t: t // 32 * 32 + 5,
    "__shfl_sync(~0u, x, 9, 8)": lambda t: t // 8 * 8 + 1,
    "__shfl_up_sync(~0u, x, 3)": lambda t: np.where(t % 32 < 3, t, t - 3),
    "__shfl_up_sync(~0u, x, 2, 4)": lambda t: np.where(t % 4 < 2, t, t - 2),
    "__shfl_down_sync(~0u, x, 3)": lambda t: np.where(t % 32 > 28, t, t + 3),
    "__shfl_down_sync(~0u, x, 7, 16)": lambda t: np.where(t % 16 > 8, t, t + 7),
    "__shfl_xor_sync(~0u, x, 21)": lambda t: t // 32 * 32 + (t % 32 ^ 21),
    "__shfl_xor_sync(~0u, x, 3, 4)": lambda t: t ^ 3,
}


@pytest.mark.parametrize("scalar", ["float", "double", "int", "long long"])
def test_shuffles(scalar: str) -> None:
    dtype = {"float": "f4", "double": "f8", "int": "i4", "long long": "i8"}[scalar]
    shuffles = "".join(f"    to[{k} * 64 + threadIdx.x] = {call};\n" for k, call in enumerate(SHUFFLES))
    text = f"__global__ void shuffles({scalar} *to)\n{{\n    const {scalar} x = threadIdx.x;\n{shuffles}}}\n"
    result = np.zeros((len(SHUFFLES), 64), dtype)
    launch(kernel(text, 64), 64, result)
    for row, (call, expected) in zip(result, SHUFFLES.items(), strict=True):
        assert np.array_equal(row, expected(np.arange(64))), call


def test_votes_of_whole_and_broken_warps() -> None:
    text = """__global__ void votes(unsigned *to)
{
    const unsigned t = threadIdx.x;
    to[t] = __ballot_sync(~0u, t % 3 == 0);
    to[40 + t] = __any_sync(~0u, t == 35);
    to[80 + t] = __all_sync(~0u, t < 32);
    if (t % 2)
        to[120 + t] = __ballot_sync(0xAAAAAAAA, 1);
    __syncwarp();
}
"""
    result = np.zeros((4, 40), np.uint32)
    launch(kernel(text, 40), 40, result)
    threads = np.arange(40)
    whole, broken = (sum(1 << t % 32 for t in warp if t % 3 == 0) for warp in (range(32), range(32, 40)))
    assert np.array_equal(result[0], np.where(threads < 32, whole, broken))
    assert np.array_equal(result[1], threads >= 32)
    assert np.array_equal(result[2], threads < 32)
    assert np.array_equal(result[3], np.where(threads % 2, np.where(threads < 32, 0xAAAAAAAA, 0xAA), 0))


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("if (threadIdx.x != 7) __syncwarp();\nelse __syncthreads();", "waits at the warp's exchange in line 3"),
        ("__syncwarp(threadIdx.x < 16 ? 0x1FFFF : ~0u);", "with another mask"),
        ("__syncwarp(0xFF);", r"\(8, 0, 0\) .* is not in the mask 0xff"),
    ],
)
def test_exchange_that_a_thread_does_not_join_is_found(statement: str, message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        launch(kernel(f"__global__ void exchange(int *)\n{{\n{statement}\n}}\n"), 32, np.zeros(1, np.int32))


def test_barriers_that_count() -> None:
    text = """__global__ void counts(int *to)
{
    const int t = threadIdx.x;
    to[t] = __syncthreads_count(t % 5 == 0);
    to[48 + t] = __syncthreads_or(t == 40);
    to[96 + t] = __syncthreads_and(t != 40);
    to[144 + t] = __syncthreads_and(t < 48);
}
"""
    result = np.zeros((4, 48), np.int32)
    launch(kernel(text, 48), 48, result)
    assert np.array_equal(result, np.repeat([[10], [1], [0], [1]], 48, axis=1))


def test_atomics_and_results_that_depend_on_the_order() -> None:
    sums = "__global__ void sums(int *to)\n{\n    atomicAdd(to, 1);\n    atomicMax(to + 1, (int)threadIdx.x);\n}\n"
    result = np.zeros(2, np.int32)
    launch(kernel(sums), 96, result)
    assert result.tolist() == [96, 31]
    with pytest.raises(EmulationError, match="depends on the order"):
        launch(kernel("__global__ void last(int *to)\n{\n    *to = threadIdx.x;\n}\n"), 32, result)


ROOTS = """__global__ void %(entry)s(const %(scalar)s *x, %(scalar)s *to, long long count)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count)
        return;
    to[i] = %(sqrt)s(x[i]);
    to[count + i] = %(reciprocal)s(x[i]);
    to[2 * count + i] = %(rsqrt)s(x[i]);
}
"""


@pytest.mark.parametrize(
    ("dtype", "names", "units"),
    [
        ("float32", {"scalar": "float", "sqrt": "__fsqrt_rn", "reciprocal": "__frcp_rn", "rsqrt": "rsqrtf"}, 2),
        ("float64", {"scalar": "double", "sqrt": "__dsqrt_rn", "reciprocal": "__drcp_rn", "rsqrt": "rsqrt"}, 1),
    ],
)
def test_roots_are_as_accurate_as_promised_and_no_more(dtype: str, names: dict[str, str], units: int) -> None:
    x = np.exp2(np.linspace(-60, 60, 5000)).astype(dtype)
    result = np.zeros((3, len(x)), dtype)
    launch(kernel(ROOTS % {"entry": "roots", **names}), len(x), x, result, len(x))
    assert np.array_equal(result[0], np.sqrt(x))
    assert np.array_equal(result[1], 1 / x)
    exact = 1 / np.sqrt(x.astype(np.longdouble))
    away = np.abs(result[2] - exact) / np.spacing(result[2])
    assert 0.6 < away.max() <= units


def test_special_roots() -> None:
    x = np.array([0.0, -0.0, -1.0, np.inf, np.nan], np.float32)
    result = np.zeros((3, len(x)), np.float32)
    names = {"scalar": "float", "sqrt": "__fsqrt_rn", "reciprocal": "__frcp_rn", "rsqrt": "rsqrtf"}
    launch(kernel(ROOTS % {"entry": "roots", **names}), len(x), x, result, len(x))
    assert np.array_equal(result[2], [np.inf, -np.inf, np.nan, 0, np.nan], equal_nan=True)


MULTIPLY_ADD = """__global__ void fused(const float *x, float *to)
{
    to[0] = x[0] * x[0] - x[1];
    to[1] = __fadd_rn(__fmul_rn(x[0], x[0]), -x[1]);
    to[2] = fmaf(x[0], x[0], -x[1]);
    to[3] = x[2] * x[3];
}
"""


@pytest.mark.parametrize("flags", [(), ("-fmad=false",), ("-ftz=true",)])
def test_contraction_and_denormals_follow_the_flags(flags: tuple[str, ...]) -> None:
    one = np.float32(1 + 2.0**-12)
    x = np.array([one, one * one, 2.0**-140, 1], np.float32)
    to = np.zeros(4, np.float32)
    launch(kernel(MULTIPLY_ADD, 1, flags=flags), 1, x, to, options=FUSED)
    contracted = flags != ("-fmad=false",) and "fma" in cpu_features()
    assert to.tolist() == [2.0**-24 * contracted, 0, 2.0**-24, 0 if flags == ("-ftz=true",) else 2.0**-140]
    assert x[2] * x[3] == 2.0**-140, "this thread flushes denormals now"


def test_unknown_flags_are_refused() -> None:
    with pytest.raises(EmulationError, match=r"--use_fast_math.*-ftz=true"):
        launch(kernel(MULTIPLY_ADD, 1, flags=("--use_fast_math",)), 1, numbers(3), numbers(4))


def test_high_words_of_products() -> None:
    text = """__global__ void products(const unsigned long long *x, unsigned long long *to)
{
    to[threadIdx.x] = __umul64hi(x[threadIdx.x], 0xD2E7470EE14C6C93ull);
}
"""
    x = np.array([0, 1, 2**32, 2**63 + 12345, 2**64 - 1], np.uint64)
    to = np.zeros_like(x)
    launch(kernel(text, len(x)), len(x), x, to)
    assert to.tolist() == [int(value) * 0xD2E7470EE14C6C93 >> 64 for value in x]


SCALE = """__global__ void %s(const float *x, float *y, double by, long long count)
{
    const long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < count)
        y[i] = x[i] * by;
}
"""


def test_arguments_may_be_numbers_of_python_and_of_numpy() -> None:
    y = numbers(50)
    launch(kernel(SCALE % "scale"), 50, numbers(50), y, np.float64(2), np.int64(50))
    launch(kernel(SCALE % "scale"), 50, y, y, 2.0, 50)
    assert np.array_equal(y, 4 * numbers(50))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((numbers(5), numbers(5), 2.0), r"3 arguments, expected 4: \*cf4 \*f4 f8 i8"),
        ((numbers(5), np.zeros(5), 2.0, 5), r"argument 1 is float64 array, the parameter is \*f4"),
        ((numbers(5), numbers(10)[::2], 2.0, 5), "argument 1 is"),
        ((numbers(5), numbers(5), np.float32(2), 5), "argument 2 is"),
        ((numbers(5), numbers(5), 2.0, np.int32(5)), "argument 3 is"),
        ((numbers(5), numbers(5), 2.0, 2**63), "argument 3 is"),
        ((numbers(5), 0, 2.0, 5), "argument 1 is 0"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(EmulationError, match=message):
        launch(kernel(SCALE % "scale"), 5, *arguments)


def test_several_kernels_make_one_program() -> None:
    sources = tuple(kernel(SCALE % name) for name in ("first", "second"))
    program = compile_program(sources)
    y = numbers(40)
    for source in sources:
        program.launch(source, 40, y, y, 3.0, 40)
    assert np.array_equal(y, 9 * numbers(40))


def test_blocks_of_a_grid_that_is_too_large_to_run() -> None:
    count = 2**40
    y = np.zeros(32, np.float32)
    source = kernel(SCALE % "scale", 512)
    first = count // 512 - 3
    # Addresses wrap around: where the heap begins low this one is below zero.
    pointer = (y.ctypes.data - 4 * (count - 32)) % 2**64
    compile_program((source,)).launch_unfenced(
        source, count, y.ctypes.data, pointer, 1.0, 0, blocks=(first, first + 2)
    )
    assert not y.any()
    block = count // 512 - 1
    source = kernel(
        "__global__ void place(long long *to)\n{\n    *to = (long long)blockIdx.x * blockDim.x + threadIdx.x;\n}\n",
        512,
    )
    to = np.zeros(1, np.int64)
    compile_program((source,)).launch_unfenced(source, count, to.ctypes.data, blocks=(block, block + 1))
    assert to == count - 1


@pytest.mark.parametrize("at_end", [False, True])
@pytest.mark.parametrize("count", [0, 1, 3, 1024, 1025])
def test_fenced_memory_is_an_array_like_any_other(count: int, at_end: bool) -> None:
    memory = FencedMemory((count,), np.float32, at_end=at_end)
    memory.array[...] = numbers(count)
    assert not memory.damage()
    assert memory.array.ctypes.data % 16 == 0
    assert memory.array.tobytes() == numbers(count).tobytes()


def test_fenced_memory_notices_a_write_to_its_margin() -> None:
    memory = FencedMemory((3,), np.float32, at_end=True)
    beside = np.lib.stride_tricks.as_strided(memory.array, (4,))
    beside[3] = 0
    assert memory.damage() == "after"


@pytest.mark.parametrize(("entry", "margin"), [("last", 16), ("last_strip_", 32)])
def test_arrays_end_at_their_fence_but_for_what_vectors_or_sectors_leave(entry: str, margin: int) -> None:
    """A read of the element after that is found."""
    kernel = f'extern "C" __global__ void {entry}(const float *a, float *l) {{ l[0] = a[{margin // 4}]; }}'
    source = KernelSource(kernel, entry, 1, (), Launch(1, 1))
    with pytest.raises(EmulationError, match="read or wrote where it may not"):
        compile_program((source,)).launch(source, 1, numbers(margin // 4), np.zeros(1, np.float32))
