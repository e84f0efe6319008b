"""The GPUs of this process: their primary contexts, loaded kernels, launches.

The contexts are the primary ones, which torch and CuPy use as well. Nothing happens before the first use. The main
thread then keeps the context of the GPU that is used first on PyCUDA's stack, so that PyCUDA's arrays work there, and
takes it off at exit: PyCUDA aborts a process that leaves it there, and a thread too, which is why other threads have
it there during a call only.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, cached_property
from typing import Any

import numpy as np

from batchchol.artifacts.nvcc import architecture_of
from batchchol.backends.cuda.gpus import first
from batchchol.backends.cuda.launching.driver import Driver
from batchchol.backends.cuda.launching.functions import Arguments, Function, Loader
from batchchol.backends.cuda.launching.prepared import PreparedLaunch
from batchchol.errors import BackendUnavailable, DeviceError, install
from kernelgen import KernelSource
from kernelgen.gpu import PDL_CAPABILITY

INSTALL = (
    f"{install('gpu')}; where there is no wheel of PyCUDA this compiles it, which needs a C++ compiler and the CUDA "
    "toolkit (nvcc on the PATH, its headers and libraries)"
)
_NOTHING = nullcontext()


class _Queue(threading.local):
    """Whether this thread queues several launches in a row."""

    open = False


def device() -> Device:
    """The GPU that this thread's calls use (`gpus`), found and initialised by the first call.

    Raises
    ------
    BackendUnavailable
        If there is no PyCUDA, no driver or no such GPU; says which, and what to do.
    """
    return device_of(first())


@cache
def device_of(number: int) -> Device:
    """The GPU of a number, as `device` finds it."""
    return Device(number)


def number_at(address: int) -> int:
    """The number of the GPU whose memory an address lies in; the one that calls use if the driver does not say."""
    found = device().driver.device_of(address)
    return first() if found is None else found


class Device:
    """A visible GPU; see `device`, which makes the only one of a process that has this number.

    Attributes
    ----------
    number : int
        Its number, as CUDA counts.
    pycuda : module
        PyCUDA's `driver`, or its stand-in.
    architecture : str
        What code is compiled for, such as "sm_90".
    model : str
        Its name, such as "NVIDIA H200".
    multiprocessors : int
        How many it has.
    """

    def __init__(self, number: int = 0) -> None:
        self.number, self.pycuda = number, import_pycuda()
        self.handle = _gpu(self.pycuda, number)
        try:
            self._context = self.handle.retain_primary_context()
            self.driver = Driver()
        except (self.pycuda.Error, OSError, AttributeError) as error:
            raise BackendUnavailable(f"{self.handle.name()} is there but cannot be used: {error}") from error
        self.multiprocessors = int(self.handle.get_attribute(self.pycuda.device_attribute.MULTIPROCESSOR_COUNT))
        self.architecture = architecture_of(*self.handle.compute_capability())
        self.model = str(self.handle.name())
        self._address = int(self._context.handle)
        self.loader = Loader(self.pycuda, self.driver, self.architecture, self.current)
        self._queue = _Queue()
        self._forked = self._entered = False
        os.register_at_fork(after_in_child=self._after_fork)
        self._check_other_contexts()
        atexit.register(self._leave)
        self._enter_thread()

    @cached_property
    def array_type(self) -> Any:
        """PyCUDA's GPUArray, or its stand-in."""
        if self.pycuda.__name__ == "pycuda.driver":
            from pycuda.gpuarray import GPUArray

            return GPUArray
        from batchchol.backends.cuda.launching.device_array import DeviceArray

        return DeviceArray

    @cached_property
    def has_pdl(self) -> bool:
        """Whether kernels may be launched before what they follow has ended."""
        return bool(self.handle.compute_capability() >= PDL_CAPABILITY)

    def is_current(self) -> bool:
        """Whether the context is current in this thread, so that launches and the driver's own calls work."""
        return not self._forked and self.driver.current_context() == self._address

    @contextmanager
    def current(self, doing: str = "") -> Iterator[None]:
        """Have the context current in this thread, for PyCUDA too; errors of PyCUDA's become the library's.

        `doing` is what an error says was done.
        """
        self._enter_thread()
        before = self.driver.current_context()
        pushed = self.pycuda.Context.get_current() is None or before != self._address
        if pushed:
            self._context.push()
        try:
            yield
        except self.pycuda.MemoryError:
            raise
        except self.pycuda.Error as error:
            self.driver.synchronize()
            raise DeviceError(0, f"{doing}: {error}" if doing else str(error)) from error
        finally:
            if pushed:
                self._context.pop()
                # PyCUDA makes that one current that it had pushed before, whichever was current.
                if before and self.driver.current_context() != before:
                    self.driver.make_current(before)

    def at_hand(self, doing: str = "") -> AbstractContextManager[None]:
        """`current`, unless it is so already: asking takes less than making sure."""
        return _NOTHING if self.is_current() else self.current(doing)

    def synchronize(self) -> None:
        """Wait for all work on the GPU.

        Raises
        ------
        DeviceError
            If a kernel failed meanwhile.
        """
        with self.current():
            self.driver.synchronize()

    def load(self, source: KernelSource) -> Function:
        """The loaded kernel of a source, built and loaded at most once.

        Raises
        ------
        CompilerNotFound, CompileError, CacheError
            If it cannot be built.
        WrongArchitecture
            If what was built, or carried here, is not for this GPU.
        """
        return self.loader.function(source, by_driver=self._queue.open)

    @contextmanager
    def queueing(self) -> Iterator[None]:
        """Have the driver make this thread's launches meanwhile: many kernels in a row.

        Kernels that wait for their predecessors themselves are launched before those have ended, and a launch takes
        the host less than by PyCUDA (datasets/calls/launch_host_h200.csv).
        """
        before, self._queue.open = self._queue.open, True
        try:
            yield
        finally:
            self._queue.open = before

    def launch(self, source: KernelSource, items: int, args: Sequence[Any], stream: Any = None) -> None:
        """Queue a kernel on `items` items, if there are any; block and grid are those of `source.launch`.

        Parameters
        ----------
        args : sequence
            The kernel's arguments: integers (64 bits), NumPy scalars of the kernel's own types, or arrays of the
            device.
        stream : optional
            PyCUDA's, torch's or CuPy's stream or the address of one; by default the device's default stream.
        """
        if items:
            self.run(self.load(source), items, [word_of(argument) for argument in args], stream)

    def run(self, function: Function, items: int, words: Sequence[int], stream: Any = None) -> None:
        """`launch` for a loaded kernel whose arguments are 64-bit words.

        PyCUDA launches it on the default stream and on its own ones, unless this thread is `queueing`; on other
        libraries' streams, which PyCUDA does not take, the driver does.
        """
        if not items:
            return
        if not self.is_current():
            with self.current():
                return self._run(function, items, words, stream)
        self._run(function, items, words, stream)

    def prepared(self, function: Function, items: int, addresses: int, words: Sequence[int]) -> PreparedLaunch:
        """`run` of a kernel that takes some `addresses` followed by these words, laid out for repeated launches."""
        launch = function.launch
        blocks = launch.grid(items, self.multiprocessors)
        handle = function.code.handle or self.loader.handle(function)
        geometry = blocks, launch.threads, launch.shared_bytes
        return PreparedLaunch(self, handle, function.entry, geometry, addresses, words)

    def resident_blocks(self, function: Function) -> int:
        """Blocks of a kernel that a multiprocessor holds at once; 0 if it has no room for one."""
        launch = function.launch
        with self.current(f"asking for the occupancy of {function.entry}"):
            handle = self.loader.handle(function)
            return self.driver.resident_blocks(handle, launch.threads, launch.shared_bytes, function.entry)

    def fill_words(self, address: int, word: int, count: int, stream: Any = None) -> None:
        """Queue a fill of `count` 32-bit words."""
        with self.at_hand():
            self.driver.fill_words(address, word, count, 0 if stream is None else stream_address(stream))

    def _run(self, function: Function, items: int, words: Sequence[int], stream: Any) -> None:
        blocks = function.launch.grid(items, self.multiprocessors)
        if self._queue.open or function.code.source is None:
            self._run_by_driver(function, blocks, words, 0 if stream is None else stream_address(stream))
        elif stream is None or isinstance(stream, self.pycuda.Stream):
            self._run_by_pycuda(function, blocks, words, stream)
        elif address := stream_address(stream):
            self._run_by_driver(function, blocks, words, address)
        else:
            self._run_by_pycuda(function, blocks, words, None)

    def _run_by_pycuda(self, function: Function, blocks: int, words: Sequence[int], stream: Any) -> None:
        """Launch a kernel plainly, also one that waits for its predecessors itself: a single call has none."""
        launch, code, count = function.launch, function.code, len(words)
        loaded = code.pycuda if code.prepared == count else self.loader.prepared(function, count)
        grid, block = (blocks, 1), (launch.threads, 1, 1)
        try:
            if stream is None:
                loaded.prepared_call(grid, block, *words, shared_size=launch.shared_bytes)
            else:
                loaded.prepared_async_call(grid, block, stream, *words, shared_size=launch.shared_bytes)
        except self.pycuda.Error as error:
            # Says which error it was, if the GPU is lost.
            self.driver.synchronize()
            said = f"launching {function.entry} on {blocks:,} blocks of {launch.threads} threads: {error}"
            raise DeviceError(0, said) from error

    def _run_by_driver(self, function: Function, blocks: int, words: Sequence[int], stream: int) -> None:
        launch, handle = function.launch, function.code.handle
        if handle is None:
            handle = self.loader.handle(function)
        try:
            arguments = function.spare.pop()
        except IndexError:
            arguments = Arguments(len(words))
        arguments.words[:] = list(words)
        self.driver.launch(
            handle,
            blocks,
            launch.threads,
            launch.shared_bytes,
            stream,
            arguments.address,
            function.entry,
            pdl=launch.pdl and self.has_pdl,
        )
        # The driver has copied them.
        function.spare.append(arguments)

    def _enter_thread(self) -> None:
        """Make the context current in a thread that has none."""
        if self._forked:
            raise BackendUnavailable(
                "this process was forked from one that used the GPU, and CUDA does not work in such a child: start "
                "processes with multiprocessing's 'spawn' or 'forkserver', or use the GPU in the children alone"
            )
        if self.driver.current_context():
            return
        if threading.current_thread() is threading.main_thread():
            self._context.push()
            self._entered = True
        else:
            self.driver.make_current(self._address)

    def _leave(self) -> None:
        if not self._forked:
            if self._entered:
                self._context.pop()
            # Left to PyCUDA's destructor it would be detached as if it were no primary context, and complain.
            self._context.detach()

    def _after_fork(self) -> None:
        self._forked = True

    def _check_other_contexts(self) -> None:
        other = self.pycuda.Context.get_current()
        if other is None or int(other.handle) == self._address:
            return
        if self.driver.current_device() == self.number:
            raise BackendUnavailable(
                "another context than the GPU's primary one is current in PyCUDA, and its arrays are of no use here: "
                "import pycuda.autoprimaryctx in place of pycuda.autoinit"
            )


