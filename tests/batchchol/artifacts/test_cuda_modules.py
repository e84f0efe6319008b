"""Building CUDA modules: one, and all of a sweep; with a compiler, without one, and with one that fails."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import batchchol
from batchchol.artifacts import compilers, cuda_cache
from batchchol.artifacts.cache import Artifact, ArtifactCache, parse_record
from batchchol.artifacts.cuda_cache import runnable_architectures
from batchchol.artifacts.cuda_modules import MODULE_CHARACTERS, build, build_all, find, module_groups
from batchchol.errors import CacheError, CompileError, CompilerNotFound
from batchchol.progress import Progress
from kernelgen import KernelSource, Launch

from ...fakes.nvcc import compiled, kernel_source, write_fake_nvcc


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A compiler, and a cache folder of the test's own."""
    path = write_fake_nvcc(tmp_path / "nvcc")
    monkeypatch.setenv("BATCHCHOL_NVCC", str(path))
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    return path


@pytest.fixture
def no_nvcc(nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """no_nvcc(): from then on there is no compiler."""
    return lambda: monkeypatch.setenv("BATCHCHOL_NVCC", "/no/such/nvcc")


def kernels(count: int, words: str = "") -> list[KernelSource]:
    return [kernel_source(f"kernel{index}", words) for index in range(count)]


def statuses(sources: list[KernelSource], arch: str = "sm_90", **options: object) -> list[str]:
    return [outcome.status for outcome in build_all(sources, arch, **options)]  # type: ignore[arg-type]


def test_build_compiles_once(nvcc: Path, tmp_path: Path) -> None:
    (source,) = kernels(1)
    assert find(source, "sm_90") is None
    module = build(source, "sm_90")
    assert (module.kind, module.entry) == ("cubin", "kernel0")
    assert module.path.parent == tmp_path / "cache"
    stats = module.stats
    assert (stats.code_bytes, stats.registers, stats.spill_bytes) == (700, 40, 40)
    assert (stats.shared_bytes, stats.stack_bytes) == (256, 8)
    assert stats.compile_seconds > 0
    assert "13.0.88" in stats.compiler
    assert build(source, "sm_90") == find(source, "sm_90") == module
    assert compiled(nvcc) == [["kernel0"]]
    assert [path.read_text() for path in (tmp_path / "cache").glob("*.cu")] == [source.text]


def test_what_decides_the_code_decides_the_entry(nvcc: Path) -> None:
    sources = [kernel_source("a"), kernel_source("a", "other text"), kernel_source("a", flags=("-ftz=true",))]
    for source in sources:
        build(source, "sm_90")
    build(sources[0], "sm_80")
    write_fake_nvcc(nvcc, "13.1.5")
    build(sources[0], "sm_90")
    assert len(compiled(nvcc)) == 5
    build(KernelSource(sources[0].text, "a", 1, (), Launch(32, 32, cache="shared")), "sm_90")
    assert len(compiled(nvcc)) == 5, "the launch is not compiled"


def test_build_tells_what_is_wrong(nvcc: Path) -> None:
    with pytest.raises(CompileError, match="expected something else"):
        build(kernel_source("a", "BROKEN"), "sm_90")
    with pytest.raises(CompileError, match="time limit") as caught:
        build(kernel_source("a", "HANG"), "sm_90", time_limit=0.3)
    assert caught.value.status == "timeout"
    with pytest.raises(ValueError, match="arch: got 'h200'"):
        build(kernel_source("a"), "h200")


def test_cache_that_cannot_be_written_is_named_before_compiling(
    nvcc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "file" / "cache"))
    for call in (lambda: build(kernel_source("a"), "sm_90"), lambda: build_all(kernels(2), "sm_90")):
        with pytest.raises(CacheError, match="BATCHCHOL_CACHE"):
            call()
    assert compiled(nvcc) == []


