"""Two kernels in turn: what is not theirs cancels, what is theirs is found, and no data is found in a cache."""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest

from batchchol import Layout, default_spec, get_backend
from batchchol.artifacts.c_compiler import compile_shared, find_compiler
from batchchol.artifacts.c_library import COMMON_FLAGS
from batchchol.asv_plugin.gate import pair
from batchchol.asv_plugin.gate.pair import Pair, cold_buffers, loaded, rounds
from batchchol.backends.foreign import foreign_kernel
from batchchol.errors import ResidualError
from batchchol.measure.timing import CACHES
from kernelgen import generate

Call = Callable[[], None]
Bursts = Sequence[Sequence[Call]]


class FakeBackend:
    """Its time passes by calls: `seconds` says how long one takes: by name, place in the round and time."""

    def __init__(self, seconds: Callable[[str, int, float], float], name: str = "cpu") -> None:
        self._seconds, self.name, self.now = seconds, name, 0.0
        self.order: list[str] = []
        self.used: list[int] = []
        self.alone: set[bool] = set()

    def in_turn(self, bursts: Bursts, *, alone: bool = False) -> list[float]:
        self.alone.add(alone)
        return [self._burst(place, burst) for place, burst in enumerate(bursts)]

    def _burst(self, place: int, burst: Sequence[Call]) -> float:
        begin = self.now
        for call in burst:
            assert isinstance(call, partial)
            name, buffer = call.args
            self.order.append(name)
            self.used.append(buffer)
            self.now += self._seconds(name, place, self.now)
        return (self.now - begin) / len(burst)


def calls(sets: int = 9) -> list[list[Call]]:
    return [[partial(lambda *_: None, name, buffer) for buffer in range(sets)] for name in "AB"]


def found(backend: FakeBackend, seconds: float = 0.0, sets: int = 9) -> list[float]:
    logs, times = rounds(backend, calls(sets), seconds, alone=True)  # type: ignore[arg-type]
    assert len(logs) == len(times[0]) == len(times[1])
    return logs


