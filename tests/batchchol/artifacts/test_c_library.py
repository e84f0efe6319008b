"""Generated C on this machine: compiled once, kept, found damaged, refused where it cannot run."""

from __future__ import annotations

import hashlib
import json
import struct
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchchol.artifacts import c_library
from batchchol.artifacts.c_library import code_bytes, load, supported_targets
from batchchol.artifacts.cache import Artifact, parse_record
from batchchol.errors import BackendUnavailable, CacheError, CompileError
from kernelgen import KernelSource

Run = Callable[..., subprocess.CompletedProcess[str]]

SOURCE = KernelSource("int answer(int x) { return 7 * x; }\n", "answer", 1, ())
EVERYTHING = frozenset({"avx512f", "avx512dq", "avx512vl", "avx512bw", "fma", "avx2", "sse2"})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder of the test's own."""
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compiler_script(path: Path, body: str) -> Path:
    """A compiler that says it is the system's own and then does something else."""
    path.write_text(f'#!/bin/sh\nPATH=/usr/bin:/bin:$PATH\n[ "$1" = -v ] && exec cc -v\n{body}\n')
    path.chmod(0o755)
    return path


def test_source_becomes_a_function(cache: Path) -> None:
    library = load(SOURCE, "generic")
    assert library.function("answer", c_library.ctypes.c_int)(6) == 42
    assert library.stats.compile_seconds > 0
    assert library.stats.code_bytes > 0
    assert "version" in library.stats.compiler
    assert {path.suffix for path in cache.iterdir()} == {".c", ".so", ".json"}


