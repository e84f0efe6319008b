"""The command line: what info and emit print, and the exit codes of every end."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import batchchol
from batchchol import BlockSchedule, SharedSchedule, WarpSchedule, default_spec
from batchchol.artifacts.c_library import supported_targets
from batchchol.cli import COMMANDS, main
from batchchol.cli.library.info import OPTIONAL_PACKAGES
from kernelgen import generate

Run = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).parents[3]


def test_info_says_what_was_found(capsys: pytest.CaptureFixture[str], cache_folder: Path) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for words in (
        batchchol.__version__,
        str(cache_folder),
        "cpu: ",
        supported_targets()[0],
        "GiB free",
        "memory_bytes",
        f"defaults    table {supported_targets()[0]}\n            float32: ",
    ):
        assert words in out
    assert not re.search(r"\|\s*$", out, re.MULTILINE), "a compiler without arguments"
    for package in ("asv", "matplotlib", "scikit-learn"):
        assert f"package     {package}" in out


def test_info_knows_the_packages_of_every_extra() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    left_out = ("all", "docs", "test")
    asked = [each for name, of in extras.items() if name not in left_out for each in of]
    wanted = {re.match(r"[\w-]+", each)[0] for each in asked}  # type: ignore[index]
    # It comes with asv, and nobody uses it alone.
    known = {names: names.split("|") for names, *_ in OPTIONAL_PACKAGES}
    assert wanted - {"asv_runner"} <= {each for names in known.values() for each in names}
    for names, _, how in OPTIONAL_PACKAGES:
        for extra in re.findall(r"'\.\[(\w+)\]'", how):
            assert any(each.startswith(known[names][0]) for each in extras[extra])


def test_info_says_how_to_get_what_is_missing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    packages = [("no-such|none-either", "dreams", "pip install dreams"), ("no-such|numpy", "arrays", "")]
    monkeypatch.setattr("batchchol.cli.library.info.OPTIONAL_PACKAGES", packages)
    assert main(["info"]) == 0
    said = capsys.readouterr().out
    assert "package     no-such: not installed (dreams): pip install dreams" in said
    assert f"package     numpy: {version('numpy')}" in said


def test_version_is_the_library_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"batchchol {batchchol.__version__}\n"


def test_info_without_a_compiler(run_python: Run) -> None:
    done = run_python("-m", "batchchol", "info", PATH="", BATCHCHOL_CC=None, CC=None)
    assert done.returncode == 2
    assert "cpu: not available" in done.stdout
    assert "apt install gcc" in done.stdout
    assert "BATCHCHOL_CC" in done.stdout
    assert done.stderr == ""


def test_info_names_a_bad_choice_of_backend(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATCHCHOL_BACKEND", "abacus")
    assert main(["info"]) == 2
    assert "BATCHCHOL_BACKEND='abacus' is unknown" in capsys.readouterr().out


def test_emit_prints_the_measured_default(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", "--n", "20"]) == 0
    assert capsys.readouterr().out == generate(default_spec(20, target=supported_targets()[0])).text
    assert main(["emit", "--n", "20", "--layout", "canonical", "--target", "generic"]) == 0
    spec = default_spec(20, target="generic", layout="canonical", order="row")
    assert capsys.readouterr().out == generate(spec).text


def test_emit_prints_the_kernel_that_the_readme_names(capsys: pytest.CaptureFixture[str]) -> None:
    text = (ROOT / "README.md").read_text()
    named = re.search(r"names a kernel: `(\w+)`.*?`python -m batchchol (emit [^`]+)`", text, re.DOTALL)
    assert named is not None
    assert main(named[2].split()) == 0
    assert capsys.readouterr().out.startswith(f"/* {named[1]}: ")


def test_emit_of_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--n 6 --dtype float64 --uplo upper --layout interleaved --order row --math fast --nb 2 --looking top "
        "--unroll full --no-prefetch --target avx512 --in-place"
    )
    assert main(["emit", *options.split()]) == 0
    problem = {"dtype": "float64", "uplo": "upper", "layout": "interleaved", "order": "row"}
    default = default_spec(6, **problem, math="fast", target="avx512", in_place=True)
    schedule = replace(default.schedule, nb=2, looking="top", unroll="full", prefetch=False)
    assert capsys.readouterr().out == generate(replace(default, schedule=schedule)).text


@pytest.mark.usefixtures("thread_table")
def test_emit_of_a_gpu_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    options = "--n 9 --target cuda --nb 3 --threads 64 --cache shared --stride 32"
    assert main(["emit", *options.split()]) == 0
    default = default_spec(9, target="cuda")
    schedule = replace(default.schedule, nb=3, threads=64, cache="shared", stride=32)
    assert capsys.readouterr().out == generate(replace(default, schedule=schedule)).text


@pytest.mark.usefixtures("thread_table")
@pytest.mark.parametrize(
    ("options", "schedule"),
    [
        ("--family shared --nb 3 --looking top --matrices 5 --cache l1", SharedSchedule(3, "top", 5, cache="l1")),
        ("--family block --nb 4 --lanes 16 --blocks 2 --stride 32", BlockSchedule(4, 16, 2, stride=32)),
        (
            "--family warp --matrices 4 --update fma --cache l1",
            WarpSchedule(4, update="fma", cache="l1"),
        ),
        ("--family warp --warps 2 --teams 1 --unroll full", WarpSchedule(1, 2, 1, unroll="full")),
        ("--family thread --nb 3", None),
    ],
)
def test_emit_of_every_family(options: str, schedule: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["emit", "--n", "9", "--target", "cuda", "--math", "fast", *options.split()]) == 0
    default = default_spec(9, target="cuda", math="fast")
    expected = replace(default, schedule=schedule or replace(default.schedule, nb=3))
    assert capsys.readouterr().out == generate(expected).text


@pytest.mark.usefixtures("thread_table")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--family block --nb 4", "lanes=None .*family 'block' has no measured default of it"),
        ("--family shared --nb 4 --lanes 8", "lanes=8 .*family 'shared' has no such choice"),
        ("--threads 32 --family block --nb 4 --lanes 8", "threads=32 .*family 'block' has no such choice"),
        ("--family warp --lanes 2", "lanes=2 .*family 'warp' has no such choice"),
        ("--matrices 2", "matrices=2 .*family 'thread' has no such choice"),
    ],
)
def test_emit_refuses_choices_of_other_families(
    options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", "--n", "9", "--target", "cuda", *options.split()]) == 2
    assert re.search(message, capsys.readouterr().err)


def test_emit_needs_no_compiler(run_python: Run) -> None:
    done = run_python("-m", "batchchol", "emit", "--n", "3", PATH="", BATCHCHOL_CC=None, CC=None)
    assert (done.returncode, done.stderr) == (0, "")
    assert "n = 3" in done.stdout


@pytest.mark.parametrize("family", ["shared", "block", "warp", "strip", "whole"])
@pytest.mark.parametrize("options", ["", "--nb 4"])
def test_emit_refuses_families_of_gpus_on_a_cpu(
    family: str, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["emit", "--n", "9", "--target", "avx2", "--family", family, *options.split()]) == 2
    message = f"family='{family}' cannot be built: target 'avx2' has the family 'thread' alone"
    assert message in capsys.readouterr().err


@pytest.mark.usefixtures("thread_table")
@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--n 0", "n=0"),
        ("--n 129", "n=129"),
        ("--n 4 --nb 5", "nb=5"),
        ("--n 4 --nb 17", "nb=17"),
        ("--n 100 --unroll full", "unroll='full'"),
        ("--n 4 --target cuda --prefetch", "prefetch=True"),
        ("--n 4 --target avx2 --stride 32", "stride=32"),
    ],
)
def test_spec_that_cannot_be_built_is_explained(capsys: pytest.CaptureFixture[str], options: str, words: str) -> None:
    assert main(["emit", *options.split()]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"batchchol: error: {words} cannot be built")
    assert captured.err.count("\n") == 1


@pytest.mark.parametrize("options", ["", "no-such-command", "emit", "emit --n x", "info --loud"])
def test_misspelt_command_lines_show_the_usage(capsys: pytest.CaptureFixture[str], options: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(options.split())
    assert caught.value.code == 2
    assert "usage: python -m batchchol" in capsys.readouterr().err


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--help"])
    assert caught.value.code == 0
    listed = capsys.readouterr().out
    for command in COMMANDS:
        assert re.search(rf"\n  {command}\s", listed)


def test_interrupt_ends_with_130(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("batchchol.cli.library.info.run", interrupt)
    assert main(["info"]) == 130
    assert capsys.readouterr().err == "batchchol: interrupted: run the same command again\n"


def test_bad_setting_is_an_error_and_no_traceback(run_python: Run) -> None:
    done = run_python("-m", "batchchol", "info", BATCHCHOL_THREADS="many")
    assert done.returncode == 2
    assert done.stderr.startswith("batchchol: error: BATCHCHOL_THREADS='many'")
    assert done.stderr.count("\n") == 1