def test_the_order_is_abba_then_baab() -> None:
    backend = FakeBackend(lambda *_: 1e-3)
    logs = found(backend)
    assert "".join(backend.order[4:]) == ("ABBA" + "BAAB") * (len(logs) // 2)
    assert backend.alone == {True}


def test_a_drift_cancels_exactly() -> None:
    # Each call takes a little longer than the one before it, by as much each time.
    backend = FakeBackend(lambda *_: 1e-3 + 1e-5 * len(backend.order))
    assert found(backend) == pytest.approx([0.0] * pair.FEWEST_ROUNDS, abs=1e-12)


@pytest.mark.parametrize("bias", [1.3, 0.8])
def test_what_the_first_of_a_round_suffers_cancels(bias: float) -> None:
    logs = found(FakeBackend(lambda _, place, __: 1e-3 * (bias if place == 0 else 1)))
    assert abs(logs[0]) > 0.05
    assert median(logs) == pytest.approx(0, abs=1e-12)


def test_the_number_of_rounds_is_even_whenever_the_time_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    for ending in range(12):
        clock = itertools.count()
        monkeypatch.setattr(pair.time, "perf_counter", lambda clock=clock: float(next(clock)))
        assert len(found(FakeBackend(lambda *_: 1e-3), seconds=ending)) % 2 == 0
        monkeypatch.undo()


def test_a_planted_slowdown_is_found_amid_noise() -> None:
    rng = np.random.default_rng(0)
    backend = FakeBackend(lambda name, *_: 1e-3 * (1.05 if name == "B" else 1) * rng.uniform(1, 1.01))
    assert median(found(backend, 0.02)) == pytest.approx(math.log(1.05), abs=0.005)


def test_a_gpus_turn_is_a_burst() -> None:
    backend = FakeBackend(lambda *_: 1e-5, name="cuda")
    found(backend)
    assert backend.order[4:44] == ["A"] * 20 + ["B"] * 20


def test_between_two_uses_of_a_buffer_others_of_twice_the_cache_are_used() -> None:
    backend = FakeBackend(lambda *_: 1e-3)
    found(backend, 0.01)
    for buffer in range(9):
        places = [place for place, each in enumerate(backend.used[4:]) if each == buffer]
        between = [set(backend.used[4:][a + 1 : b]) for a, b in itertools.pairwise(places)]
        assert all(len(others) >= 3 for others in between)


CHUNKED, CANONICAL = Layout.chunked(16), Layout.canonical()
OPERATIONS = [("potrf", 1), ("potrs", 3), ("potri", 1), ("logdet", 1)]


@cache
def compiled(text: str, flags: tuple[str, ...]) -> bytes:
    """Machine code of a source."""
    return compile_shared(find_compiler(), text, (*COMMON_FLAGS, *flags)).data


@pytest.fixture
def small_cache(monkeypatch: pytest.MonkeyPatch) -> int:
    """The machine's last-level cache is said to have 256 KiB."""
    monkeypatch.setattr(type(get_backend("cpu")), "last_level_cache_bytes", lambda _: 1 << 18)
    return 1 << 18


@pytest.fixture
def described(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """described(op, layout): what a commit says of a kernel, its machine code in a file."""

    def make(
        op: Any = "potrf", layout: Layout = CHUNKED, nrhs: int = 1, old: str = "", new: str = ""
    ) -> dict[str, Any]:
        spec = default_spec(3, layout=layout.kind, chunk=layout.chunk, order=layout.order, op=op)
        source = generate(spec)
        assert old in source.text
        text = source.text.replace(old, new, 1) if old else source.text
        code = compiled(text, source.flags)
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.so"
        path.write_bytes(code)
        about = {"layout": asdict(layout), "batch": 300, "threads": 1, "nrhs": nrhs, "launch": None}
        return {"spec": spec.to_dict(), "payload": str(path), "entry": source.entry, **about}

    return make


@pytest.mark.usefixtures("small_cache")
@pytest.mark.parametrize(("op", "nrhs"), OPERATIONS)
@pytest.mark.parametrize("layouts", [(CHUNKED, CHUNKED), (CANONICAL, CHUNKED)], ids=str)
def test_kernels_of_two_commits_are_checked_and_timed(
    described: Callable[..., dict[str, Any]], layouts: tuple[Layout, Layout], op: str, nrhs: int
) -> None:
    base, head = (described(op, layout, nrhs) for layout in layouts)
    compared = Pair("cpu")
    assert all(0 < compared.check(side) < 10 for side in (base, head))
    taken = compared.measure(base, head, 0.0)
    assert taken["rounds"] >= pair.FEWEST_ROUNDS
    assert taken["base"] > 0 < taken["head"]
    assert math.isfinite(taken["log_ratio"])


def test_a_wrong_result_is_found(described: Callable[..., dict[str, Any]]) -> None:
    wrong = described(old="    return status;", new="    l[0] = -l[0];\n    return status;")
    with pytest.raises(ResidualError):
        Pair("cpu").check(wrong)


@pytest.mark.parametrize(("op", "nrhs"), OPERATIONS)
@pytest.mark.parametrize("layout", [CHUNKED, CANONICAL], ids=str)
def test_cold_buffers_are_odd_in_number_and_exceed_the_cache(
    described: Callable[..., dict[str, Any]], small_cache: int, layout: Layout, op: str, nrhs: int
) -> None:
    sets = cold_buffers(get_backend("cpu"), loaded(described(op, layout, nrhs)))
    assert len(sets) % 2 == 1
    assert sum(array.nbytes for each in sets for array in each) >= CACHES * small_cache
    # As few matrices as that takes: turns are short.
    assert len(sets) >= 3
    places = {address(array) for each in sets for array in each}
    assert len(places) == sum(map(len, sets))


def address(array: Any) -> int:
    return int(array.data.ctypes.data if hasattr(array, "batch") else array.ctypes.data)


def test_the_same_code_loaded_twice_is_two_libraries(described: Callable[..., dict[str, Any]]) -> None:
    kernel = described()
    code, spec = Path(kernel["payload"]).read_bytes(), loaded(kernel).spec
    places = set()
    for _ in range(2):
        made: Any = foreign_kernel(spec, code, kernel["entry"], None)
        places.add(ctypes.cast(made.function, ctypes.c_void_p).value)
        # It stays loaded: the next one cannot have its place by chance.
        LOADED.append(made)
    assert len(places) == 2


LOADED: list[Any] = []


def test_code_of_another_kernel_is_refused(described: Callable[..., dict[str, Any]]) -> None:
    kernel = described()
    with pytest.raises(AttributeError, match="potrf_of_another_name"):
        loaded({**kernel, "entry": "potrf_of_another_name"})
