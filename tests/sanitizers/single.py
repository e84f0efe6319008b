"""One matrix on a block of threads, its panel in shared memory, under compute-sanitizer.

On a machine with a GPU, from the root of the repository:

    compute-sanitizer --tool racecheck python -m tests.sanitizers.single [--part 1/3]

`python -m tests.sanitizers` runs them among all others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.operations.residual import RATIO_BOUND, ratios
from kernelgen import KernelSource
from kernelgen.emit.families.single import TILES, generate_single_panel
from kernelgen.schedules.axes import LOOKINGS

from .larger import by_parts, spd

# A corner of a tile, whole tiles, and more of them than threads take at a time.
ORDERS = {8: (75, 21), 16: (80, 150), 32: (100, 301)}


def single() -> Iterator[tuple[int, str, KernelSource]]:
    """Order, type and kernel: every order of evaluation and tile size, types in turns."""
    for turn, (looking, nb) in enumerate(product(LOOKINGS, TILES)):
        for which, n in enumerate(ORDERS[nb]):
            dtype = ("float32", "float64")[(turn + which) % 2]
            math = ("ieee", "fast")[turn // 2 % 2]
            yield n, dtype, generate_single_panel(n, dtype, math, looking, nb)


def check_single(n: int, dtype: str, source: KernelSource) -> None:
    """Factor a matrix, and one that fails in its last column; check the factor and info."""
    gpu, a = device(), spd(1, n, dtype)
    kernel = gpu.load(source)
    for last, expected in ((a[0, -1, -1], 0), (-1, n)):
        a[0, -1, -1] = last
        given, l = memory.to_device(a, "a matrix"), memory.to_device(np.full_like(a, np.nan), "its factor")
        info = memory.info_array(1)
        gpu.run(kernel, 1, (int(given.gpudata), int(l.gpudata), int(info.gpudata), 1, 1))
        assert memory.to_host(info).tolist() == [expected], f"{source.entry}: info"
        if not expected:
            lower = np.ascontiguousarray(memory.to_host(l).swapaxes(1, 2))
            assert ratios(a, lower).max() <= RATIO_BOUND["fast"], f"{source.entry}: the factor is wrong"
            assert not np.triu(lower, 1).any(), f"{source.entry}: the other triangle is not zero"


def run_single(part: int = 1, parts: int = 1) -> int:
    """Every `parts`-th kernel from number `part` on; how many these are."""
    chosen = [*single()][part - 1 :: parts]
    for n, dtype, source in chosen:
        print(source.entry, flush=True)
        check_single(n, dtype, source)
    return len(chosen)


if __name__ == "__main__":
    by_parts(run_single, __doc__)
