"""Handlers of XLA's in C: they launch what they were told, and ask Python for all else."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from batchchol.artifacts.c_library import load
from batchchol.backends.cuda.launching import xla_launches
from batchchol.backends.cuda.launching.prepared import PreparedLaunch
from batchchol.backends.cuda.launching.xla_launches import XlaLaunches
from batchchol.defaults.generation import Generation
from kernelgen import KernelSource

STREAM, CONTEXT, KERNEL, FLOAT, INT = 70, 80, 90, 11, 4
Handler = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


def words(*values: int) -> Any:
    return (ctypes.c_uint64 * len(values))(*values)


class Xla:
    """XLA and the driver, as far as a handler sees them: what it launches, and the frames of its calls."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.context, self.status, self.error, self.destroyed = CONTEXT, 0, 0, 0
        kept = Handler(self._stream), Handler(self._destroy)
        addresses = [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in kept]
        self._kept: list[Any] = [*kept, words(*[0] * 8, addresses[1], 0, addresses[0])]
        one, four = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p), (ctypes.c_void_p,) * 4
        driver = one(self._current), ctypes.CFUNCTYPE(ctypes.c_int, *four)(self._launch)
        self._kept += driver
        self.driver = [ctypes.cast(each, ctypes.c_void_p).value or 0 for each in driver]

    def _stream(self, asked: int) -> int:
        (ctypes.c_uint64 * 4).from_address(asked)[3] = STREAM
        return self.error

    def _destroy(self, _: int) -> int:
        self.destroyed += 1
        return 0

    def _current(self, place: int) -> int:
        ctypes.c_uint64.from_address(place).value = self.context
        return 0

    def _launch(self, configuration: int, kernel: int, parameters: int, _: int) -> int:
        geometry = (ctypes.c_uint32 * 7).from_address(configuration)[:]
        stream, *attributes = (ctypes.c_uint64 * 3).from_address(configuration + 32)[:]
        values = [ctypes.c_uint64.from_address(each).value for each in (ctypes.c_uint64 * 5).from_address(parameters)]
        self.launched.append((geometry, stream, attributes, kernel, values))
        return self.status

    def frame(self, *shape: int, kind: int = FLOAT, extension: int = 0) -> Any:
        """A call for one argument and two results, at addresses 1000, 1001 and 1002."""
        dims, outer = words(*shape), words(*shape[:-2])
        given = words(0, 0, kind, 1000, len(shape), ctypes.addressof(dims))
        results = [words(0, 0, each, 1001 + k, 1, ctypes.addressof(outer)) for k, each in enumerate((kind, INT))]
        lists = words(ctypes.addressof(given)), words(*map(ctypes.addressof, results))
        self._kept += dims, outer, given, *results, *lists
        arguments, found = map(ctypes.addressof, lists)
        return words(0, extension, ctypes.addressof(self._kept[2]), 5, 0, 0, 0, 1, 0, arguments, 0, 0, 2, 0, found)


class Handled:
    """A handler of C's, and the calls that it left to Python."""

    def __init__(self, launches: XlaLaunches) -> None:
        self.launches, self.asked = launches, 0
        self._python = Handler(self._ask)
        place = launches.reserve()
        assert place is not None
        self.place = place
        self._call = Handler(launches.handler(place, self._python))

    def _ask(self, _: int) -> int:
        self.asked += 1
        return 0

    def __call__(self, frame: Any) -> bool:
        """Whether a call was left to Python."""
        before = self.asked
        assert not self._call(ctypes.addressof(frame))
        return self.asked > before


@pytest.fixture(scope="module")
def process() -> tuple[Xla, XlaLaunches]:
    """What a process has once."""
    source = KernelSource(xla_launches._SOURCE.read_text() + "/* for tests */", "xla_begin", 1, ())
    xla = Xla()
    return xla, XlaLaunches(load(source, "generic").handle, *xla.driver)


@pytest.fixture
def xla(process: tuple[Xla, XlaLaunches]) -> Xla:
    found, _ = process
    found.launched.clear()
    found.context, found.status, found.error, found.destroyed = CONTEXT, 0, 0, 0
    return found


@pytest.fixture
def generation() -> Generation:
    return Generation()


@pytest.fixture
def handled(process: tuple[Xla, XlaLaunches], xla: Xla, generation: Generation) -> Handled:
    """That of 7 matrices of order 3 is known."""
    found = Handled(process[1])
    assert found(xla.frame(7, 3, 3))
    launch = PreparedLaunch.__new__(PreparedLaunch)
    launch._handle, launch._geometry, launch._words = KERNEL, (4, 64, 256), (7, -1)
    for _ in range(2):
        found.launches.remember(found.place, launch, ((FLOAT, (7, 3, 3)),), 2, generation)
    return found


def test_what_is_known_is_launched(handled: Handled, xla: Xla) -> None:
    assert not handled(xla.frame(7, 3, 3))
    values = [1000, 1001, 1002, 7, (1 << 64) - 1]
    assert xla.launched == [([4, 1, 1, 64, 1, 1, 256], STREAM, [0, 0], KERNEL, values)]


def test_all_else_is_left_to_python(handled: Handled, xla: Xla, generation: Generation) -> None:
    assert handled(xla.frame(8, 3, 3))
    assert handled(xla.frame(7, 1, 3, 3))
    assert handled(xla.frame(7, 3, 3, kind=12))
    assert handled(xla.frame(7, 3, 3, extension=1))
    xla.context = CONTEXT + 1
    assert handled(xla.frame(7, 3, 3))
    xla.context, generation.valid.value = CONTEXT, 0
    assert handled(xla.frame(7, 3, 3))
    assert not xla.launched


def test_what_the_driver_or_xla_refuses_is_left_to_python(handled: Handled, xla: Xla) -> None:
    xla.status = 1
    assert handled(xla.frame(7, 3, 3))
    assert len(xla.launched) == 1
    xla.error = 1
    assert handled(xla.frame(7, 3, 3))
    assert xla.destroyed == len(xla.launched) == 1
