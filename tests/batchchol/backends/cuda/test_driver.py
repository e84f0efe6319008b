"""The driver's calls around streams: events that are used again, captures that are seen and left alone."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from batchchol.backends.cuda.launching.driver import Driver, _Attribute, _Configuration
from batchchol.errors import DeviceError

RELAXED = 2


class Library:
    """What a driver calls of libcuda, noted; `status` is what waiting answers, `capturing` the streams that do."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.events, self.mode, self.status = 0, 0, 0
        self.capturing: set[int] = set()

    def cuEventCreate(self, event: Any, flags: int) -> int:
        self.events += 1
        event._obj.value = 100 + self.events
        return 0

    def cuThreadExchangeStreamCaptureMode(self, mode: Any) -> int:
        self.mode, mode._obj.value = mode._obj.value, self.mode
        return 0

    def cuModuleGetFunction(self, handle: Any, module: int, entry: bytes) -> int:
        return 0

    def cuFuncSetCacheConfig(self, function: int, split: int) -> int:
        return 0

    def cuFuncSetAttribute(self, function: int, attribute: int, value: int) -> int:
        self.calls.append(("attribute", attribute, value))
        return 0

    def record(self, event: int, stream: int) -> int:
        self.calls.append(("record", event, stream))
        return 0

    def wait(self, stream: int, event: int, flags: int) -> int:
        self.calls.append(("wait", event, stream))
        return self.status

    def ask(self, stream: int, answer: int) -> int:
        ctypes.c_int.from_address(answer).value = int(stream in self.capturing)
        return 0


@pytest.fixture
def library() -> Library:
    return Library()


@pytest.fixture
def driver(library: Library, monkeypatch: pytest.MonkeyPatch) -> Driver:
    monkeypatch.setattr(Driver, "_describe", lambda self, status: "words")
    driver = object.__new__(Driver)
    driver.__dict__.update(
        _cuda=library,
        _events=[],
        _record_event=library.record,
        _wait_event=library.wait,
        _ask_capturing=library.ask,
    )
    return driver


def test_one_event_is_enough_for_streams_that_wait_one_after_the_other(driver: Driver, library: Library) -> None:
    driver.wait_for(0, 7)
    driver.wait_for(8, 0)
    assert library.events == 1
    assert library.calls == [("record", 101, 0), ("wait", 101, 7), ("record", 101, 8), ("wait", 101, 0)]


def test_an_event_that_something_went_wrong_with_is_not_used_again(driver: Driver, library: Library) -> None:
    library.status = 905
    with pytest.raises(DeviceError, match=r"waiting for another library's stream: words \(CUDA error 905\)"):
        driver.wait_for(0, 7)
    library.status = 0
    driver.wait_for(0, 7)
    assert library.calls[-1] == ("wait", 102, 7)


def test_a_captured_stream_is_known(driver: Driver, library: Library) -> None:
    library.capturing.add(7)
    assert [driver.is_capturing(stream) for stream in (7, 8)] == [True, False]


def test_the_mode_of_captures_is_put_back(driver: Driver, library: Library) -> None:
    def fail() -> None:
        with driver.relaxed():
            assert library.mode == RELAXED
            raise MemoryError

    library.mode = 1
    with pytest.raises(MemoryError):
        fail()
    assert library.mode == 1


@pytest.mark.parametrize(("shared_bytes", "allowed"), [(0, []), (40_000, [40_000]), (200_000, [200_000])])
def test_all_dynamic_shared_memory_is_asked_for(
    driver: Driver, library: Library, shared_bytes: int, allowed: list[int]
) -> None:
    """Less than 48 KiB of it too: with what a kernel declares itself it may be more."""
    driver.function(1, "potrf", shared_bytes=shared_bytes, cache="shared")
    assert [value for name, _, value in library.calls if name == "attribute"] == allowed


def test_the_signatures_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Everything:
        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return SimpleNamespace()

    prototypes: list[tuple[str, Any]] = []
    monkeypatch.setattr(ctypes, "CDLL", lambda name: Everything())
    monkeypatch.setattr(ctypes, "PyDLL", lambda name: "libcuda")
    monkeypatch.setattr(ctypes, "PYFUNCTYPE", lambda *types: lambda where: prototypes.append(where) or where[0])
    driver = Driver()
    assert driver._launch == "cuLaunchKernel"
    assert (driver._record_event, driver._wait_event) == ("cuEventRecord", "cuStreamWaitEvent")
    assert (driver._get_current, driver._ask_capturing) == ("cuCtxGetCurrent", "cuStreamIsCapturing")
    assert {name for name, _ in prototypes} & set(asked) == set(), "each has its one way"


def test_early_launches_are_told_so_but_not_to_a_graph(driver: Driver, library: Library) -> None:
    launched: list[tuple[Any, ...]] = []

    def configured(address: int, function: int, parameters: int, extra: None) -> int:
        configuration = _Configuration.from_address(address)
        attribute = _Attribute.from_address(configuration.attributes)
        numbers = [getattr(configuration, name) for name, _ in _Configuration._fields_ if name != "attributes"]
        launched.append((function, parameters, numbers, attribute.id, attribute.value[0]))
        return 0

    def plain(*arguments: Any) -> int:
        launched.append(arguments)
        return 0

    driver.__dict__.update(_launch=plain, launch_configured=configured, _early=_Attribute(6, (1,)))
    library.capturing.add(7)
    for stream, pdl in ((0, True), (8, True), (7, True), (8, False)):
        driver.launch(5, 132, 64, 1000, stream, 4096, "potrf", pdl=pdl)
    early = [132, 1, 1, 64, 1, 1, 1000]
    # A stream of 0 is a null pointer to ctypes, 6 is CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION.
    assert launched[:2] == [(5, 4096, [*early, None, 1], 6, 1), (5, 4096, [*early, 8, 1], 6, 1)]
    assert launched[2:] == [(5, 132, 1, 1, 64, 1, 1, 1000, stream, 4096, None) for stream in (7, 8)]


def test_a_failed_early_launch_names_the_kernel(driver: Driver) -> None:
    driver.__dict__.update(launch_configured=lambda *arguments: 1, _early=_Attribute(6, (1,)))
    with pytest.raises(DeviceError, match=r"launching potrf on 132 blocks of 64 threads: words"):
        driver.launch(5, 132, 64, 0, 0, 4096, "potrf", pdl=True)


def test_structures_are_those_of_the_driver() -> None:
    """CUlaunchAttribute and CUlaunchConfig of cuda.h, with pointers of 64 bits."""
    assert (ctypes.sizeof(_Attribute), _Attribute.value.offset) == (72, 8)
    assert (ctypes.sizeof(_Configuration), _Configuration.stream.offset, _Configuration.count.offset) == (56, 32, 48)
