"""The system compiler: the real one, and fakes that fail, hang, lie and vanish."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchchol.artifacts import c_compiler as compiler_module
from batchchol.artifacts.c_compiler import compile_shared, find_compiler
from batchchol.artifacts.c_library import load_library
from batchchol.artifacts.compilers import Compiler
from batchchol.errors import CompileError, CompilerNotFound

SOURCE = "int answer(void) { return VALUE; }\n"
GCC_ANSWER = """Using built-in specs.
Target: aarch64-linux-gnu
Thread model: posix
gcc version {version} (Debian {version}-1)"""
CLANG_ANSWER = """Debian clang version 19.1.7 (3)
Target: x86_64-pc-linux-gnu
Thread model: posix
InstalledDir: /usr/lib/llvm-19/bin"""


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A temporary folder of the test's own, found empty again at its end."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == [], "nothing is left behind"


@pytest.fixture
def real() -> Compiler:
    return find_compiler()


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An environment without any compiler; returns the only folder on its PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("BATCHCHOL_CC", raising=False)
    monkeypatch.delenv("CC", raising=False)
    return folder


def write_script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
    path.chmod(0o755)
    return path


def write_answering(path: Path, answer: str) -> Path:
    return write_script(path, f"cat >&2 <<'END'\n{answer}\nEND")


def fake(tmp_path: Path, body: str) -> Compiler:
    return Compiler(write_script(tmp_path / "fake-cc", body), "1.0", "fake")


def kept_source(message: str) -> Path:
    found = re.search(r"the source was kept in (.+)$", message)
    assert found is not None, message
    return Path(found[1])


def is_running(pid: int) -> bool:
    try:
        # The state follows the name, which is in parentheses and may hold anything.
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def wait_until_gone(pids: list[int]) -> bool:
    deadline = time.monotonic() + 10
    while any(map(is_running, pids)) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not any(map(is_running, pids))


def test_compiles_what_ctypes_can_call(real: Compiler) -> None:
    compiled = compile_shared(real, SOURCE, ["-O2", "-DVALUE=42"])
    assert load_library(compiled.data, "answer").answer() == 42
    assert compiled.seconds > 0


def test_libraries_among_the_flags_are_linked(real: Compiler) -> None:
    source = "#include <math.h>\ndouble f(double x) { return lgamma(x); }\n"
    function = load_library(compile_shared(real, source, ["-Wl,--no-undefined", "-lm"]).data, "f").f
    function.restype, function.argtypes = ctypes.c_double, [ctypes.c_double]
    assert function(3.0) == pytest.approx(0.6931471805599453)


def test_equal_sources_give_equal_bytes(real: Compiler) -> None:
    first, second = (compile_shared(real, SOURCE, ["-O2", "-DVALUE=1"]) for _ in range(2))
    assert first.data == second.data


def test_temporary_files_of_the_compiler_go_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    compiler = fake(tmp_path, f'echo half > "$TMPDIR/half.s"; echo "$TMPDIR" > {folder}; exit 1')
    with pytest.raises(CompileError):
        compile_shared(compiler, SOURCE, [])
    used = Path(folder.read_text().strip())
    assert used.is_relative_to(Path(tempfile.gettempdir()).resolve())
    assert not used.parent.exists()


def test_source_that_does_not_compile(real: Compiler) -> None:
    with pytest.raises(CompileError) as caught:
        compile_shared(real, SOURCE, ["-O2"])
    assert caught.value.status == "compile"
    message = str(caught.value)
    assert "VALUE" in message
    assert "-O2" in message
    assert kept_source(message).read_text() == SOURCE


def test_only_the_first_lines_of_the_compiler_are_quoted(tmp_path: Path) -> None:
    compiler = fake(tmp_path, "for i in $(seq 1000); do echo line-$i- >&2; done; exit 3")
    with pytest.raises(CompileError, match="exit status 3") as caught:
        compile_shared(compiler, SOURCE, [])
    assert "line-1-" in str(caught.value)
    assert "line-100-" not in str(caught.value)


FAILING = {
    "killed": ("kill -KILL $$", "killed by signal 9"),
    "binary messages": (r"printf '\377\376\000broken\n' >&2; exit 1", "broken"),
    "wrote nothing": ("exit 0", "no whole shared object"),
    "wrote an empty file": (": > kernel.so", "no whole shared object"),
    "wrote garbage": ("head -c 5000 /dev/zero > kernel.so", "no whole shared object"),
    "wrote text": ("cat kernel.c > kernel.so", "no whole shared object"),
    "wrote a folder": ("mkdir kernel.so", "no whole shared object"),
    "wrote half": ('cc "$@" -DVALUE=1 && truncate -s -100 kernel.so', "no whole shared object"),
}


@pytest.mark.parametrize(("body", "words"), FAILING.values(), ids=FAILING.keys())
def test_compiler_that_fails_or_lies(tmp_path: Path, body: str, words: str) -> None:
    with pytest.raises(CompileError, match=words) as caught:
        compile_shared(fake(tmp_path, body), SOURCE, ["-shared"])
    assert caught.value.status == "compile"
    assert kept_source(str(caught.value)).read_text() == SOURCE


def test_hanging_compiler_is_stopped_with_all_its_processes(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    compiler = fake(tmp_path, f"sleep 1000 & echo $$ $! > {pids}; echo starting >&2; wait")
    start = time.monotonic()
    with pytest.raises(CompileError, match=r"time limit of 0\.5 s") as caught:
        compile_shared(compiler, SOURCE, [], time_limit=0.5)
    assert time.monotonic() - start < 100, "it was stopped, not waited for"
    assert caught.value.status == "timeout"
    assert "starting" in str(caught.value)
    assert kept_source(str(caught.value)).read_text() == SOURCE
    assert wait_until_gone([int(pid) for pid in pids.read_text().split()])


def test_process_that_the_compiler_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    compiler = fake(tmp_path, f'sleep 1000 & echo $! > {pid}; cc "$@"')
    try:
        compiled = compile_shared(compiler, SOURCE, ["-DVALUE=3"], time_limit=100)
        assert load_library(compiled.data, "answer").answer() == 3
    finally:
        os.kill(int(pid.read_text()), signal.SIGKILL)


def test_interrupt_stops_the_compiler_and_cleans_up(tmp_path: Path, temporary_folder: Path) -> None:
    pids = tmp_path / "pids"
    hanging = write_script(tmp_path / "hanging", f"sleep 1000 & echo $$ $! > {pids}.new; mv {pids}.new {pids}; wait")
    script = """
