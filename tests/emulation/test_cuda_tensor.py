"""The emulation's tensor cores and blocks: what they compute, and that what a GPU would not do is found."""

from __future__ import annotations

import numpy as np
import pytest

from kernelgen import KernelSource, Launch

from ..fenced_memory import Array
from .programs import EmulationError, compile_program

# Blocks of a 16 by 8 matrix and of one of 8 by 8, by rows, to shared memory and to the tensor cores; the result back.
PRODUCT = """extern "C" __global__ void product(const float *a, const float *b, float *c)
{
    extern __shared__ float rows[];
    const int lane = threadIdx.x, g = lane / 4, t = lane % 4, row = lane % 16, half = lane / 16 * 4;
    for (int e = lane; e < 128; e += 32)
        rows[e] = a[e];
    __syncwarp();
    float f[4], sum[4] = {};
    __read_blocks(f, rows + 8 * row + half);
    __multiply_add(sum, f, b[8 * g + t], b[8 * g + 4 + t]);
    const float mine[4] = {sum[0], sum[1], sum[2], sum[3]};
    __write_blocks(rows + 8 * row + half, mine);
    __syncwarp();
    for (int e = lane; e < 128; e += 32)
        c[e] = rows[e];
}
"""
MISTAKES = {
    "a misaligned row to read": ("f, rows + 8 * row + half", "f, rows + 8 * row + half + 1", "misaligned or outside"),
    "a row beside shared memory": ("f, rows + 8 * row + half", "f, rows + 8 * row + 8", "misaligned or outside"),
    "a row of an array": ("f, rows + 8 * row + half", "f, a + 8 * row + half", "misaligned or outside"),
    "a misaligned row to write": (
        "(rows + 8 * row + half, mine",
        "(rows + row + half, mine",
        "misaligned or outside",
    ),
    "a lane that does not read": (
        "    __read_blocks",
        "    if (lane != 5) __read_blocks",
        "lane 5 .* is missing from",
    ),
    "a lane that ends": (
        "    __read_blocks",
        "    if (lane == 31) return;\n    __read_blocks",
        "lane 31 .* is missing",
    ),
    "a lane that multiplies meanwhile": (
        "    __read_blocks",
        "    if (lane == 7) __multiply_add(sum, f, 0, 0); else __read_blocks",
        "is missing from what",
    ),
    "rows that are not there yet": ("    __syncwarp();\n    float", "    float", "depends on the order"),
    "rows that are not there any more": ("    __syncwarp();\n    for", "    for", "depends on the order"),
}


def product(text: str, a: Array, b: Array) -> Array:
    """The blocks that the lanes wrote, and what they made of them by rows: a b^T."""
    source = KernelSource(text, "product", 1, (), Launch(32, 1, 4 * 128))
    result = np.zeros((16, 8), np.float32)
    compile_program((source,)).launch(source, 1, a, b, result)
    return result


def operands() -> tuple[Array, Array]:
    random = np.random.default_rng(1)
    return random.standard_normal((16, 8), np.float32), random.standard_normal((8, 8), np.float32)


def by_rows(blocks: Array) -> Array:
    """A result as it is, of blocks that hold columns 2 t and 2 t + 1 of rows g and 8 + g as their column t."""
    rows = np.zeros((16, 8), np.float32)
    for e in range(4):
        rows[e // 2 * 8 : e // 2 * 8 + 8, e % 2 :: 2] = blocks[e % 2 * 8 : e % 2 * 8 + 8, e // 2 * 4 : e // 2 * 4 + 4]
    return rows


def test_tensor_cores_multiply_eleven_bits() -> None:
    a, b = operands()
    short = [(x.view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32).astype(np.float64) for x in (a, b)]
    exact, made = short[0] @ short[1].T, by_rows(product(PRODUCT, a, b))
    assert np.abs(made - exact).max() <= 2.0**-23 * np.abs(exact).max()
    assert (np.abs(made) <= np.abs(exact)).all(), "sums are cut off"
    assert np.abs(made - a.astype(np.float64) @ b.T).max() > 1e-4, "factors have but 11 bits"


@pytest.mark.parametrize("mistake", MISTAKES)
def test_what_no_gpu_would_do_is_found(mistake: str) -> None:
    before, after, message = MISTAKES[mistake]
    assert before in PRODUCT
    with pytest.raises(EmulationError, match=message):
        product(PRODUCT.replace(before, after, 1), *operands())
