"""`compile` and `cache` on the command line: what is selected, printed and returned."""

from __future__ import annotations

import argparse
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from batchchol.artifacts.cache import ArtifactCache
from batchchol.cli import main
from batchchol.cli.library import compile as command
from batchchol.cli.library.compile import Selection, select
from batchchol.defaults.lookup import default_layout, default_spec
from kernelgen import generate
from kernelgen.emit.support import support_kernels

from ...fakes.nvcc import compiled, write_fake_nvcc

Output = pytest.CaptureFixture[str]


@pytest.fixture
def nvcc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_fake_nvcc(tmp_path / "nvcc")
    monkeypatch.setenv("BATCHCHOL_NVCC", str(path))
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "cache"))
    return path


@pytest.fixture
def no_nvcc(nvcc: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    return lambda: monkeypatch.setenv("BATCHCHOL_NVCC", "/no/such/nvcc")


def run(options: str) -> int:
    """Compile one kernel of each order, unless more is said: how many the defaults are is the table's business."""
    one = "" if "--nb" in options else "--family thread --nb 2"
    return main(["compile", "--arch", "sm_90", "--no-support", *options.split(), *one.split()])


def selection(options: str) -> Selection:
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return select(parser.parse_args(["--arch", "sm_90", *options.split()]))


def test_what_is_not_said_is_the_measured_default() -> None:
    used = {
        default_spec(n, target="cuda", chunk=default_layout(n, target="cuda", batch=size).chunk, batch=batch)
        for n in (4, 30, 31)
        for size, batch in ((1, 1), (None, 1), (None, 1 << 14), (None, 1 << 24))
    }
    assert len({spec.schedule.stride for spec in used if spec.problem.n == 30}) == 2, "few have their own"
    assert set(selection("--n 4,30-31").specs) == used
    expected = default_spec(
        4, target="cuda", layout="canonical", order="row", math="fast", uplo="upper", in_place=True
    )
    assert expected in selection("--n 4 --layout canonical --math fast --uplo upper --in-place").specs


@pytest.mark.usefixtures("thread_table")
def test_all_combinations() -> None:
    specs = selection(
        "--n 8,9 --dtype all --layout all --nb 2-4 --looking top,left --unroll all --math all --threads 32,64"
        " --cache shared"
    ).specs
    # The chunked default may be for one chunk alone; the other layouts have no such choice.
    assert len(specs) == len(set(specs)) == 2 * 2 * 3 * 3 * 2 * 2 * 2 * 2
    assert {spec.schedule.nb for spec in specs} == {2, 3, 4}
    assert {spec.schedule.threads for spec in specs} == {32, 64}
    assert {spec.schedule.cache for spec in specs} == {"shared"}
    assert {spec.schedule.looking for spec in specs} == {"top", "left"}
    assert {spec.order for spec in specs if spec.layout == "canonical"} == {"row"}
    # The default's straight-line code for canonical arrays is staged, which loops over tiles are not.
    staged = {spec.schedule.unroll for spec in specs if spec.layout == "canonical" and spec.schedule.staged}
    assert staged == {"full"}
    assert {spec.order for spec in specs if spec.layout != "canonical"} == {"col"}


@pytest.mark.usefixtures("thread_table")
def test_staged_kernels_are_asked_for_by_name() -> None:
    (spec,) = selection("--n 23 --layout canonical --family thread --nb 1 --unroll full --threads 32 --staged").specs
    assert (spec.schedule.staged, spec.schedule.threads) == (True, 32)


@pytest.mark.usefixtures("thread_table")
def test_a_default_is_not_staged_in_blocks_that_cannot_be() -> None:
    """Those that are no whole warps, or have no room for as many matrices."""
    specs = selection("--n 20 --layout canonical --family thread --threads 32,48,256").specs
    assert {(spec.schedule.threads, spec.schedule.staged) for spec in specs} == {(32, True), (48, None), (256, None)}


@pytest.mark.usefixtures("thread_table")
def test_families_are_combined_with_their_own_choices() -> None:
    selected = selection("--n 16 --family all --nb 4,8 --lanes 8,16")
    assert {spec.family for spec in selected.specs} == {"block"}
    assert len(selected.specs) == len(selected.unsupported) // 5 == 4
    selected = selection(
        "--n 16 --family warp --matrices 1,4 --warps 1,2 --update all --math fast --blocks 2 --teams 1"
    )
    assert {(spec.schedule.matrices, spec.schedule.warps) for spec in selected.specs} == {(1, 1), (1, 2), (4, 1)}
    assert {spec.schedule.update for spec in selected.specs} == {"tensor", "fma"}
    selected = selection("--n 16 --family thread,shared --nb 4")
    assert [spec.family for spec in selected.specs] == ["thread", "shared"]


@pytest.mark.usefixtures("thread_table")
def test_combinations_that_cannot_be_built_are_counted() -> None:
    selected = selection("--n 4,64 --nb 2,8 --unroll all")
    assert len(selected.specs) == 2 + 2
    assert len(selected.unsupported) == 4
    assert any("nb=8" in reason for reason in selected.unsupported)
    assert any("unroll='full'" in reason for reason in selected.unsupported)


@pytest.mark.usefixtures("thread_table")
def test_every_kernel_is_compiled_and_tabled(nvcc: Path, capsys: Output) -> None:
    assert run("--n 4-6 --nb 2,5 --jobs 2 --per-module 2") == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    columns = ["registers", "spills", "stack", "shared", "code", "seconds"]
    assert lines[0].split() == ["arch", "status", *columns, "kernel"]
    assert len(lines) == 6
    for line in lines[1:]:
        arch, status, registers, spills, stack, shared, code, _, kernel = line.split()
        assert (arch, status, registers, spills, stack, shared) == ("sm_90", "built", "40", "40", "8", "256")
        assert code == str(100 * len(kernel))
    assert "unsupported: 1, such as nb=5" in captured.err
    assert f"{nvcc}: nvcc 13.0.88" in captured.err
    assert sorted(len(names) for names in compiled(nvcc)) == [1, 2, 2]


def test_an_architecture_that_nvcc_does_not_know_gets_ptx_and_is_told(nvcc: Path, capsys: Output) -> None:
    assert main(["compile", "--arch", "sm_91,sm_90", "--no-support", "--n", "4", "--nb", "2"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "PTX" in line]
    assert len(said) == 1
    assert said[0].startswith("sm_91: nvcc 13.0.88 does not know it, and built PTX for compute_90: ")


def test_a_second_time_nothing_is_compiled(nvcc: Path, capsys: Output) -> None:
    assert run("--n 4") == run("--n 4") == 0
    assert [line.split()[1] for line in capsys.readouterr().out.splitlines()] == [
        "status",
        "built",
        "status",
        "cached",
    ]
    assert len(compiled(nvcc)) == 1


@pytest.mark.usefixtures("thread_table")
def test_several_architectures_and_the_support_kernels(nvcc: Path, capsys: Output) -> None:
    assert main(["compile", "--arch", "sm_80,sm_90", "--n", "4"]) == 0
    out = capsys.readouterr().out
    chunk = default_layout(4, target="cuda").chunk
    for source in (generate(default_spec(4, target="cuda", chunk=chunk)), *support_kernels()):
        rows = [line.split() for line in out.splitlines() if line.endswith(f" {source.entry}")]
        assert [row[0] for row in rows] == ["sm_80", "sm_90"]


def test_kernels_that_fail_are_told_and_end_with_1(
    nvcc: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc.write_text(nvcc.read_text().replace('if "BROKEN" in text', 'if "potrf_f32_n5" in text'))
    assert run("--n 4-6") == 1
    captured = capsys.readouterr()
    assert sorted(line.split()[1] for line in captured.out.splitlines()[1:]) == ["built", "built", "compile"]
    assert "compile: potrf_f32_n5" in captured.err
    assert "expected something else" in captured.err
    assert "the source was kept in" in captured.err


def test_failures_beyond_the_first_are_counted(nvcc: Path, capsys: Output) -> None:
    nvcc.write_text(nvcc.read_text().replace('if "BROKEN" in text', "if True"))
    assert run("--n 4-8") == 1
    errors = capsys.readouterr().err
    assert errors.count("expected something else") == 3
    assert "and 2 more failures" in errors


def test_time_limit(nvcc: Path, capsys: Output) -> None:
    nvcc.write_text(nvcc.read_text().replace('if "HANG" in text', "if True"))
    assert run("--n 4 --time-limit 0.5") == 1
    assert capsys.readouterr().out.splitlines()[1].split()[:2] == ["sm_90", "timeout"]


def test_the_kernels_of_a_math_are_those_of_its_layouts_too() -> None:
    kinds = {(spec.family, spec.schedule.stride) for spec in selection("--n 66 --math fast").specs}
    assert {("block", 8), ("block", 16)} <= kinds
    (with_choices,) = selection("--n 96 --math fast --family strip --ahead 2").specs
    assert (with_choices.family, with_choices.schedule.stride) == ("strip", 4)


def test_list_compiles_nothing(nvcc: Path, capsys: Output) -> None:
    run("--n 4")
    capsys.readouterr()
    assert run("--n 4,5 --list") == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(arch, status) for arch, status, _ in rows] == [("sm_90", "cached"), ("sm_90", "missing")]
    assert len(compiled(nvcc)) == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("--arch sm_9 --n 4", "argument --arch: got 'sm_9', expected the name of a GPU architecture"),
        ("--arch sm_90 --n four", "argument --n: got 'four', expected numbers or ranges"),
        ("--arch sm_90 --n 8-4", "argument --n: got the empty range '8-4'"),
        (
            "--arch sm_90 --n 4 --looking up",
            "argument --looking: got 'up', expected some of right, left, top, or all",
        ),
        ("--arch sm_90 --n 4 --jobs 0", "argument --jobs: got '0', expected a positive integer"),
        ("--arch sm_90 --n 4 --time-limit -1", "argument --time-limit: got '-1', expected a number of seconds"),
        ("--arch sm_90 --n 4 --time-limit nan", "argument --time-limit: got 'nan', expected a number of seconds"),
        ("--n 4", "required: --arch"),
    ],
)
def test_misspelt_options(capsys: Output, options: str, words: str) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["compile", *options.split()])
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_nothing_to_compile(nvcc: Path, capsys: Output) -> None:
    assert run("--n 0") == 2
    assert "none of these combinations can be built: n=0" in capsys.readouterr().err