import sys
from pathlib import Path
from types import SimpleNamespace
from batchchol.artifacts.c_compiler import compile_shared
from batchchol.artifacts.compilers import Compiler
compile_shared(Compiler(Path(sys.argv[1]), "1", "fake"), "", [])
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script, hanging],
        env={**os.environ, "TMPDIR": str(temporary_folder)},
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not pids.exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(list(temporary_folder.iterdir())) == 1
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert wait_until_gone([int(pid) for pid in pids.read_text().split()])


def test_compiler_that_vanished(tmp_path: Path) -> None:
    gone = Compiler(tmp_path / "gone-cc", "1.0", "fake")
    with pytest.raises(CompileError, match="gone-cc") as caught:
        compile_shared(gone, SOURCE, [])
    assert caught.value.status == "compile"


def test_source_that_cannot_be_kept_does_not_hide_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CompileError, match="exit status 7") as caught:
        compile_shared(fake(tmp_path, "exit 7"), SOURCE, [])
    assert "the source could not be kept" in str(caught.value)


def test_a_full_disk_is_named_where_the_compiler_cannot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: SimpleNamespace(free=4096))
    with pytest.raises(CompileError, match=r"exit status 1.*\n.* has 4,096 bytes free: make room, or choose TMPDIR"):
        compile_shared(fake(tmp_path, "exit 1"), SOURCE, [])


def test_the_real_compiler_is_found() -> None:
    found = find_compiler()
    assert found.path.is_absolute()
    assert "gcc version" in found.identity or "clang version" in found.identity
    assert re.fullmatch(r"\d+(\.\d+)*", found.version)
    assert found.version in found.identity


