"""The random numbers behind every data set: a counter-based stream that any device can reproduce.

Philox4x64-10 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011), as NumPy's `Philox` bit
generator gives it raw. The exact mapping, for kernels that make the same stream:

- key       (seed, stream * 2**32 + n): two 64-bit words; `stream` is from catalogue.toml, n is the order
- counter   a recipe uses a fixed number B of blocks a matrix: block b (0 ... B-1) of matrix i is the ten
            rounds on the 256-bit counter i*B + b + 1, its least significant word first. The 1 is NumPy's: it
            increments the counter before each block.
- words     a block is four 64-bit words, in the order of the cipher's output: a matrix has words 0 ... 4*B-1
- parts     32-bit words and bytes are cut from the 64-bit words least significant first
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

WORDS_PER_BLOCK = 4
BYTES_PER_BLOCK = 32


class Words:
    """The words of matrices `start`, `start` + 1, ... of one data set, in order."""

    def __init__(self, seed: int, stream: int, n: int, blocks: int, start: int) -> None:
        key = np.array([seed, stream << 32 | n], dtype=np.uint64)
        self._generator = np.random.Philox(key=key, counter=start * blocks)
        self._words = blocks * WORDS_PER_BLOCK

    def take(self, count: int) -> NDArray[np.uint64]:
        """Return the words of the next `count` matrices: shape (count, 4*blocks), little-endian uint64."""
        raw = self._generator.random_raw(count * self._words)
        return raw.astype("<u8", copy=False).reshape(count, self._words)


def words32(drawn: NDArray[np.uint64], count: int) -> NDArray[np.uint32]:
    """Return the first `count` 32-bit words of each matrix: shape (m, count)."""
    return drawn.view("<u4")[:, :count]


def octets(drawn: NDArray[np.uint64], count: int) -> NDArray[np.uint8]:
    """Return the first `count` bytes of each matrix: shape (m, count)."""
    return drawn.view(np.uint8)[:, :count]


def blocks_for(count: int, size: int) -> int:
    """Return the blocks that hold `count` items of `size` bytes."""
    return -(-count * size // BYTES_PER_BLOCK)