def test_no_compiler(no_nvcc: Callable[[], None], capsys: Output) -> None:
    no_nvcc()
    assert run("--n 4") == 2
    assert "no usable CUDA compiler" in capsys.readouterr().err


def test_from_one_machine_to_another(
    nvcc: Path,
    no_nvcc: Callable[[], None],
    capsys: Output,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "kernels.zip"
    run("--n 4-5 --jobs 1")
    assert main(["cache", "pack", str(file), "--arch", "sm_90"]) == 0
    monkeypatch.setenv("BATCHCHOL_CACHE", str(tmp_path / "elsewhere"))
    no_nvcc()
    assert main(["cache", "unpack", str(file)]) == 0
    assert f"{tmp_path / 'elsewhere'}: 4 entries taken, 0 were there" in capsys.readouterr().out
    assert run("--n 4-5 --list") == 0
    assert capsys.readouterr().out.count("cached") == 2
    assert main(["cache", "info"]) == 0
    assert "sm_90     kernels: 2, files: 1, " in capsys.readouterr().out


def test_packing_nothing_leaves_the_file_alone(nvcc: Path, capsys: Output, tmp_path: Path) -> None:
    run("--n 4")
    file = tmp_path / "kernels.zip"
    assert main(["cache", "pack", str(file), "--arch", "sm_75,sm_80"]) == 2
    assert f"has no kernels of sm_75, sm_80 to pack, so {file} was not written" in capsys.readouterr().err
    assert not file.exists()
    assert main(["cache", "pack", str(file)]) == 0
    before = file.read_bytes()
    assert main(["cache", "pack", str(file), "--arch", "sm_75"]) == 2
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.glob("*zip*")] == ["kernels.zip"]
    with pytest.raises(SystemExit):
        main(["cache", "pack", str(file), "--arch", "foo"])
    assert "argument --arch: got 'foo', expected the name of a GPU architecture" in capsys.readouterr().err