def test_compiled_once_and_then_found(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = load(SOURCE, "generic").stats
    monkeypatch.setattr(c_library, "compile_shared", lambda *_, **__: pytest.fail("compiled again"))
    assert load(SOURCE, "generic").stats == first, "seconds are of the build, not of the look-up"


@pytest.mark.parametrize("change", ["source", "flags", "compiler", "generator"])
def test_whatever_changes_the_code_is_compiled_anew(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, change: str
) -> None:
    load(SOURCE, "generic")
    source = SOURCE
    if change == "source":
        source = KernelSource(SOURCE.text + "/* */\n", "answer", 1, ())
    elif change == "flags":
        source = KernelSource(SOURCE.text, "answer", 1, ("-DUNUSED",))
    elif change == "compiler":
        monkeypatch.setenv("BATCHCHOL_CC", "cc -DUNUSED")
    else:
        monkeypatch.setattr(c_library, "GENERATOR_VERSION", c_library.GENERATOR_VERSION + 1)
    load(source, "generic")
    assert len(list(cache.glob("*.json"))) == 2


def test_target_of_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(c_library, "cpu_features", lambda: frozenset({"fma", "sse2"}))
    assert supported_targets() == ("generic",)
    with pytest.raises(BackendUnavailable, match=r"target='avx2' needs instructions .*'generic'"):
        load(SOURCE, "avx2")


@pytest.mark.parametrize(
    ("features", "targets"),
    [
        (EVERYTHING, ("avx512", "avx2", "generic")),
        (EVERYTHING - {"avx512dq"}, ("avx2", "generic")),
        (EVERYTHING - {"fma"}, ("generic",)),
        (frozenset(), ("generic",)),
    ],
    ids=["all", "half of AVX-512", "no fma", "unknown"],
)
def test_targets_need_all_their_features(
    monkeypatch: pytest.MonkeyPatch, features: frozenset[str], targets: tuple[str, ...]
) -> None:
    monkeypatch.setattr(c_library, "cpu_features", lambda: features)
    assert supported_targets() == targets


def test_features_are_read_where_linux_tells_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(c_library, "Path", lambda _: tmp_path / "cpuinfo")
    read = c_library.cpu_features.__wrapped__
    assert read() == frozenset()
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nvmx flags\t: x y\nflags\t\t: fma avx2\n\nflags\t\t: other\n")
    assert read() == {"fma", "avx2"}


def test_compiler_that_fails_leaves_nothing_half_written(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = compiler_script(tmp_path / "cc", "echo no luck >&2; echo half > kernel.so; exit 1")
    monkeypatch.setenv("BATCHCHOL_CC", str(script))
    with pytest.raises(CompileError, match="no luck") as caught:
        load(SOURCE, "generic")
    assert caught.value.status == "compile"
    assert [path.name for path in cache.iterdir()] == ["failed"]
    script.write_text(script.read_text().replace("exit 1", 'exec cc "$@"'))
    assert load(SOURCE, "generic").function("answer", c_library.ctypes.c_int)(6) == 42


def test_object_that_cannot_be_loaded_is_a_compile_error(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = compiler_script(tmp_path / "cc", "exec cc -c -o kernel.so kernel.c")
    monkeypatch.setenv("BATCHCHOL_CC", str(script))
    with pytest.raises(CompileError, match="cannot be loaded") as caught:
        load(SOURCE, "generic")
    assert caught.value.status == "compile"
    assert str(cache) in str(caught.value)


def test_cache_that_cannot_be_written_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheError, match="BATCHCHOL_CACHE"):
        load(SOURCE, "generic")


FACTOR = """
import numpy, batchchol
print(batchchol.cholesky(numpy.array([[4.0, 2.0], [2.0, 5.0]])).tolist())
"""


def test_damaged_cache_is_repaired_by_the_next_process(run_python: Run, cache: Path) -> None:
    expected = "[[2.0, 0.0], [1.0, 2.0]]\n"
    assert run_python("-c", FACTOR).stdout == expected
    whole = {path.name: path.read_bytes() for path in cache.iterdir()}
    (library,) = cache.glob("*.so")
    (record,) = cache.glob("*.json")
    for path, damage in [(library, whole[library.name][:2000]), (library, b""), (record, b'{"sha256": "0')]:
        path.write_bytes(damage)
        done = run_python("-c", FACTOR)
        assert (done.stdout, done.stderr, done.returncode) == (expected, "", 0)
        assert library.read_bytes() == whole[library.name]
    assert {path.name for path in cache.iterdir()} == whole.keys()


OTHER = KernelSource("int other(int x) { return x; }\n", "other", 1, ())


def rename_a_field(folder: Path, record: dict[str, Any]) -> None:
    record["metadata"]["compile_sefonds"] = record["metadata"].pop("compile_seconds")


def change_a_type(folder: Path, record: dict[str, Any]) -> None:
    record["metadata"]["code_bytes"] = "many"


def payload_of_another_kernel(folder: Path, record: dict[str, Any]) -> None:
    load(OTHER, "generic")
    record["sha256"] = next(path.stem for path in folder.glob("*.so") if path.stem != record["sha256"])


def payload_that_is_no_object(folder: Path, record: dict[str, Any]) -> None:
    payload = b"no object"
    record["sha256"] = hashlib.sha256(payload).hexdigest()
    (folder / f"{record['sha256']}.so").write_bytes(payload)


def payload_that_is_half_an_object(folder: Path, record: dict[str, Any]) -> None:
    payload = (folder / record["payload"]).read_bytes()[:5000]
    record["sha256"] = hashlib.sha256(payload).hexdigest()
    (folder / f"{record['sha256']}.so").write_bytes(payload)


@pytest.mark.parametrize(
    "damage",
    [
        rename_a_field,
        change_a_type,
        payload_of_another_kernel,
        payload_that_is_no_object,
        payload_that_is_half_an_object,
    ],
)
def test_an_entry_that_is_not_the_kernel_is_built_again_once(
    cache: Path, monkeypatch: pytest.MonkeyPatch, damage: Callable[[Path, dict[str, Any]], None]
) -> None:
    load(SOURCE, "generic")
    (path,) = cache.glob("*.json")
    record = json.loads(path.read_bytes())
    # As the first versions wrote it, whose records do not tell damage from what they are.
    del record["check"]
    damage(cache, record)
    record["payload"] = f"{record['sha256']}.so"
    path.write_text(json.dumps(record))
    assert load(SOURCE, "generic").function("answer", c_library.ctypes.c_int)(6) == 42
    monkeypatch.setattr(c_library, "compile_shared", lambda *_, **__: pytest.fail("compiled again"))
    assert load(SOURCE, "generic").function("answer", c_library.ctypes.c_int)(6) == 42


CONSTRUCTOR = """
#include <stdio.h>
__attribute__((constructor)) static void run(void) {{ fclose(fopen("{}", "w")); }}
int answer(int x) {{ return 1; }}
"""


def test_code_that_others_put_into_the_cache_is_not_run(cache: Path, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    load(SOURCE, "generic")
    (path,) = cache.glob("*.json")
    (tmp_path / "evil.c").write_text(CONSTRUCTOR.format(ran))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "evil.so", tmp_path / "evil.c"], check=True)
    payload = (tmp_path / "evil.so").read_bytes()
    digest, record = hashlib.sha256(payload).hexdigest(), json.loads(path.read_bytes())
    (cache / f"{digest}.so").write_bytes(payload)
    del record["check"]
    path.write_text(json.dumps(record | {"sha256": digest, "payload": f"{digest}.so"}))
    # A file that others can write is as if it were not there; in a folder that they can write, nothing is used.
    path.chmod(0o666)
    cache.chmod(0o777)
    with pytest.raises(CacheError, match="others can write"):
        load(SOURCE, "generic")
    cache.chmod(0o700)
    assert load(SOURCE, "generic").function("answer", c_library.ctypes.c_int)(6) == 42
    assert not ran.exists()


def test_a_record_with_any_bit_flipped_gives_a_library_or_a_miss(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(SOURCE, "generic")
    (path,) = cache.glob("*.json")
    (library,) = cache.glob("*.so")
    record = json.loads(path.read_bytes())
    del record["check"]
    text, data = json.dumps(record).encode(), library.read_bytes()
    monkeypatch.setattr(c_library, "load_library", lambda data, name: SimpleNamespace(answer=1))
    read = built = 0
    for bit in range(8 * len(text)):
        flipped = bytearray(text)
        flipped[bit // 8] ^= 1 << bit % 8
        with suppress(ValueError):
            found = parse_record(path.stem, bytes(flipped))
            read += 1
            with suppress(ValueError):
                c_library._library(Artifact(library, data, found.metadata), "answer")
                built += 1
    assert read > built > 0, "some are found to be damaged, some are not"


def elf(order: str, sections: list[tuple[int, int]]) -> bytes:
    """A 64-bit ELF file with nothing but a section table: the flags and the size of each section."""
    header = bytearray(64)
    header[:6] = b"\x7fELF\x02" + (b"\x01" if order == "<" else b"\x02")
    struct.pack_into(order + "Q", header, 0x28, 64)
    struct.pack_into(order + "HH", header, 0x3A, 64, len(sections))
    table = [struct.pack(order + "IIQQQQIIQQ", 0, 1, flags, 0, 0, size, 0, 0, 0, 0) for flags, size in sections]
    return bytes(header) + b"".join(table)


@pytest.mark.parametrize("order", ["<", ">"], ids=["little-endian", "big-endian"])
def test_code_bytes_are_those_of_executable_sections(order: str) -> None:
    # Code, data, read-only data, code again, and what is executable but never in memory.
    assert code_bytes(elf(order, [(0, 0), (0x6, 1000), (0x3, 500), (0x2, 70), (0x6, 24), (0x4, 9)])) == 1024


def test_sections_of_a_damaged_file_are_an_error() -> None:
    whole = elf("<", [(0, 0), (0x6, 1000)])
    for length in range(6, len(whole) - 24):
        with pytest.raises(ValueError, match="not an ELF file"):
            code_bytes(whole[:length])