def import_pycuda() -> Any:
    """PyCUDA's driver module; where it is not installed, its stand-in.

    Raises
    ------
    BackendUnavailable
        If there is no driver, or PyCUDA cannot be loaded; says how to get what is missing.
    """
    try:
        try:
            import pycuda.driver
        except ModuleNotFoundError:
            from batchchol.backends.cuda.launching import without_pycuda

            return without_pycuda
    except ImportError as error:
        if "libcuda" in str(error):
            raise BackendUnavailable(
                f"there is no NVIDIA driver: {error}. Install the driver; in a container, start it with its GPUs "
                "(docker run --gpus all)"
            ) from error
        raise BackendUnavailable(
            f"PyCUDA is installed but cannot be loaded: {error}. Install what is missing, or it anew: {INSTALL}"
        ) from error
    return pycuda.driver


def stream_address(stream: Any) -> int:
    """The address of a stream: an integer, PyCUDA's `handle`, CuPy's `ptr` or torch's `cuda_stream`."""
    # Building the union of the two types takes longer than the rest.
    if type(stream) is int:
        return stream
    if isinstance(stream, int | np.integer):
        return int(stream)
    for name in ("handle", "ptr", "cuda_stream"):
        if (address := getattr(stream, name, None)) is not None:
            return int(address)
    raise TypeError(
        f"stream: got {type(stream).__name__}, expected a stream of PyCUDA, torch or CuPy, or the address of one"
    )


def _gpu(pycuda: Any, number: int) -> Any:
    try:
        pycuda.init()
        count = pycuda.Device.count()
    except pycuda.Error as error:
        raise BackendUnavailable(
            f"the NVIDIA driver finds no GPU that can be used ({error}): see that nvidia-smi lists one, that "
            "CUDA_VISIBLE_DEVICES does not hide it, and that the driver is not older than the toolkit"
        ) from error
    if not count:
        raise BackendUnavailable("the NVIDIA driver finds no GPU: see what nvidia-smi and CUDA_VISIBLE_DEVICES say")
    if number >= count:
        raise BackendUnavailable(f"there is no GPU {number}: the NVIDIA driver finds {count}, counted from 0")
    return pycuda.Device(number)


def word_of(argument: Any) -> int:
    """An argument as the 64-bit word whose first bytes are its value."""
    if isinstance(argument, int):
        return argument & 0xFFFFFFFFFFFFFFFF
    if isinstance(argument, np.generic):
        return int.from_bytes(argument.tobytes(), "little")
    if hasattr(argument, "gpudata"):
        return int(argument.gpudata or 0)
    raise TypeError(f"args: got {type(argument).__name__}, expected an integer, a NumPy scalar or a device array")
