"""GPU kernels that are slower by a given part of their own time, whatever limits them.

The blocks that a launch starts with wait before they read or write anything, so that everything after them is later
by as much: by a part of what this GPU takes for the kernel, which is measured first, as the gate does. A wait at a
kernel's end would hide behind its last writes, and one in each thread behind the work of others.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from batchchol.asv_plugin.gate.pair import Contender, cold_buffers, rounds
from batchchol.backends import get_backend
from benchmarks.harness.side import Side
from kernelgen import KernelSpec, Layout

Pauses = Mapping[str, tuple[int, Mapping[int, int]]]
"""Of each kernel, by its name: the blocks that the GPU holds at once, and the cycles to wait for, by the batch."""

SECONDS = 0.1
# What a wait takes beyond its cycles: one more look at the clock.
LOOK_CYCLES = 20
_EMIT = Path("kernelgen", "emit", "__init__.py")
_SLOWER = """

_PAUSES = {pauses}
_unhurried = generate


{paused}

def generate(spec: KernelSpec) -> KernelSource:
    from dataclasses import replace

    source = _unhurried(spec)
    if source.entry not in _PAUSES:
        return source
    return replace(source, text=paused(source.text, source.entry, *_PAUSES[source.entry]))
"""


def paused(text: str, entry: str, blocks: int, cycles: Mapping[int, int]) -> str:
    """The text of a kernel of which the first `blocks` blocks wait for as many cycles as its batch says.

    They do when the launch before has ended, where the kernel waits for that itself.
    """
    *known, (_, last) = cycles.items()
    chosen = "".join(f"batch == {batch} ? {count}u : " for batch, count in known) + f"{last}u"
    wait = (
        f"    if (blockIdx.x < {blocks}) {{\n"
        f"        const unsigned pause = {chosen}, begin = (unsigned)clock();\n"
        "        while ((unsigned)clock() - begin < pause)\n"
        "            ;\n"
        "    }\n"
    )
    start = text.index("{\n", text.index(f" {entry}(")) + 2
    ready = "    wait_for_predecessors();\n"
    if (place := text.find(ready, start)) >= 0:
        start = place + len(ready)
    return text[:start] + wait + text[start:]


def slower_kernels(folder: Path, pauses: Pauses) -> None:
    """Have the kernels of a clone wait."""
    path = folder / _EMIT
    planted = _SLOWER.format(
        pauses={name: (blocks, dict(cycles)) for name, (blocks, cycles) in pauses.items()},
        paused=inspect.getsource(paused),
    )
    path.write_text(path.read_text() + planted)


def pauses(part: float, profile: str, bench: str) -> dict[str, tuple[int, dict[int, int]]]:
    """What a part of the time of each of a profile's kernels is on this GPU; see `Pauses`."""
    side = Side(profile, "cuda", None, bench)
    kernels = {key: each for key, each in side.describe().items() if "spec" in each and each["kind"] == "kernel"}
    if failed := side.build(list(kernels)):
        raise ValueError(f"some kernels do not compile: {failed}")
    found: dict[str, tuple[int, dict[int, int]]] = {}
    for key, described in kernels.items():
        seconds, megahertz, blocks = measured(described)
        count = max(round(part * seconds * megahertz * 1e6) - LOOK_CYCLES, 1)
        found.setdefault(described["entry"], (blocks, {}))[1][described["batch"]] = count
        print(
            f"{key}: {seconds * 1e6:.2f} us at {megahertz} MHz, {blocks} blocks at once: {count} cycles", flush=True
        )
    return found


def measured(described: Mapping[str, Any]) -> tuple[float, float, int]:
    """The seconds that a kernel takes, the GPU's clock in MHz, and the blocks that the GPU holds at once."""
    backend: Any = get_backend("cuda")
    spec = KernelSpec.from_dict(described["spec"])
    kernel = backend.kernel(spec)
    contender = Contender(
        spec, kernel, Layout(**described["layout"]), described["batch"], described["threads"], described["nrhs"]
    )
    calls = contender.calls(backend, cold_buffers(backend, contender))
    _, (seconds, _) = rounds(backend, [calls, calls], SECONDS, alone=False)
    blocks = kernel.gpu.resident_blocks(kernel.function) * kernel.gpu.multiprocessors
    return median(seconds), backend.conditions()["gpu_clock_mhz"], blocks
