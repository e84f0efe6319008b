"""The calls of the CUDA driver for what PyCUDA 2026.1 lacks.

PyCUDA launches on streams that it made itself, and has no early launches; torch and CuPy hand over their streams as
plain addresses, and graphs want handles of functions, which PyCUDA gives away none of. For these, modules are loaded
and kernels launched here, by the same library and in the context that PyCUDA made current. Here too are captures,
events between libraries, and what an error is by its number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from batchchol.errors import DeviceError, DeviceLost, WrongArchitecture

LIBRARY = "libcuda.so.1"

# An invalid or foreign image, PTX that this driver does not know or cannot compile.
_NOT_FOR_THIS_GPU = {200, 209, 218, 221, 222, 223}
# Uncorrectable memory, an address, instruction or assertion that failed, a time limit: until the process ends every
# call answers the same.
_LOST = {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721}
_PREFER_SHARED, _PREFER_L1 = 1, 2
_MAX_DYNAMIC_SHARED_SIZE = 8
_DISABLE_TIMING = 2
# Of a stream; priorities beyond the GPU's are its highest.
_NON_BLOCKING, _MOST_URGENT = 1, -100
_POINTER_MEMORY_TYPE, _POINTER_DEVICE = 2, 9
_HOST_MEMORY = 1
_RELAXED_CAPTURE = 2
_PROGRAMMATIC_STREAM_SERIALIZATION = 6

_Address = ctypes.c_void_p
# Calls on the path of every library call. They keep the interpreter's lock: releasing and taking it costs more than
# they do; the others may wait for the GPU.
_QUICK: dict[str, tuple[Any, ...]] = {
    "cuCtxGetCurrent": (_Address,),
    "cuMemsetD32Async": (_Address, ctypes.c_uint, ctypes.c_size_t, _Address),
    "cuLaunchKernel": (_Address, *(ctypes.c_uint,) * 7, *(_Address,) * 3),
    "cuLaunchKernelEx": (_Address,) * 4,
    "cuEventRecord": (_Address, _Address),
    "cuStreamWaitEvent": (_Address, _Address, ctypes.c_uint),
    "cuStreamIsCapturing": (_Address, _Address),
}
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cuCtxGetDevice": (_Address,),
    "cuCtxSetCurrent": (_Address,),
    "cuCtxSynchronize": (),
    "cuEventCreate": (_Address, ctypes.c_uint),
    "cuFuncSetAttribute": (_Address, ctypes.c_int, ctypes.c_int),
    "cuFuncSetCacheConfig": (_Address, ctypes.c_int),
    "cuGetErrorString": (ctypes.c_int, _Address),
    "cuMemcpyDtoH_v2": (_Address, _Address, ctypes.c_size_t),
    "cuModuleGetFunction": (_Address, _Address, ctypes.c_char_p),
    "cuModuleLoadData": (_Address, ctypes.c_char_p),
    "cuOccupancyMaxActiveBlocksPerMultiprocessor": (_Address, _Address, ctypes.c_int, ctypes.c_size_t),
    "cuStreamCreateWithPriority": (_Address, ctypes.c_uint, ctypes.c_int),
    "cuPointerGetAttribute": (_Address, ctypes.c_int, ctypes.c_uint64),
    "cuThreadExchangeStreamCaptureMode": (_Address,),
}


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute, its value as a number."""

    _fields_ = (("id", ctypes.c_int), ("value", ctypes.c_uint64 * 8))


class _Configuration(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        *((name, ctypes.c_uint) for name in ("grid_x", "grid_y", "grid_z", "block_x", "block_y", "block_z")),
        ("shared_bytes", ctypes.c_uint),
        ("stream", _Address),
        ("attributes", _Address),
        ("count", ctypes.c_uint),
    )


