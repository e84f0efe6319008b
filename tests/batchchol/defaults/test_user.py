"""The user's tables: the next call uses what was learned, and nothing that is wrong with a file stops a call."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol import Batch, cholesky, default_spec, factor, get_backend
from batchchol.defaults import lookup, user
from batchchol.defaults.entries import Placed, Tuned
from batchchol.defaults.lookup import array_layout, default_layout
from batchchol.defaults.tables import Case
from batchchol.defaults.user import TableWarning, load, merge, path_of
from batchchol.errors import CacheError, SettingError
from kernelgen import KernelSpec, Layout, Schedule, StripSchedule, ThreadSchedule
from tests.asked import choice_of

N, BATCH = 4, 600
ROWS = Case("float32", "ieee", "canonical", order="row")
OTHER = ThreadSchedule(1, "right")
ABOUT: dict[str, str | int] = {"date": "2026-11-22", "protocol": "single", "samples": 100}


@pytest.fixture(autouse=True)
def own_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user whose tables count, and are in a folder of the test's own."""
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(user.VARIABLE, "user")
    lookup.forget()
    yield tmp_path / "cache"
    monkeypatch.undo()
    lookup.forget()


def tuned(case: Case = ROWS, schedule: Schedule = OTHER, **said: Any) -> Tuned:
    given: dict[str, Any] = {"n": N, "batch": BATCH, "ns": 1.5, "kept": False, "incumbent_ns": 2.0, "margin": 0.03}
    given |= {"incumbent": ThreadSchedule(2), "runner_up": None, "about": ABOUT}
    return Tuned(case=case, schedule=schedule, **given | said)


def chunks(chunk: int) -> Case:
    return Case("float32", "ieee", "chunked", chunk)


def learn(*entries: Tuned, placements: tuple[Placed, ...] = (), device: str = "") -> Path:
    cpu = get_backend("cpu")
    return lookup.learn(device or cpu.model, cpu.target, None, entries, placements)


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch) -> list[KernelSpec]:
    """The specs whose kernels are asked for."""
    cpu, asked = get_backend("cpu"), []
    kernel = cpu.kernel

    def spied(spec: KernelSpec) -> Any:
        asked.append(spec)
        return kernel(spec)

    monkeypatch.setattr(cpu, "kernel", spied)
    return asked


