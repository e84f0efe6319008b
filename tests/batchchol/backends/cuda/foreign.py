"""Arrays of a GPU that the library did not make."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from batchchol.backends.cuda import memory


class Foreign:
    """Another library's device array: nothing but the interface."""

    def __init__(self, array: Any, **described: Any) -> None:
        self.array = array
        self.__cuda_array_interface__ = {**array.__cuda_array_interface__, **described}


def on_device(a: NDArray[Any]) -> Any:
    return memory.to_device(a, "a test's array")