def test_unpacking_nothing_is_an_error(nvcc: Path, capsys: Output, tmp_path: Path) -> None:
    zipfile.ZipFile(tmp_path / "empty.zip", "w").close()
    assert main(["cache", "unpack", str(tmp_path / "empty.zip")]) == 2
    assert "has no kernels in it: pack it again" in capsys.readouterr().err


def test_damage_is_told(nvcc: Path, capsys: Output, tmp_path: Path) -> None:
    run("--n 4")
    cache = ArtifactCache()
    (cache.folder / f"{cache.stored_keys()[0]}.json").write_text("{}")
    assert main(["cache", "info"]) == 0
    assert "damaged   entries: 1" in capsys.readouterr().out
    assert main(["cache", "pack", str(tmp_path / "kernels.zip")]) == 0
    assert "damaged entries that were left out: 1" in capsys.readouterr().err
    with zipfile.ZipFile(tmp_path / "kernels.zip", "a") as archive:
        archive.writestr("../evil.so", b"evil")
    assert main(["cache", "unpack", str(tmp_path / "kernels.zip")]) == 1
    assert "refused '../evil.so': is not the name of a cache file" in capsys.readouterr().err
    (tmp_path / "kernels.zip").write_bytes(b"not an archive")
    assert main(["cache", "unpack", str(tmp_path / "kernels.zip")]) == 2
    assert "is not a file that `cache pack` wrote" in capsys.readouterr().err