def test_the_next_call_uses_what_was_learned(
    spd: Callable[..., Any], used: list[KernelSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the same process, for arrays, batches, and a result that remembers how it was made; and warm calls look
    nothing up."""
    a = spd(BATCH, N)
    batch = Batch.from_dense(a)
    out = Batch.empty(N, BATCH, batch.layout)
    calls = (lambda: cholesky(a), lambda: factor(batch), lambda: factor(batch, out=out))
    before = [call() for call in calls]
    assert OTHER.nb not in {spec.schedule.nb for spec in used}
    assert batch.layout.chunk is not None
    learn(tuned(), tuned(chunks(batch.layout.chunk)))
    used.clear()
    after = [call() for call in calls]
    assert [(spec.schedule.nb, spec.schedule.looking) for spec in used] == [(1, "right")] * 3
    np.testing.assert_allclose(after[0], before[0], rtol=1e-5)
    np.testing.assert_allclose(after[2].L.to_dense(), before[0], rtol=1e-5, atol=1e-6)
    monkeypatch.setattr(lookup, "load", None)
    monkeypatch.setattr(Path, "read_bytes", None)
    for call in calls:
        call()


def test_a_new_process_uses_it(run_python: Callable[..., subprocess.CompletedProcess[str]], own_tables: Path) -> None:
    learn(tuned())
    script = f"""
from batchchol import get_backend, cholesky
import numpy as np
from batchchol.defaults import lookup
import os
cpu = get_backend("cpu")
kernel = cpu.kernel
cpu.kernel = lambda spec: (print(spec.name), kernel(spec))[1]
for tables in ("user", "shipped"):
    os.environ["BATCHCHOL_TABLES"] = tables
    lookup.forget()
    print(np.diagonal(cholesky(4 * np.eye({N}, dtype="float32")[None].repeat({BATCH}, 0))[-1]))
"""
    done = run_python("-c", script)
    own, _, shipped = done.stdout.partition("[2. 2. 2. 2.]")
    assert "_right_nb1_" in own, done.stderr
    assert "_nb1_" not in shipped
    assert "[2. 2. 2. 2.]" in shipped


def asked(device: str | None = "a cpu", **case: Any) -> int:
    given: dict[str, Any] = {"n": N, "target": "avx2", "layout": "canonical", "order": "row", "batch": BATCH}
    return default_spec(device=device, **given | case).schedule.nb


def test_an_entry_answers_for_nothing_but_what_was_measured() -> None:
    shipped = asked(None)
    far = tuned(schedule=ThreadSchedule(3), batch=100 * BATCH)
    lookup.learn("a cpu", "avx2", None, [tuned(), far, tuned(batch=10**9, kept=True)])
    assert shipped not in (1, 3)
    assert [asked(batch=b) for b in (BATCH // 2, BATCH, 2 * BATCH)] == [1, 1, 1]
    assert [asked(batch=b) for b in (0, BATCH // 2 - 1, 2 * BATCH + 1, 10**9, None)] == [shipped] * 5
    assert [asked(batch=b) for b in (50 * BATCH, 200 * BATCH, 49 * BATCH)] == [3, 3, shipped]
    assert asked(None) == asked("another cpu") == shipped
    assert asked(uplo="upper", order="col") == 1, "which is the lower one in rows"
    assert asked(in_place=True) == 1
    others: list[dict[str, Any]] = [
        {"order": "col"},
        {"math": "fast"},
        {"dtype": "float64"},
        {"uplo": "upper"},
        {"n": N - 1},
    ]
    for other in others:
        assert asked(**other) == asked(None, **other), other
    for layout in ("chunked", "interleaved"):
        packed: dict[str, Any] = {"layout": layout, "order": "col", "chunk": 8 if layout == "chunked" else None}
        assert asked(**packed) == asked(None, **packed)


def test_a_chunk_has_entries_of_its_own() -> None:
    lookup.learn("a cpu", "avx2", None, [tuned(chunks(8))])
    packed: dict[str, Any] = {"layout": "chunked", "order": "col"}
    assert asked(**packed, chunk=8) == 1
    assert asked(**packed, chunk=16) == asked(None, **packed, chunk=16) != 1
    assert asked(layout="chunked", order="row", chunk=8) == asked(None, layout="chunked", order="row", chunk=8)
    choice = choice_of(N, target="avx2", device="a cpu", chunk=8, batch=BATCH)
    assert choice.tuned == tuned(chunks(8))
    assert "a-cpu-avx2.json of 2026-11-22" in choice.origin


def test_the_nearest_of_two_entries_answers() -> None:
    entries = [tuned(), tuned(schedule=ThreadSchedule(3), batch=3 * BATCH // 2)]
    lookup.learn("a cpu", "avx2", None, entries)
    assert [asked(batch=b) for b in (BATCH, int(1.2 * BATCH), int(1.25 * BATCH))] == [1, 1, 3]


def test_a_file_survives_and_is_merged_entry_by_entry() -> None:
    placed = Placed(
        "arrays", "float32", N, BATCH, Layout.chunked(8), 1.0, False, Layout.canonical(), 2.0, 0.03, ABOUT
    )
    full = tuned(runner_up=ThreadSchedule(4), runner_up_ns=1.7)
    path = merge("a cpu", "avx2", [full, tuned(n=5)], [placed])
    assert path == path_of("a cpu", "avx2")
    assert merge("a cpu", "avx2", [tuned(ns=1.25), tuned(batch=7)]) == path
    table = load("a cpu", "avx2", "avx2")
    assert (table.path, table.placements) == (path, (placed,))
    assert table.entries == (tuned(ns=1.25), tuned(n=5), tuned(batch=7))
    assert path.read_text().count("\n  {") == 4, "a line an entry"
    merge("a cpu", "avx2", [full])
    assert full in load("a cpu", "avx2", "avx2").entries


def test_writers_at_the_same_time_keep_each_others_entries() -> None:
    """A lock of the system's: that of two open files excludes threads as it does processes."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda batch: merge("a cpu", "avx2", [tuned(batch=batch)]), range(1, 41)))
    assert sorted(entry.batch for entry in load("a cpu", "avx2", "avx2").entries) == list(range(1, 41))
    assert {path.name for path in path_of("a cpu", "avx2").parent.iterdir()} == {"a-cpu-avx2.json", "a-cpu-avx2.lock"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "damaged: Expecting value"),
        (b"\xff\xff", "damaged: 'utf-8' codec can't decode"),
        (b'{"format": 1}', "damaged: not a table"),
        (b"[" * 100_000, "damaged: maximum recursion depth"),
        (b'{"format": 9, "device": "", "architecture": "", "entries": [], "placements": []}', "of format 9"),
        (
            b'{"format": 1, "device": "b", "architecture": "avx2", "entries": [], "placements": []}',
            "it is of 'b', 'avx2'",
        ),
    ],
)
def test_a_damaged_file_costs_a_warning_that_names_it(content: bytes, reason: str, spd: Callable[..., Any]) -> None:
    cpu = get_backend("cpu")
    path = path_of(cpu.model, cpu.target)
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    a = spd(3, N)
    with pytest.warns(TableWarning) as caught:
        l = cholesky(a)
    assert len(caught) == 1
    assert str(path) in str(caught[0].message)
    assert reason in str(caught[0].message)
    np.testing.assert_allclose(l @ l.swapaxes(-1, -2), a, rtol=1e-4)
    cholesky(a)
    if "format 9" in reason:
        with pytest.raises(CacheError, match="it is of format 9"):
            learn(tuned())
        assert path.read_bytes() == content
        return
    with pytest.warns(TableWarning, match=r"it is now .*\.damaged"):
        learn(tuned())
    assert path.with_suffix(".damaged").read_bytes() == content
    assert [entry.n for entry in load(cpu.model, cpu.target, cpu.target).entries] == [N]