class Driver:
    """libcuda, which PyCUDA has loaded and initialised before.

    Every method raises DeviceLost, DeviceError or WrongArchitecture for what the driver refuses.

    Attributes
    ----------
    launch_configured : callable
        cuLaunchKernelEx, which raises nothing: the addresses of a CUlaunchConfig, the handle of a kernel, the address
        of an array of the addresses of its arguments, and None; its status.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(LIBRARY)
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, ctypes.c_int
        self._cuda = library
        quick = ctypes.PyDLL(LIBRARY)
        # Prototypes: a call of one takes half as long as of a library's attribute (measured).
        (
            self._get_current,
            self._set_words,
            self._launch,
            self.launch_configured,
            self._record_event,
            self._wait_event,
            self._ask_capturing,
        ) = (ctypes.PYFUNCTYPE(ctypes.c_int, *arguments)((name, quick)) for name, arguments in _QUICK.items())
        # Free ones: making one costs more than the rest of waiting.
        self._events: list[int] = []
        self._early = _Attribute(_PROGRAMMATIC_STREAM_SERIALIZATION, (1,))

    def current_context(self) -> int:
        """The address of the context that is current in this thread, 0 if there is none."""
        context = ctypes.c_void_p()
        if status := self._get_current(ctypes.addressof(context)):
            self.check(status, "asking for the current context")
        return context.value or 0

    def current_device(self) -> int:
        """The number of the GPU whose context is current in this thread."""
        number = ctypes.c_int()
        self.check(self._cuda.cuCtxGetDevice(ctypes.byref(number)), "asking for the current GPU")
        return number.value

    def make_current(self, context: int) -> None:
        """Make a context current in this thread."""
        self.check(self._cuda.cuCtxSetCurrent(context), "making the context current")

    def synchronize(self) -> None:
        """Wait for all work of the context; what went wrong in it is raised here."""
        self.check(self._cuda.cuCtxSynchronize(), "waiting for the GPU")

    def load(self, image: bytes, name: str) -> int:
        """Load a cubin or PTX into the current context; the module's handle."""
        return self._out(self._cuda.cuModuleLoadData, f"loading {name}", image)

    def function(self, module: int, entry: str, *, shared_bytes: int, cache: str) -> int:
        """The handle of a module's kernel, allowed as much dynamic shared memory, the split of on-chip memory set."""
        handle = self._out(self._cuda.cuModuleGetFunction, f"looking for {entry}", module, entry.encode())
        self.configure(handle, entry, shared_bytes=shared_bytes, cache=cache)
        return handle

    def configure(self, function: int, entry: str, *, shared_bytes: int, cache: str) -> None:
        """Allow a kernel's next launches as much dynamic shared memory, and set the split of on-chip memory."""
        split = _PREFER_SHARED if cache == "shared" else _PREFER_L1
        self.check(self._cuda.cuFuncSetCacheConfig(function, split), f"configuring {entry}")
        # Without it 48 KiB are all there is, of which what the kernel declares itself takes its share.
        if shared_bytes:
            status = self._cuda.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED_SIZE, shared_bytes)
            self.check(status, f"giving {entry} {shared_bytes:,} bytes of shared memory")

    def resident_blocks(self, function: int, threads: int, shared_bytes: int, entry: str) -> int:
        """Blocks of `threads` threads that a multiprocessor holds at once."""
        blocks = ctypes.c_int()
        call = self._cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor
        status = call(ctypes.byref(blocks), function, threads, shared_bytes)
        self.check(status, f"asking for the occupancy of {entry}")
        return blocks.value

    def launch(
        self,
        function: int,
        blocks: int,
        threads: int,
        shared_bytes: int,
        stream: int,
        parameters: int,
        entry: str,
        *,
        pdl: bool = False,
    ) -> None:
        """Queue a kernel; `parameters` is the address of an array of the addresses of its arguments.

        With `pdl` its blocks may become resident before what is ahead on the stream has ended, and wait there.
        """
        # In a graph some drivers refuse that.
        if pdl and not (stream and self.is_capturing(stream)):
            early = ctypes.addressof(self._early)
            configuration = _Configuration(blocks, 1, 1, threads, 1, 1, shared_bytes, stream, early, 1)
            status = self.launch_configured(ctypes.addressof(configuration), function, parameters, None)
        else:
            status = self._launch(function, blocks, 1, 1, threads, 1, 1, shared_bytes, stream, parameters, None)
        if status:
            self.check(status, f"launching {entry} on {blocks:,} blocks of {threads} threads")

    def urgent_stream(self) -> int:
        """A new stream whose work need not wait for the default stream's, and goes first where both could."""
        return self._out(self._cuda.cuStreamCreateWithPriority, "making a stream", _NON_BLOCKING, _MOST_URGENT)

    def fill_words(self, address: int, word: int, count: int, stream: int) -> None:
        """Queue a fill of `count` 32-bit words."""
        if status := self._set_words(address, word & 0xFFFFFFFF, count, stream):
            self.check(status, "setting memory")

    def fetch(self, address: int, place: int, nbytes: int) -> None:
        """Copy bytes to a place on the host, once all work of the context is done."""
        self.synchronize()
        if nbytes:
            self.check(self._cuda.cuMemcpyDtoH_v2(place, address, nbytes), "copying from the GPU")

    def wait_for(self, other: int, stream: int) -> None:
        """Have later work of `stream` wait for what is queued on the stream `other` now."""
        doing = "waiting for another library's stream"
        try:
            event = self._events.pop()
        except IndexError:
            event = self._out(self._cuda.cuEventCreate, doing, _DISABLE_TIMING)
        if status := self._record_event(event, other) or self._wait_event(stream, event, 0):
            self.check(status, doing)
        # Who waits for it waits for what it stood for then: it may be used again.
        self._events.append(event)

    def is_capturing(self, stream: int) -> bool:
        """Whether what is queued on a stream goes into a graph rather than to the GPU."""
        capturing = ctypes.c_int()
        if status := self._ask_capturing(stream, ctypes.addressof(capturing)):
            self.check(status, "asking whether a stream is being captured")
        return bool(capturing.value)

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """Allow this thread what the driver forbids while a stream is being captured, for what is no part of that."""
        mode = ctypes.c_int(_RELAXED_CAPTURE)
        doing = "changing the mode of captures"
        self.check(self._cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), doing)
        try:
            yield
        finally:
            self.check(self._cuda.cuThreadExchangeStreamCaptureMode(ctypes.byref(mode)), doing)

    def device_of(self, address: int) -> int | None:
        """The number of the GPU whose memory an address lies in; None if the driver does not say."""
        number = ctypes.c_int(-1)
        status = self._cuda.cuPointerGetAttribute(ctypes.byref(number), _POINTER_DEVICE, address)
        return None if status or number.value < 0 else number.value

    def is_pinned(self, address: int) -> bool:
        """Whether an address is one of pinned memory of the host, which the GPU copies without the host's help."""
        kind = ctypes.c_int(0)
        status = self._cuda.cuPointerGetAttribute(ctypes.byref(kind), _POINTER_MEMORY_TYPE, address)
        return not status and kind.value == _HOST_MEMORY

    def check(self, status: int, doing: str) -> None:
        """Raise what a status means; `doing` begins the sentence."""
        if not status:
            return
        reason = f"{doing}: {self._describe(status)} (CUDA error {status})"
        if status in _LOST:
            raise DeviceLost(status, reason)
        if status in _NOT_FOR_THIS_GPU:
            raise WrongArchitecture(status, reason)
        raise DeviceError(status, reason)

    def _out(self, call: Any, doing: str, *arguments: Any) -> int:
        result = ctypes.c_void_p()
        self.check(call(ctypes.byref(result), *arguments), doing)
        return result.value or 0

    def _describe(self, status: int) -> str:
        text = ctypes.c_char_p()
        if self._cuda.cuGetErrorString(status, ctypes.byref(text)) or text.value is None:
            return "unknown error"
        return text.value.decode(errors="replace")
