"""The script that runs the GPU's kernels under compute-sanitizer: what it runs, and what it says of the tools."""

from __future__ import annotations

import re
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from batchchol import get_backend
from batchchol.backends.cuda import backend
from batchchol.errors import BackendUnavailable
from kernelgen import FAMILIES, KernelSource, KernelSpec, ThreadSchedule, generate
from kernelgen.operations import OPERATIONS

from ..emulation.kernels import EmulatedKernel
from ..kernel_runs import run_kernel, run_posv
from . import __main__ as command
from .__main__ import (
    CLEAN,
    FOUND,
    MISSING,
    RECIPES,
    TOOLS,
    Work,
    check_case,
    check_factor,
    check_fill,
    main,
    matrices,
    parse,
    summary_of,
)
from .arrivals import every_lane_arrives, with_every_lane_arriving
from .cases import Case, cases
from .reflectors import reflections
from .solves import by_factors, inversions, solves

# Runs the command that follows its options, and finds three hazards under racecheck if it is asked to. By way of a
# shell, since Linux takes no spaces in the path of an interpreter.
FAKE = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
'''
import subprocess, sys
tool = sys.argv[sys.argv.index("--tool") + 1]
command = sys.argv[sys.argv.index({python!r}) :]
status = subprocess.run(command).returncode
found = tool == "racecheck" and {hazards}
print("========= Error: Potential WAW hazard" if found else "========= nothing")
print("========= RACECHECK SUMMARY: 3 hazards" if found else "========= ERROR SUMMARY: 0 errors")
sys.exit(9 if found else status)
"""


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were one, and a workload that does nothing."""
    monkeypatch.setattr(command, "get_backend", lambda name: None)
    monkeypatch.setattr(command, "WORKLOAD", (sys.executable, "-c", "print('done')"))


def fake_sanitizer(folder: Path, *, hazards: bool) -> str:
    path = folder / "compute-sanitizer"
    path.write_text(FAKE.format(python=sys.executable, hazards=hazards))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


@pytest.mark.usefixtures("gpu")
def test_clean_tools_each_have_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sanitizer = fake_sanitizer(tmp_path, hazards=False)
    assert main(["--sanitizer", sanitizer, "--log", str(tmp_path / "log")]) == CLEAN
    first, *lines = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"none +clean +[0-9.]+ s   done", first)
    assert [line.split()[0] for line in lines] == list(TOOLS)
    assert all(re.fullmatch(r"\w+ +clean +[0-9.]+ s   ERROR SUMMARY: 0 errors", line) for line in lines)
    assert "done" in (tmp_path / "log" / "initcheck.log").read_text()


@pytest.mark.usefixtures("gpu")
def test_what_a_tool_found_is_quoted_and_the_others_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sanitizer = fake_sanitizer(tmp_path, hazards=True)
    assert main(["--sanitizer", sanitizer, "--log", str(tmp_path)]) == FOUND
    said = capsys.readouterr().out
    assert re.search(r"^racecheck +found errors +[0-9.]+ s   RACECHECK SUMMARY: 3 hazards$", said, re.MULTILINE)
    assert "    ========= Error: Potential WAW hazard\n" in said
    assert f"all of it: {tmp_path / 'racecheck.log'}" in said
    assert re.search(r"^initcheck +clean", said, re.MULTILINE)


@pytest.mark.usefixtures("gpu")
def test_a_failing_workload_is_no_work_for_tools(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "WORKLOAD", (sys.executable, "-c", "raise SystemExit('wrong')"))
    assert main(["--sanitizer", fake_sanitizer(tmp_path, hazards=False), "--log", str(tmp_path)]) == FOUND
    said = capsys.readouterr().out
    assert re.search(r"^none +failed with status 1 +[0-9.]+ s   wrong$", said, re.MULTILINE)
    assert "memcheck" not in said


def test_what_is_missing_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(name: str) -> None:
        raise BackendUnavailable("there is no GPU")

    monkeypatch.setattr(command, "get_backend", missing)
    assert main(["--log", str(tmp_path)]) == MISSING
    assert capsys.readouterr().out == "there is no GPU\n"
    monkeypatch.setattr(command, "get_backend", lambda name: None)
    assert main(["--sanitizer", str(tmp_path / "nowhere")]) == MISSING
    assert "pip install nvidia-cuda-sanitizer-api" in capsys.readouterr().out


def test_families_operations_and_parts_divide_the_cases() -> None:
    """Each case is in one part of one family, and what a tool's process is told is what was asked for."""
    everything = [*cases(), *solves(), *reflections(), *inversions()]
    wanted = [Work((family,), part, 3) for family in FAMILIES for part in (1, 2, 3)]
    divided = [case for work in wanted for case in work.cases()]
    assert sorted(case.spec.name for case in divided) == sorted(case.spec.name for case in everything)
    assert Work().cases() == everything
    assert [case for op in OPERATIONS for case in Work(operations=(op,)).cases()] == sorted(
        everything, key=lambda case: list(OPERATIONS).index(case.spec.problem.op)
    )
    for work in (Work(), Work(("warp", "block"), 2, 3, 45), Work(operations=("potrs", "posv"))):
        assert Work.asked_for(parse([*work.arguments(), "--work"])) == work
    for text in ("0/2", "3/2", "half"):
        with pytest.raises(SystemExit):
            parse(["--part", text])


def test_how_much_was_done_is_told_beside_what_a_tool_says() -> None:
    text = "1.0 s  potrf\n20 of 28 kernels\n========= RACECHECK SUMMARY: 0 hazards\n"
    assert summary_of(text) == "20 of 28 kernels; RACECHECK SUMMARY: 0 hazards"


def test_cases_cover_every_choice() -> None:
    wanted = list(cases())
    specs = [case.spec for case in wanted]
    assert len({generate(spec).entry for spec in specs}) == len(wanted)
    assert {spec.layout for spec in specs} == {"canonical", "interleaved", "chunked"}
    assert {spec.order for spec in specs} == {"row", "col"}
    assert {spec.in_place for spec in specs} == {False, True}
    assert {spec.problem.dtype for spec in specs} == {"float32", "float64"}
    assert {spec.problem.uplo for spec in specs} == {"lower", "upper"}
    for family, choices in {
        "thread": {"looking": 3, "unroll": 2, "math": 2, "threads": 4, "blocks": 2, "cache": 2},
        "shared": {"looking": 3, "nb": 5, "math": 2, "cache": 2},
        "block": {"nb": 6, "lanes": 5, "math": 2, "blocks": 2, "cache": 2},
        "warp": {"matrices": 3, "warps": 2, "teams": 3, "update": 2, "unroll": 2, "math": 2, "blocks": 2, "cache": 2},
        "whole": {"warps": 5, "math": 2, "blocks": 2},
        "strip": {"warps": 10, "ahead": 3, "stride": 3, "blocks": 2, "cache": 2},
    }.items():
        for field, values in (choices | {"pdl": 2}).items():
            own = [spec for spec in specs if spec.family == family]
            found = {getattr(spec.problem if field == "math" else spec.schedule, field) for spec in own}
            assert len(found) >= values, (family, field)
    ragged = [case for case in wanted if case.layout.chunk and case.batch % case.layout.chunk]
    assert len(ragged) > len(wanted) // 3


def on_the_cpu(case: Case) -> Case:
    spec = case.spec
    schedule = replace(spec.schedule, threads=None, blocks=None, cache=None, pdl=None)
    same = KernelSpec(spec.problem, spec.layout, spec.order, schedule, "generic", spec.in_place)
    chunk = case.layout.chunk and 4 * case.layout.chunk
    return Case(same, replace(case.layout, chunk=min(chunk, 512) if chunk else None), case.batch)


@pytest.mark.parametrize("case", list(cases())[3:8], ids=lambda case: case.spec.name)
def test_checks_of_factorizations_pass_what_the_cpu_makes(case: Case) -> None:
    check_factor(get_backend("cpu"), on_the_cpu(case))


@pytest.mark.parametrize(
    "case",
    [*list(solves())[4:60:11], *list(reflections())[6:15:4], *list(inversions())[4:60:19]],
    ids=lambda case: case.spec.name,
)
def test_checks_of_solves_pass_what_the_cpu_makes(case: Case) -> None:
    looking = str(case.spec.problem.operation.fixed.get("looking", "left"))
    plain = replace(case.spec, schedule=ThreadSchedule(1, looking), target="generic")
    chunk = case.layout.chunk and 4 * case.layout.chunk
    on_the_cpu = Case(plain, replace(case.layout, chunk=min(chunk, 512) if chunk else None), case.batch)
    check_case(get_backend("cpu"), on_the_cpu)


@pytest.mark.parametrize("recipe", RECIPES)
def test_checks_of_data_sets_pass_what_the_cpu_makes(recipe: str) -> None:
    check_fill(get_backend("cpu"), recipe, 13, get_backend("cpu").default_layout(13))


@pytest.mark.parametrize(
    "case", [case for case in cases() if case.spec.family == "block"], ids=lambda case: case.spec.name
)
def test_racecheck_sees_pipelines_in_which_every_lane_arrives(case: Case) -> None:
    """In the emulation, whose barriers count: with more or fewer arrivals than are expected others would go ahead."""
    source = generate(case.spec)
    seen = with_every_lane_arriving(source)
    pipeline = bool(getattr(case.spec.schedule, "pipeline", 0))
    assert (seen == source) == (not pipeline)
    if pipeline and 2 < case.spec.problem.n < 32:
        check_same_bits(case, seen)


def check_same_bits(case: Case, seen: KernelSource) -> None:
    a, chunk = matrices(33, case.spec.problem.n, case.spec.problem.dtype), case.layout.chunk
    kernels = [EmulatedKernel.of(case.spec, source) for source in (generate(case.spec), seen)]
    plain, every = (run_kernel(case.spec, a, chunk, kernel=kernel) for kernel in kernels)
    assert plain.l.tobytes() == every.l.tobytes()


@pytest.mark.parametrize(
    "case",
    [case for case in cases() if case.spec.family == "strip" and case.spec.problem.n == 31],
    ids=lambda case: case.spec.name,
)
def test_racecheck_sees_strips_in_which_every_lane_arrives(case: Case) -> None:
    seen = with_every_lane_arriving(generate(case.spec))
    assert not re.search(r"if \(.*(lane|threadIdx\.x % 32) == 0.*\n +arrive\(", seen.text)
    check_same_bits(case, seen)


def test_every_lane_arrives_in_what_the_gpu_builds_meanwhile() -> None:
    spec = next(case.spec for case in cases() if getattr(case.spec.schedule, "pipeline", 0))
    with every_lane_arrives():
        assert backend.generate(spec) == with_every_lane_arriving(generate(spec))
    assert backend.generate(spec) == generate(spec)


def test_general_solves_have_kernels_of_factors_too() -> None:
    general = [case.spec for case in solves() if case.spec.problem.op == "gesv"]
    made = [tuple(each.problem.op for each in by_factors(spec)) for spec in general]
    assert set(made) == {("getrf", "getrs")}
    assert len(made) > 20


SOLVING = [case for case in solves() if case.spec.family in ("block", "strip") and 20 < case.spec.problem.n < 36]


@pytest.mark.parametrize("case", SOLVING[::4], ids=lambda case: case.spec.name)
def test_racecheck_sees_solves_in_which_every_lane_arrives(case: Case) -> None:
    """Of several groups, which take each other's places."""
    n, chunk, dtype = case.spec.problem.n, case.layout.chunk, case.spec.problem.dtype
    source = generate(case.spec)
    seen = with_every_lane_arriving(source)
    assert not re.search(r"if \(.*(lane|lane\(\)|threadIdx\.x % (32|WARP)) == 0.*\n +arrive\(", seen.text)
    a, b = matrices(33, n, dtype), matrices(33, n, dtype)[:, :, :2].copy()
    kernels = (EmulatedKernel.of(case.spec, each) for each in (source, seen))
    plain, every = (run_posv(case.spec, a, b, chunk, solver=kernel).x for kernel in kernels)
    assert plain.tobytes() == every.tobytes()