def test_entries_that_cannot_be_used_are_left_out_and_kept_in_the_file() -> None:
    path = merge("a cpu", "avx2", [tuned(), tuned(n=5)])
    content = json.loads(path.read_text())
    strange = [
        dict(content["entries"][0], n=60, schedule={"family": "thread", "nb": 8, "unroll": "full"}),
        dict(content["entries"][0], n=61, schedule={"family": "quantum", "nb": 8}),
        dict(content["entries"][0], n=62, schedule={"family": "thread", "nb": 8, "colour": "red"}),
        dict(content["entries"][0], n=63, ns="fast"),
        dict(content["entries"][0], n=64, batch=0),
        {"n": 65},
        "nothing",
    ]
    content["entries"] += strange
    path.write_text(json.dumps(content))
    with pytest.warns(TableWarning, match=r"a-cpu-avx2\.json: an entry is not used \(and 6 more\), .*\[60, 600\]"):
        assert [asked(), asked(n=60)] == [1, asked(None, n=60)]
    merge("a cpu", "avx2", [tuned(n=6)])
    assert json.loads(path.read_text())["entries"] == [*content["entries"], tuned(n=6).values()]


def test_a_folder_that_cannot_be_written_is_named(own_tables: Path) -> None:
    own_tables.write_text("a file")
    assert asked() == asked(None), "and read as one without tables"
    with pytest.raises(CacheError, match=r"the cache cannot be used: .*cache: Not a directory.*BATCHCHOL_CACHE"):
        merge("a cpu", "avx2", [tuned()])


def test_the_variable_has_two_values(monkeypatch: pytest.MonkeyPatch) -> None:
    lookup.learn("a cpu", "avx2", None, [tuned()])
    monkeypatch.setenv(user.VARIABLE, "shipped")
    lookup.forget()
    assert asked() == asked(None)
    monkeypatch.setenv(user.VARIABLE, "")
    lookup.forget()
    assert asked() == 1
    monkeypatch.setenv(user.VARIABLE, "mine")
    lookup.forget()
    with pytest.raises(SettingError, match="BATCHCHOL_TABLES='mine' is unknown: use 'user' or 'shipped'"):
        asked()


