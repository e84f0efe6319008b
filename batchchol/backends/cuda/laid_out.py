"""What `support` queues, one kernel at a time, laid out for many launches on arrays of the same shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from batchchol.backends.cuda.device import Device, word_of
from batchchol.backends.cuda.launching.prepared import PreparedLaunch
from kernelgen import KernelSource


class _Noted:
    """A device that notes what it is to launch."""

    source: KernelSource
    items: int
    words: list[int]

    def launch(self, source: KernelSource, items: int, args: Sequence[Any], stream: object | None = None) -> None:
        self.source, self.items, self.words = source, items, [word_of(argument) for argument in args]


def laid_out(gpu: Device, addresses: int, queue: Callable[..., None]) -> PreparedLaunch:
    """The launch that `queue` makes of a device and some addresses, which its kernel takes first, in their order."""
    noted, places = _Noted(), range(1, addresses + 1)
    queue(noted, *places)
    assert noted.words[:addresses] == list(places)
    return gpu.prepared(gpu.load(noted.source), noted.items, addresses, noted.words[addresses:])
