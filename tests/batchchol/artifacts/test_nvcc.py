"""Finding nvcc, its architectures, and what one run of it may do wrong."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from batchchol.artifacts import nvcc
from batchchol.artifacts.compilers import Compiler
from batchchol.artifacts.nvcc import (
    Usage,
    architecture_of,
    compile_code,
    compile_target,
    find_nvcc,
    known_architectures,
    parse_architecture,
    read_usage,
)
from batchchol.errors import CompileError, CompilerNotFound

from ...fakes.nvcc import kernel_source, write_fake_nvcc

MESSAGES = """kernel.cu(4): warning #177-D: variable "unused" was declared but never referenced
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'small' for 'sm_90'
ptxas info    : Function properties for small
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 12 registers, used 1 barriers, 256 bytes smem
ptxas info    : Compile time = 19.588 ms
ptxas info    : Compiling entry function 'spilling' for 'sm_90'
ptxas info    : Function properties for spilling
    872 bytes stack frame, 1408 bytes spill stores, 1464 bytes spill loads
ptxas info    : Function properties for called
    8 bytes stack frame, 1 bytes spill stores, 2 bytes spill loads
ptxas info    : Used 255 registers, used 0 barriers, 872 bytes cumulative stack size
ptxas info    : Compiling entry function 'silent' for 'sm_90'
"""


@pytest.fixture
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine without nvcc; returns the only folder on its PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for variable in ("BATCHCHOL_NVCC", "CUDA_HOME", "CUDA_PATH", "NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(nvcc, "STANDARD_PATH", tmp_path / "usr" / "local" / "cuda" / "bin" / "nvcc")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site-packages")])
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    return folder


@pytest.fixture
def fake(nowhere: Path) -> Compiler:
    write_fake_nvcc(nowhere / "nvcc")
    return find_nvcc()


def test_order_of_the_places(nowhere: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheels = tmp_path / "site-packages" / "nvidia"
    write_fake_nvcc(wheels / "cu13" / "bin" / "nvcc")
    for place in (
        wheels / "cu14" / "bin" / "nvcc",
        nvcc.STANDARD_PATH,
        tmp_path / "path" / "bin" / "nvcc",
        tmp_path / "a home" / "bin" / "nvcc",
        nowhere / "nvcc",
        tmp_path / "chosen",
    ):
        write_fake_nvcc(place)
        if "path" in place.parts:
            monkeypatch.setenv("CUDA_PATH", str(place.parents[1]))
        if "a home" in place.parts:
            monkeypatch.setenv("CUDA_HOME", str(place.parents[1]))
        if place.name == "chosen":
            monkeypatch.setenv("BATCHCHOL_NVCC", str(place))
        assert find_nvcc().path == place


def test_no_nvcc_says_where_it_was_looked_for_and_how_to_get_one(nowhere: Path) -> None:
    with pytest.raises(CompilerNotFound, match="pip install nvidia-cuda-nvrtc") as caught:
        find_nvcc()
    for words in ("nvcc is not an executable on the PATH", str(nvcc.STANDARD_PATH), "BATCHCHOL_NVCC"):
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("value", "words"),
    [("/no/such/nvcc", "is not an executable"), ("'unbalanced", "cannot be read as a command"), ("sh", "as nvcc")],
)
def test_a_wrong_variable_is_refused_by_name(
    fake: Compiler, monkeypatch: pytest.MonkeyPatch, nowhere: Path, value: str, words: str
) -> None:
    (nowhere / "sh").write_text("#!/bin/sh\necho a shell\n")
    (nowhere / "sh").chmod(0o755)
    monkeypatch.setenv("BATCHCHOL_NVCC", value)
    with pytest.raises(CompilerNotFound, match=words) as caught:
        find_nvcc()
    assert f"BATCHCHOL_NVCC={value}" in str(caught.value)
    assert str(fake.path) not in str(caught.value)


def test_identity_is_all_that_decides_the_code(fake: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (fake.version, fake.identity) == ("13.0.88", "nvcc 13.0.88 | fake_build")
    identities = {fake.identity}
    monkeypatch.setenv("BATCHCHOL_NVCC", f"{fake.path} -lineinfo")
    identities.add(find_nvcc().identity)
    assert find_nvcc().command == (str(fake.path), "-lineinfo")
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-G")
    identities.add(find_nvcc().identity)
    monkeypatch.delenv("BATCHCHOL_NVCC")
    identities.add(find_nvcc().identity)
    write_fake_nvcc(fake.path, "13.1.5")
    identities.add(find_nvcc().identity)
    assert len(identities) == 5


@pytest.mark.parametrize(
    ("arch", "parts"),
    [("sm_90", ("sm", 90, "")), ("sm_100a", ("sm", 100, "a")), ("compute_80", ("compute", 80, ""))],
)
def test_names_of_architectures(arch: str, parts: tuple[str, int, str]) -> None:
    assert parse_architecture(arch) == parts


@pytest.mark.parametrize("arch", ["", "90", "sm90", "sm_9", "sm_90b", "SM_90", "sm_90 ", "gfx90a"])
def test_other_names_are_refused(arch: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"arch: got {arch!r}, expected")):
        parse_architecture(arch)


def test_architecture_of_a_compute_capability() -> None:
    assert [architecture_of(*capability) for capability in [(8, 6), (9, 0), (12, 1)]] == ["sm_86", "sm_90", "sm_121"]


def test_known_architectures_are_those_that_nvcc_lists(fake: Compiler) -> None:
    assert known_architectures() == known_architectures(fake) == ("sm_80", "sm_90", "sm_120")


@pytest.mark.parametrize(
    ("arch", "target"),
    [
        ("sm_90", ("cubin", "sm_90")),
        ("sm_90a", ("cubin", "sm_90a")),
        ("compute_90", ("ptx", "compute_90")),
        ("compute_90a", ("ptx", "compute_90a")),
        ("sm_89", ("ptx", "compute_80")),
        ("sm_103a", ("ptx", "compute_90")),
        ("sm_130", ("ptx", "compute_120")),
    ],
)
def test_an_unknown_architecture_gets_ptx_of_the_nearest_earlier_one(
    fake: Compiler, arch: str, target: tuple[str, str]
) -> None:
    assert compile_target(fake, arch) == target


def test_an_architecture_that_is_too_old(fake: Compiler) -> None:
    with pytest.raises(CompileError, match=r"no code for sm_75, only from sm_80 on: use an older toolkit") as caught:
        compile_target(fake, "sm_75")
    assert caught.value.status == "compile"


def test_code_and_what_it_takes(fake: Compiler) -> None:
    sources = [kernel_source("first"), kernel_source("second")]
    code = compile_code(fake, "".join(source.text for source in sources), ["first", "second"], "sm_90")
    assert (code.kind, code.target) == ("cubin", "sm_90")
    assert code.data[:4] == b"\x7fELF"
    assert code.seconds > 0
    assert code.code_bytes == {"first": 500, "second": 600}
    assert code.usage == dict.fromkeys(("first", "second"), Usage(40, 40, 8, 256))


def test_ptx(fake: Compiler) -> None:
    code = compile_code(fake, kernel_source("first").text, ["first"], "sm_130")
    assert (code.kind, code.target) == ("ptx", "compute_120")
    assert b".entry first" in code.data
    assert code.code_bytes == {"first": 0}


FAILING = {
    "BROKEN": ("failed with exit status 2", "expected something else"),
    "EMPTY": ("wrote no whole cubin with first", "(0 bytes)"),
    "NOTHING": ("wrote no whole cubin with first", "(0 bytes)"),
    "HALF": ("wrote no whole cubin with first", ""),
    "FORGET": ("wrote no whole cubin with first", ""),
    "NO_HOST": ("needs a C++ compiler", "NVCC_CCBIN"),
}


@pytest.mark.parametrize(("words", "expected"), FAILING.items(), ids=FAILING.keys())
def test_nvcc_that_fails_or_lies(fake: Compiler, words: str, expected: tuple[str, str]) -> None:
    source = kernel_source("first", words)
    with pytest.raises(CompileError) as caught:
        compile_code(fake, source.text, ["first"], "sm_90", ["-ftz=true"])
    message = str(caught.value)
    assert caught.value.status == "compile"
    assert all(part in message for part in (*expected, "-arch=sm_90", "-ftz=true"))
    kept = re.search(r"the source was kept in (\S+\.cu)", message)
    assert kept is not None
    assert Path(kept[1]).read_text() == source.text


def test_ptx_that_is_not_whole(fake: Compiler) -> None:
    with pytest.raises(CompileError, match="wrote no whole ptx with first"):
        compile_code(fake, kernel_source("first", "FORGET").text, ["first"], "sm_130")


def test_nvcc_that_hangs(fake: Compiler) -> None:
    with pytest.raises(CompileError, match=r"time limit of 0\.5 s") as caught:
        compile_code(fake, kernel_source("first", "HANG").text, ["first"], "sm_90", time_limit=0.5, keep=False)
    assert caught.value.status == "timeout"
    assert "was kept" not in str(caught.value)


def test_nvcc_that_vanished(fake: Compiler) -> None:
    known_architectures(fake)
    fake.path.unlink()
    with pytest.raises(CompilerNotFound, match="cannot be started"):
        compile_code(fake, "", [], "sm_90")


def test_usage_is_read_from_the_assemblers_messages() -> None:
    assert read_usage(MESSAGES) == {
        "small": Usage(12, 0, 0, 256),
        "spilling": Usage(255, 2875, 880, 0),
        "silent": Usage(),
    }
    assert read_usage("") == {}