def test_layouts_of_a_size_that_was_tuned(fake_gpu: object, spd: Callable[..., Any]) -> None:
    gpu = get_backend("cuda")
    moved = Layout.chunked(8)
    placed = [
        Placed(section, "float32", N, 50, moved, 1.0, False, Layout.chunked(32), 2.0, 0.03, ABOUT)
        for section in ("layouts", "arrays")
    ]
    kept = Placed("arrays", "float32", N, 1000, moved, 1.0, True, moved, 1.0, 0.03, ABOUT)
    before = [gpu.from_dense(spd(50, N)).layout, gpu.array_layout(N, 1000)]
    lookup.learn(gpu.model, "cuda", "sm_90", [tuned(chunks(8), n=N, batch=50)], [*placed, kept])
    batch = gpu.from_dense(spd(50, N))
    assert moved not in before
    assert (batch.layout, gpu.array_layout(N, 50), gpu.array_layout(N, 1000)) == (moved, moved, before[1])
    assert gpu.from_dense(spd(101, N)).layout == before[0]
    assert gpu.default_layout(N) == before[0], "of a size that nobody knows"
    assert moved not in (gpu.default_layout(N, batch=50, math="fast"), gpu.array_layout(N, 50, math="fast"))
    at: dict[str, Any] = {"target": "cuda", "arch": "sm_90", "device": gpu.model}
    assert default_layout(N, batch=25, **at) == array_layout(N, 25, **at) == moved


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to every value of a JSON document."""
    yield at
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*at, key))


@pytest.mark.filterwarnings("ignore::batchchol.defaults.user.TableWarning")
def test_no_value_of_a_table_stops_a_call() -> None:
    """JSON knows numbers that Python has no integer for, and anybody can edit a file."""
    layout = Layout("chunked", 16, "col")
    placed = Placed("layouts", "float32", N, BATCH, layout, 1.0, False, layout, 2.0, 0.03, ABOUT)
    path = merge("cpu", "avx2", [tuned(runner_up=OTHER, runner_up_ns=3.0)], [placed])
    good = path.read_text()
    assert load("cpu", "avx2", "avx2").entries
    for at in places(json.loads(good)):
        for hostile in ("1e400", "NaN", "[]", "true", '"x"', "-1", "9" * 30, "9" * 5000, "null"):
            content = json.loads(good)
            inner = content
            for key in at[:-1]:
                inner = inner[key]
            if at:
                inner[at[-1]] = "here"
            path.write_text(json.dumps(content).replace('"here"', hostile) if at else hostile)
            lookup.forget()
            choice_of(N, target="avx2", layout="canonical", order="row", batch=BATCH, device="cpu")
            default_layout(N, target="avx2", batch=BATCH, device="cpu")


@pytest.mark.parametrize("value", ["1e400", "8.5", "true", "0", str(2**63)])
@pytest.mark.parametrize("name", ["n", "batch"])
def test_sizes_that_are_none_are_named(name: str, value: str) -> None:
    path = merge("cpu", "avx2", [tuned()])
    path.write_text(path.read_text().replace(f'"{name}": {N if name == "n" else BATCH}', f'"{name}": {value}'))
    with pytest.warns(TableWarning, match=f"an entry is not used.*: {name}="):
        assert load("cpu", "avx2", "avx2").entries == ()


def test_a_pipe_in_place_of_a_table_is_not_waited_for() -> None:
    path = merge("cpu", "avx2", [tuned()])
    path.unlink()
    os.mkfifo(path)
    with pytest.warns(TableWarning, match="is not used: damaged"):
        assert load("cpu", "avx2", "avx2").entries == ()


def test_entries_of_families_of_one_math_are_read_back() -> None:
    entry = tuned(Case("float32", "fast", "chunked", 4), StripSchedule(20, stride=4), n=128)
    user.merge("a gpu", "sm_90", [entry])
    (read,) = user.load("a gpu", "sm_90", "cuda").entries
    assert (read.case, read.schedule) == (entry.case, entry.schedule)


def test_entries_of_another_operation_have_a_place_of_their_own() -> None:
    factorization = tuned(ROWS)
    solve = tuned(replace(ROWS, op="potrs"), ThreadSchedule(4, rhs=2))
    user.merge("a cpu", "avx2", [factorization])
    user.merge("a cpu", "avx2", [solve])
    read = user.load("a cpu", "avx2", "avx2").entries
    assert {each.case.op: each.schedule for each in read} == {"potrf": OTHER, "potrs": solve.schedule}