def test_order_of_the_choices(no_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = []
    for name in ("clang", "gcc", "cc"):
        expected.append(write_answering(no_compiler / name, GCC_ANSWER.format(version="13.1.0")))
        assert find_compiler().path == expected[-1]
    for variable in ("CC", "BATCHCHOL_CC"):
        other = write_answering(no_compiler / variable.lower(), GCC_ANSWER.format(version="13.1.0"))
        monkeypatch.setenv(variable, str(other))
        assert find_compiler().path == other
    monkeypatch.setenv("BATCHCHOL_CC", " ")
    assert find_compiler().path == no_compiler / "cc"


def test_gcc_is_recognised(no_compiler: Path) -> None:
    write_answering(no_compiler / "gcc", GCC_ANSWER.format(version="14.2.0"))
    found = find_compiler()
    assert found.version == "14.2.0"
    assert "Debian 14.2.0-1" in found.identity
    assert "aarch64-linux-gnu" in found.identity


def test_clang_is_recognised(no_compiler: Path) -> None:
    write_answering(no_compiler / "cc", CLANG_ANSWER)
    found = find_compiler()
    assert found.version == "19.1.7"
    assert "x86_64-pc-linux-gnu" in found.identity


def test_arguments_of_the_variable_are_kept(real: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_CC", f"{real.path} -DVALUE=5")
    found = find_compiler()
    assert found.command == (str(real.path), "-DVALUE=5")
    assert found.identity != real.identity
    assert load_library(compile_shared(found, SOURCE, []).data, "answer").answer() == 5


def test_version_is_asked_once_and_again_after_an_upgrade(no_compiler: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    for version in ("12.2.0", "13.1.0"):
        answer = GCC_ANSWER.format(version=version)
        path = write_script(no_compiler / "gcc", f"echo asked >> {log}\ncat >&2 <<'END'\n{answer}\nEND")
        # Two writes may fall into one tick of the file system's clock.
        os.utime(path, ns=(0, int(version[:2])))
        assert find_compiler().version == version
        assert find_compiler().version == version
    assert log.read_text() == "asked\nasked\n"


def test_no_compiler_says_how_to_get_one(no_compiler: Path) -> None:
    with pytest.raises(CompilerNotFound, match="apt install gcc") as caught:
        find_compiler()
    for name in ("cc", "gcc", "clang"):
        assert f"{name} is not an executable" in str(caught.value)


@pytest.mark.parametrize("variable", ["BATCHCHOL_CC", "CC"])
@pytest.mark.parametrize(
    ("value", "words"),
    [("no-such-cc", "not an executable"), ("'unbalanced", "cannot be read as a command")],
)
def test_a_wrong_variable_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.delenv("BATCHCHOL_CC", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(CompilerNotFound, match=words) as caught:
        find_compiler()
    assert f"{variable}={value}" in str(caught.value)


def test_another_compiler_family_is_passed_over(no_compiler: Path) -> None:
    write_answering(no_compiler / "cc", "tcc version 0.9.27 (x86_64 Linux)")
    gcc = write_answering(no_compiler / "gcc", GCC_ANSWER.format(version="12.2.0"))
    assert find_compiler().path == gcc


def test_another_compiler_family_is_refused_when_it_was_asked_for(
    no_compiler: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = write_answering(no_compiler / "tcc", "tcc version 0.9.27 (x86_64 Linux)")
    monkeypatch.setenv("BATCHCHOL_CC", str(other))
    with pytest.raises(CompilerNotFound, match="does not present itself as GCC or clang"):
        find_compiler()


def test_program_that_cannot_be_started(no_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = no_compiler / "broken-cc"
    broken.write_bytes(b"\x00\x01\x02")
    broken.chmod(0o755)
    monkeypatch.setenv("BATCHCHOL_CC", str(broken))
    with pytest.raises(CompilerNotFound, match="cannot be started"):
        find_compiler()


def test_compiler_that_hangs_when_asked_its_version(no_compiler: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_script(no_compiler / "cc", "sleep 1000")
    gcc = write_answering(no_compiler / "gcc", GCC_ANSWER.format(version="12.2.0"))
    monkeypatch.setattr(compiler_module, "_PROBE_SECONDS", 0.3)
    assert find_compiler().path == gcc
    gcc.unlink()
    with pytest.raises(CompilerNotFound, match=r"did not tell its version within 0\.3 s"):
        find_compiler()
