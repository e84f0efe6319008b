"""The common part of algorithms of several launches, which are called like a GPU's kernel."""

from __future__ import annotations

from typing import Any

import numpy as np

from batchchol.backends.cuda import memory, support
from batchchol.backends.cuda.device import Device, device


class OnGpu:
    """What runs on the GPU that is used."""

    @property
    def gpu(self) -> Device:
        """The GPU that it runs on."""
        return device()

    def copy(self, source: int, target: int, size: int, stream: Any) -> None:
        """Queue a copy of `size` bytes, unless both are at one address."""
        if source != target:
            support.copy(self.gpu, source, target, size, stream=stream)


def workspace(shape: tuple[int, ...], dtype: str, what: str, stream: Any) -> Any:
    """Room on a GPU, which work on the stream may use until that is done."""
    room = memory.empty(shape, np.dtype(dtype), what)
    if stream is not None:
        memory.share(stream, room)
    return room