def test_kernels_carried_to_a_machine_without_nvcc(nvcc: Path, no_nvcc: Callable[[], None]) -> None:
    (source,) = kernels(1)
    build(source, "sm_80")
    write_fake_nvcc(nvcc, "13.1.5")
    newest = build(source, "sm_80")
    no_nvcc()
    assert build(source, "sm_80").stats.compiler == newest.stats.compiler
    assert build(source, "sm_86") == build(source, "sm_80"), "a GPU runs cubins of its generation's earlier ones"
    with pytest.raises(CompilerNotFound, match="kernel0 is not in the cache folder") as caught:
        build(source, "sm_90")
    for words in ("/no/such/nvcc", "pip install nvidia-cuda-nvrtc", "compile --arch sm_90", "cache unpack"):
        assert words in str(caught.value)
    assert [outcome.status for outcome in build_all([source], "sm_90")] == ["compile"]
    assert statuses([source], "sm_80") == ["built"]


def test_ptx_carried_to_a_machine_without_nvcc(nvcc: Path, no_nvcc: Callable[[], None]) -> None:
    (source,) = kernels(1)
    build(source, "compute_80")
    no_nvcc()
    for arch in ("sm_80", "sm_90", "sm_130"):
        module = build(source, arch)
        assert (module.kind, module.stats.registers, module.stats.code_bytes) == ("ptx", None, 0)
    with pytest.raises(CompilerNotFound):
        build(source, "sm_75")


def test_an_unknown_architecture_is_served_with_ptx(nvcc: Path) -> None:
    module = build(kernel_source("a"), "sm_130")
    assert (module.kind, module.path.suffix) == ("ptx", ".ptx")


def test_runnable_architectures_are_tried_nearest_first() -> None:
    runnable = list(runnable_architectures("sm_103"))
    assert runnable[:6] == ["sm_103", "sm_102", "sm_101", "sm_100", "compute_103", "compute_102"]
    assert runnable[-1] == "compute_50"
    assert list(runnable_architectures("sm_90a"))[:3] == ["sm_90a", "sm_90", "compute_90"]
    assert list(runnable_architectures("compute_90")) == ["compute_90"]


def test_a_sweep_compiles_several_kernels_to_a_module(nvcc: Path, tmp_path: Path) -> None:
    sources = kernels(7)
    outcomes = build_all(sources, "sm_90", per_module=3, jobs=2)
    assert [outcome.entry for outcome in outcomes] == [source.entry for source in sources]
    assert {(outcome.status, outcome.reused) for outcome in outcomes} == {("built", False)}
    assert sorted(map(len, compiled(nvcc))) == [1, 3, 3]
    assert len(list((tmp_path / "cache").glob("*.cubin"))) == 3
    paths = [build(source, "sm_90").path for source in sources]
    assert len(set(paths)) == 3
    assert len(compiled(nvcc)) == 3


def test_seconds_of_a_module_are_divided_among_its_kernels(nvcc: Path) -> None:
    outcomes = build_all([kernel_source("a", "SLOW"), kernel_source("a" * 9, "SLOW")], "sm_90", jobs=1)
    short, long = (outcome.stats.compile_seconds for outcome in outcomes if outcome.stats is not None)
    assert 0.2 < short + long < 60
    assert long == pytest.approx(9 * short)


def test_a_sweep_goes_on_where_it_was(nvcc: Path) -> None:
    sources = kernels(6)
    assert statuses(sources[:2], jobs=1) == ["built"] * 2
    outcomes = build_all(sources, "sm_90", per_module=8, jobs=1)
    assert [outcome.reused for outcome in outcomes] == [True] * 2 + [False] * 4
    assert [sorted(names) for names in compiled(nvcc)] == [
        ["kernel0", "kernel1"],
        [f"kernel{i}" for i in range(2, 6)],
    ]


def test_modules_are_no_fuller_than_keeps_every_compiler_busy(nvcc: Path) -> None:
    assert statuses(kernels(6), jobs=3) == ["built"] * 6
    assert sorted(map(len, compiled(nvcc))) == [2, 2, 2]


def test_equal_kernels_are_compiled_once(nvcc: Path) -> None:
    (source,) = kernels(1)
    assert statuses([source, source]) == ["built"] * 2
    assert compiled(nvcc) == [["kernel0"]]


