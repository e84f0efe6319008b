"""Devices for the tests of support kernels, with arrays of NumPy for memory: the emulation, and the GPU itself."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernelgen import KernelSource
from kernelgen.emit.support import support_kernels

from .emulation.programs import compile_program


class EmulatedDevice:
    """What `batchchol.backends.cuda.support` needs of a device; `launched` lists what ran, on how many items.

    Kernels run on copies between fences, which are aligned, or on the arrays themselves, wherever those begin and
    however large they are: then, if so asked, only the last block of each kernel runs.
    """

    def __init__(self, *, fenced: bool = True, last_block: bool = False) -> None:
        self._arrays: dict[int, NDArray[Any]] = {0: np.empty(0)}
        self._fenced = fenced
        self._last_block = last_block
        self.launched: list[tuple[str, int]] = []

    def address(self, array: NDArray[Any]) -> int:
        """The address of an array, which kernels may use from now on."""
        self._arrays[array.ctypes.data] = array
        return array.ctypes.data

    def launch(self, source: KernelSource, items: int, args: tuple[np.generic, ...], stream: object = None) -> None:
        if not items:
            return
        program = compile_program(support_kernels())
        self.launched.append((source.entry, items))
        if not self._fenced:
            assert source.launch is not None
            blocks = source.launch.blocks(items)
            program.launch_unfenced(source, items, *args, blocks=(blocks - 1, blocks) if self._last_block else None)
            return
        codes = program.parameters(source.entry)
        values = [
            self._array(int(arg), code) if code.startswith("*") else arg
            for code, arg in zip(codes, args, strict=True)
        ]
        program.launch(source, items, *values)

    def _array(self, address: int, code: str) -> NDArray[Any]:
        array = self._arrays[address]
        return array if address else array.astype(code.lstrip("*c"))


class GpuDevice:
    """The GPU, on copies of NumPy's arrays that come back after each kernel."""

    def __init__(self) -> None:
        self._arrays: dict[int, NDArray[Any]] = {}
        self.launched: list[tuple[str, int]] = []

    def address(self, array: NDArray[Any]) -> int:
        """The address of an array, which kernels may use from now on."""
        self._arrays[array.ctypes.data] = array
        return array.ctypes.data

    def launch(self, source: KernelSource, items: int, args: tuple[np.generic, ...], stream: object = None) -> None:
        from pycuda import gpuarray

        from batchchol.backends.cuda.device import device

        gpu = device()
        signature = source.text.split(f" {source.entry}(")[-1].split(")")[0]
        addresses = [int(arg) for arg in args[: signature.count("*")]]
        with gpu.current():
            copies = {address: gpuarray.to_gpu(self._arrays[address]) for address in addresses if address}
            pointers = [np.uint64(int(copies[address].gpudata or 0) if address else 0) for address in addresses]
            self.launched.append((source.entry, items))
            gpu.launch(source, items, (*pointers, *args[len(pointers) :]), stream)
            for address, copied in copies.items():
                if self._arrays[address].flags.writeable:
                    copied.get(self._arrays[address])


Device = EmulatedDevice | GpuDevice