def test_a_bad_kernel_costs_only_itself(nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit runs out when a compiler hangs, however slow the machine is."""
    hangs = nvcc.with_suffix(".log.pid")

    class Timer:
        def __init__(self, seconds: float, expire: Callable[[], None]) -> None:
            self._over, self._expire = threading.Event(), expire

        def start(self) -> None:
            threading.Thread(target=self._watch, daemon=True).start()

        def cancel(self) -> None:
            self._over.set()

        def _watch(self) -> None:
            while not self._over.wait(0.01):
                if hangs.exists():
                    hangs.unlink()
                    self._expire()
                    return

    sources = [*kernels(3), kernel_source("bad", "BROKEN"), kernel_source("slow", "HANG")]
    monkeypatch.setattr(compilers.threading, "Timer", Timer)
    outcomes = build_all(sources, "sm_90", per_module=5, jobs=1)
    assert [outcome.status for outcome in outcomes] == ["built"] * 3 + ["compile", "timeout"]
    assert "expected something else" in outcomes[3].message
    assert "time limit" in outcomes[4].message
    assert outcomes[4].stats is None
    assert len(compiled(nvcc)) == 6, "together, then each by itself"


@pytest.mark.parametrize("words", ["EMPTY", "HALF", "FORGET"])
def test_a_compiler_that_lies_leaves_nothing_in_the_cache(nvcc: Path, words: str) -> None:
    assert statuses(kernels(2, words)) == ["compile"] * 2
    assert ArtifactCache().stored_keys() == []


@pytest.mark.parametrize("option", ["jobs", "per_module"])
def test_counts_are_positive(nvcc: Path, option: str) -> None:
    with pytest.raises(ValueError, match=f"{option}: got 0, expected"):
        build_all(kernels(1), "sm_90", **{option: 0})  # type: ignore[arg-type]


def test_modules_hold_kernels_of_one_kind() -> None:
    texts = [kernel_source(f"k{index}", "x" * (MODULE_CHARACTERS // 3)) for index in range(4)]
    fast = [kernel_source("fast1", flags=("-ftz=true",)), kernel_source("fast2", flags=("-ftz=true",))]
    namesakes = [kernel_source("pack", "float"), kernel_source("pack", "double")]
    groups = module_groups([*fast, *namesakes, *texts], per_module=8)
    assert sorted(source.text for group in groups for source in group) == sorted(
        source.text for source in [*fast, *namesakes, *texts]
    )
    lengths = [sum(len(source.text) for source in group) for group in groups]
    assert lengths == sorted(lengths, reverse=True)
    for group in groups:
        assert len({source.flags for source in group}) == 1
        assert len({source.entry for source in group}) == len(group)
    assert len([group for group in groups if texts[0] in group or texts[1] in group]) <= 2
    assert max(lengths) <= MODULE_CHARACTERS


def test_progress_is_told(nvcc: Path) -> None:
    seen: list[Progress] = []
    build_all(kernels(2), "sm_90")
    sources = [*kernels(4), kernel_source("bad", "BROKEN")]
    build_all(sources, "sm_90", per_module=1, jobs=1, progress=seen.append)
    assert (seen[0].done, seen[0].total, seen[0].reused, seen[0].seconds_left) == (2, 5, 2, None)
    assert [progress.done for progress in seen] == sorted(progress.done for progress in seen)
    assert (seen[-1].done, seen[-1].failed, seen[-1].seconds_left) == (5, 1, 0.0)
    assert any(progress.seconds_left for progress in seen[1:-1])
    assert seen[-1].seconds > 0


def test_an_error_in_the_progress_ends_the_compilers(nvcc: Path) -> None:
    def fail(progress: Progress) -> None:
        if nvcc.with_suffix(".log.pid").exists():
            raise ZeroDivisionError

    start = time.monotonic()
    with pytest.raises(ZeroDivisionError):
        build_all([kernel_source("a", "HANG")], "sm_90", time_limit=500, progress=fail)
    assert time.monotonic() - start < 100


def test_damaged_entries_are_built_again(nvcc: Path) -> None:
    (source,) = kernels(1)
    path = build(source, "sm_90").path
    path.write_bytes(path.read_bytes()[:-1])
    assert find(source, "sm_90") is None
    assert build(source, "sm_90").path.read_bytes()
    for record in path.parent.glob("*.json"):
        record.write_text(record.read_text().replace('"registers"', '"registries"'))
    assert find(source, "sm_90") is None
    build(source, "sm_90")
    assert len(compiled(nvcc)) == 3


def rewrite_records(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change every record as if the first versions, which do not tell damage from what they are, had written it."""
    for path in folder.glob("*.json"):
        record = json.loads(path.read_bytes())
        record.pop("check", None)
        change(record)
        record["payload"] = f"{record['sha256']}.{record['metadata']['kind']}"
        path.write_text(json.dumps(record))


def change_a_type(record: dict[str, Any]) -> None:
    record["metadata"]["registers"] = "40"


def say_it_is_another_kernel(record: dict[str, Any]) -> None:
    record["metadata"]["entry"] = "kernel7"


def say_it_is_of_no_kind(record: dict[str, Any]) -> None:
    record["metadata"]["kind"] = "elf"


@pytest.mark.parametrize("change", [change_a_type, say_it_is_another_kernel, say_it_is_of_no_kind])
def test_records_that_are_not_the_kernel_s_are_built_again(
    nvcc: Path, tmp_path: Path, change: Callable[[dict[str, Any]], None]
) -> None:
    (source,) = kernels(1)
    module = build(source, "sm_90")
    rewrite_records(tmp_path / "cache", lambda record: None)
    assert find(source, "sm_90") == module, "the first versions' entries are found"
    rewrite_records(tmp_path / "cache", change)
    assert find(source, "sm_90") is None
    assert build(source, "sm_90").data == module.data
    assert find(source, "sm_90") is not None


@pytest.mark.parametrize("arch", ["sm_90", "sm_100"], ids=["cubin", "PTX"])
@pytest.mark.parametrize("damage", ["another kernel's", "no code", "half"])
def test_payloads_that_are_not_the_kernel_s_are_built_again(
    nvcc: Path, tmp_path: Path, arch: str, damage: str
) -> None:
    first, second = kernels(2)
    module, other = build(first, arch), build(second, arch)
    payload = {"another kernel's": other.data, "no code": b"no code", "half": module.data[:-10]}[damage]
    digest = hashlib.sha256(payload).hexdigest()
    (tmp_path / "cache" / f"{digest}.{module.kind}").write_bytes(payload)
    rewrite_records(tmp_path / "cache", lambda record: record.update(sha256=digest))
    assert find(first, arch) is None
    assert build(first, arch).data == module.data
    assert find(first, arch) == build(first, arch)


def test_a_record_with_any_bit_flipped_gives_a_module_or_a_miss(nvcc: Path, tmp_path: Path) -> None:
    (source,) = kernels(1)
    module = build(source, "sm_90")
    rewrite_records(tmp_path / "cache", lambda record: None)
    path = next((tmp_path / "cache").glob("*.json"))
    text = path.read_bytes()
    read = built = 0
    for bit in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8
        with suppress(ValueError):
            found = parse_record(path.stem, bytes(flipped))
            read += 1
            made = cuda_cache._module(Artifact(module.path, module.data, found.metadata), source.entry)
            built += made is not None
    assert read > built > 0, "some are found to be damaged, some are not"


SWEEP = """
import sys
from batchchol.artifacts.cuda_modules import build_all
from kernelgen import KernelSource, Launch

def kernel(entry, words):
    text = f'/* {words} */\\nextern "C" __global__ void {entry}(int *info) {{}}'
    return KernelSource(text, entry, 1, (), Launch(1, 1))

build_all([kernel("quick", ""), kernel("endless", "HANG")], "sm_90", per_module=1, jobs=2, time_limit=500)
"""


def test_interrupt_kills_the_compilers_and_keeps_what_is_finished(nvcc: Path, tmp_path: Path) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-c", SWEEP],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(batchchol.__file__).parents[1])},
        stderr=subprocess.PIPE,
        text=True,
    )
    cache, pid = ArtifactCache(), nvcc.with_suffix(".log.pid")
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and not (pid.exists() and len(cache.stored_keys()) == 2):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert not Path(f"/proc/{pid.read_text()}").exists()
    assert list(temporary.iterdir()) == []
    assert len(cache.stored_keys()) == 2, "the record of this compiler and the one to carry"
