"""Generated sources: golden files, the same text every time, and nothing but Python and jinja2 to make them."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import kernelgen
from kernelgen import (
    SIMD_TARGETS,
    BlockSchedule,
    KernelSpec,
    Problem,
    SharedSchedule,
    SpecError,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    WholeSchedule,
    generate,
)
from kernelgen.emit.families.shared import generate_single
from kernelgen.emit.operations.repair import generate_repairing
from kernelgen.emit.simd import generate_layout_kernels, generate_peak_kernel
from kernelgen.emit.support import support_kernels
from kernelgen.emit.thread import generate_any_block

GOLDEN_FOLDER = Path(__file__).parents[1] / "golden"

# One of each layout, order of evaluation, target, dtype and accuracy class, with and without corner tiles.
GOLDEN = [
    KernelSpec(Problem(8), "chunked", "col", ThreadSchedule(4, "left"), "avx512"),
    KernelSpec(Problem(7, "float64"), "interleaved", "row", ThreadSchedule(3, "right", prefetch=False), "avx2"),
    KernelSpec(Problem(5, math="fast"), "canonical", "row", ThreadSchedule(2, "top"), "avx2"),
    KernelSpec(
        Problem(6, "float64", "upper", math="fast"), "chunked", "col", ThreadSchedule(2, "top"), "avx512", True
    ),
    KernelSpec(Problem(4), "interleaved", "col", ThreadSchedule(2, "left", "full"), "generic"),
    KernelSpec(Problem(1), "canonical", "col", ThreadSchedule(1), "generic", True),
    KernelSpec(Problem(7, op="potrs"), "canonical", "row", ThreadSchedule(3, rhs=2), "generic"),
    KernelSpec(Problem(4, "float64", "upper", "potrs"), "chunked", "col", ThreadSchedule(2, unroll="full"), "avx2"),
]
GOLDEN_CUDA = [
    KernelSpec(Problem(5), "chunked", "col", ThreadSchedule(2, "top", "full", blocks=1, stride=32), "cuda"),
    KernelSpec(Problem(7, "float64", math="fast"), "interleaved", "row", ThreadSchedule(3, "right"), "cuda", True),
    KernelSpec(
        Problem(9, uplo="upper", math="fast"), "canonical", "row", ThreadSchedule(4, "left", threads=64), "cuda"
    ),
    KernelSpec(Problem(6), "chunked", "col", ThreadSchedule(6, cache="shared"), "cuda"),
    KernelSpec(Problem(9, math="fast"), "canonical", "row", ThreadSchedule(3, "left", "full", staged=True), "cuda"),
    KernelSpec(
        Problem(6, "float64", "upper"),
        "canonical",
        "row",
        ThreadSchedule(3, unroll="full", staged=True),
        "cuda",
        True,
    ),
    KernelSpec(Problem(7), "chunked", "col", SharedSchedule(3, "left", stride=32), "cuda"),
    KernelSpec(
        Problem(8, "float64", "upper", math="fast"),
        "canonical",
        "row",
        SharedSchedule(4, "top", 2, cache="l1"),
        "cuda",
        True,
    ),
    KernelSpec(Problem(11), "chunked", "col", BlockSchedule(5, 8, stride=8), "cuda"),
    KernelSpec(
        Problem(10, "float64", "upper", math="fast"), "canonical", "row", BlockSchedule(4, 4, blocks=2), "cuda", True
    ),
    KernelSpec(
        Problem(16, math="fast"),
        "chunked",
        "col",
        BlockSchedule(8, 8, blocks=5, stride=8, pipeline=1, early=1),
        "cuda",
    ),
    KernelSpec(Problem(11, "float64", "upper"), "canonical", "row", BlockSchedule(5, 2, pipeline=3), "cuda", True),
    KernelSpec(Problem(12, math="fast"), "chunked", "col", WarpSchedule(4, stride=4), "cuda"),
    KernelSpec(Problem(12, math="fast"), "canonical", "row", WarpSchedule(2, blocks=3, pdl=True), "cuda"),
    KernelSpec(Problem(20, uplo="upper"), "canonical", "row", WarpSchedule(1, 2, 1, unroll="full"), "cuda", True),
    KernelSpec(Problem(20, math="fast"), "chunked", "col", StripSchedule(2, 1, stride=4), "cuda"),
    KernelSpec(Problem(37, math="fast"), "chunked", "col", StripSchedule(4, 1, stride=4), "cuda"),
    KernelSpec(Problem(20), "canonical", "row", WholeSchedule(2, 4, pdl=True), "cuda"),
    KernelSpec(Problem(13, "float64", "upper", math="fast"), "canonical", "row", WholeSchedule(1), "cuda", True),
    KernelSpec(Problem(7, op="potrs", math="fast"), "chunked", "col", ThreadSchedule(3, rhs=2), "cuda"),
    KernelSpec(Problem(6, op="logdet"), "chunked", "col", ThreadSchedule(1, unroll="full", stride=32), "cuda"),
]
ANY_BLOCK = KernelSpec(Problem(5, math="fast"), "chunked", "col", ThreadSchedule(2, "top"), "cuda")
REPAIRED = [
    KernelSpec(Problem(8, op="posv"), "canonical", "row", ThreadSchedule(1, unroll="full", staged=True), "cuda"),
    KernelSpec(Problem(5, op="posv", uplo="upper"), "chunked", "col", ThreadSchedule(2, staged=True, rhs=2), "cuda"),
]
EVERYTHING = {
    **{spec.name: generate(spec) for spec in GOLDEN + GOLDEN_CUDA},
    "layouts_f32_avx2": generate_layout_kernels("float32", "avx2"),
    "peak_f64_generic": generate_peak_kernel("float64", "generic"),
    "potrf_f32_n33_single_ieee_cuda": generate_single(33),
    **{source.entry: source for source in map(generate_repairing, REPAIRED) if source},
    "potrf_f32_n5_chunked_col_top_nb2_tiles_fast_cuda_any": generate_any_block(ANY_BLOCK, ANY_BLOCK.schedule),
    # The others differ in their scalars.
    **{source.entry: source for source in support_kernels() if not source.entry.endswith("f64")},
}


@pytest.mark.parametrize("name", EVERYTHING)
def test_golden_source(name: str, update_golden: bool) -> None:
    path = GOLDEN_FOLDER / f"{name}.{'c' if EVERYTHING[name].launch is None else 'cu'}"
    if update_golden:
        path.write_text(EVERYTHING[name].text)
    assert EVERYTHING[name].text == path.read_text(), "changed on purpose? pytest --update-golden rewrites the files"


def test_no_golden_file_is_left_over(update_golden: bool) -> None:
    found = {path.stem: path for path in GOLDEN_FOLDER.iterdir()}
    if update_golden:
        for name in found.keys() - EVERYTHING.keys():
            found[name].unlink()
    assert {path.stem for path in GOLDEN_FOLDER.iterdir()} == set(EVERYTHING)


@pytest.mark.parametrize("spec", GOLDEN, ids=lambda spec: spec.name)
def test_source_says_what_it_is(spec: KernelSpec) -> None:
    source = generate(spec)
    assert source.text.startswith(f"/* {spec.name}: generated by batchchol's kernelgen")
    assert source.entry == spec.name
    assert re.search(rf"^int {spec.name}\(", source.text, re.MULTILINE)
    assert source.lanes == spec.lanes
    assert source.flags == SIMD_TARGETS[spec.target].flags


@pytest.mark.parametrize("spec", GOLDEN_CUDA, ids=lambda spec: spec.name)
def test_cuda_source_says_what_it_is_and_how_to_launch_it(spec: KernelSpec) -> None:
    source = generate(spec)
    assert source.text.startswith(f"/* {spec.name}: generated by batchchol's kernelgen")
    assert source.entry == spec.name
    assert source.launch is not None
    threads, items = source.launch.threads, source.launch.items
    bounds = re.search(
        rf'^extern "C" __global__ void __launch_bounds__\({threads}(?:, (\d+))?\) {spec.name}\(', source.text, re.M
    )
    assert bounds
    assert source.launch.cache == spec.schedule.cache
    if isinstance(spec.schedule, ThreadSchedule):
        assert (threads, items) == (spec.schedule.threads, spec.schedule.threads)
        assert bounds[1] == ("1" if spec.schedule.staged or spec.schedule.blocks else None)
    if isinstance(spec.schedule, SharedSchedule):
        assert (threads, items) == (spec.schedule.matrices * spec.schedule.nb**2, spec.schedule.matrices)
    if isinstance(spec.schedule, WarpSchedule):
        matrices, warps, teams = spec.schedule.matrices, spec.schedule.warps, spec.schedule.teams
        assert (threads, items) == (32 * warps * teams, matrices * teams)
    if isinstance(spec.schedule, WholeSchedule):
        assert (threads, items) == (32 * spec.schedule.warps, 1)
    if isinstance(spec.schedule, StripSchedule):
        assert (threads, items) == (32 * sum(spec.schedule.shape(spec.problem).strip_warps), 4)
    if isinstance(spec.schedule, BlockSchedule):
        assert (threads, items) == (spec.schedule.shape(spec.problem).threads, spec.schedule.lanes)
    assert source.flags == (("-ftz=true",) if spec.problem.math == "fast" and spec.problem.dtype == "float32" else ())
    blocks = source.launch.blocks(1000)
    assert (blocks - 1) * items < 1000 <= blocks * items


def test_code_for_blocks_of_any_size_says_nothing_of_a_block() -> None:
    """One text for all specs that differ in how they are launched, and otherwise that of the spec."""
    sources = []
    for threads, cache in ((32, "l1"), (512, "shared")):
        schedule = replace(ANY_BLOCK.schedule, threads=threads, cache=cache)
        sources.append(generate_any_block(replace(ANY_BLOCK, schedule=schedule), schedule))
    assert sources[0].text == sources[1].text
    assert sources[0].entry == sources[1].entry == ANY_BLOCK.name.replace("_t32_l1", "_any")
    assert "__launch_bounds__" not in sources[0].text
    own = generate(ANY_BLOCK).text.replace(ANY_BLOCK.name, sources[0].entry)
    own = own.replace("blocks of 32, on-chip memory for l1", "blocks of any size")
    own = own.replace("__launch_bounds__(32) ", "").replace("blockIdx.x * 32 ", "blockIdx.x * blockDim.x ")
    assert sources[0].text == own


@pytest.mark.parametrize("spec", GOLDEN_CUDA, ids=lambda spec: spec.name)
def test_cuda_source_leaves_nothing_behind(spec: KernelSpec) -> None:
    """Others may follow it in a translation unit: its macros end with it, and its names are in its namespace."""
    text = generate(spec).text
    defined = set(re.findall(r"^#define (\w+)", text, re.MULTILINE))
    ended = text.rstrip().rsplit("}", 1)[1].split()
    assert defined == set(ended[1::2])
    assert "#include" not in text
    outside = re.sub(rf"namespace {spec.name}_code {{.*^}}$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert not re.search(r"^(enum|typedef|static|INLINE)", outside, re.MULTILINE)


@pytest.mark.parametrize("looking", ["right", "left", "top"])
def test_straight_line_code_on_a_gpu_loads_and_stores_every_tile_once(looking: str) -> None:
    spec = KernelSpec(Problem(11), "chunked", "col", ThreadSchedule(3, looking, "full"), "cuda")
    body = generate(spec).text.split("factor_matrix", 1)[1]
    for verb, array in (("load", "A"), ("store", "L")):
        places = re.findall(rf"{verb}_\w+\(x, .*TILE_{array}\((\d), (\d)\)", body)
        assert sorted(places) == [(str(i), str(j)) for i in range(4) for j in range(i + 1)]


@pytest.mark.parametrize("spec", GOLDEN + GOLDEN_CUDA, ids=lambda spec: spec.name)
def test_source_is_readable(spec: KernelSpec) -> None:
    """One operation a line, no trailing blanks, no runs of empty lines, braces where they belong."""
    lines = generate(spec).text.splitlines()
    assert not [line for line in lines if line != line.rstrip()]
    assert not [place for place in range(len(lines) - 2) if lines[place : place + 3] == [""] * 3]
    assert not [line for line in lines if line.count("-=") + line.count("*=") > 1]
    # Statements are indented: at the margin there are declarations, comments and what the preprocessor reads.
    assert not [line for line in lines if re.match(r"(\(|[\w\[\]]+ [-*+]?= |[\w]+\()", line)]


@pytest.mark.parametrize(
    "operation", ["potrf", "trsm", "syrk", "gemm", "load_full", "load_lower", "store_full", "store_lower"]
)
def test_tile_operations_go_by_their_names(operation: str) -> None:
    spec = KernelSpec(Problem(12), "chunked", "col", ThreadSchedule(4), "avx2")
    assert re.search(rf"\bvoid {operation}_4x4(x4)?\(", generate(spec).text)


def test_code_for_blocks_of_any_size_is_of_factorizations() -> None:
    spec = KernelSpec(Problem(7, op="potrs"), "chunked", "col", ThreadSchedule(3), "cuda")
    with pytest.raises(SpecError, match=r"^op='potrs' .*use 'potrf'"):
        generate_any_block(spec, spec.schedule)


def test_same_text_in_every_process() -> None:
    script = (
        "import sys; from kernelgen import *\n"
        "spec = KernelSpec(Problem(7), 'chunked', 'col', ThreadSchedule(3, 'right'), 'avx2')\n"
        "sys.stdout.write(generate(spec).text)"
    )
    texts = {run_python(script, seed) for seed in ("0", "1", "2")}
    texts.add(generate(KernelSpec(Problem(7), "chunked", "col", ThreadSchedule(3, "right"), "avx2")).text)
    assert len(texts) == 1


def test_neither_numpy_nor_scipy_is_imported() -> None:
    spec = "KernelSpec(Problem(7), 'canonical', 'row', ThreadSchedule(3), 'avx512')"
    script = (
        f"import sys; from kernelgen import *; generate({spec})\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules} & {'numpy', 'scipy', 'batchchol', 'ctypes'}))"
    )
    assert run_python(script).strip() == ""


@pytest.mark.parametrize(("dtype", "target"), [("float16", "avx2"), ("float32", "sse9")])
def test_support_kernels_refuse_what_is_unknown(dtype: str, target: str) -> None:
    for make in (generate_layout_kernels, generate_peak_kernel):
        with pytest.raises(SpecError, match=f"dtype='{dtype}', target='{target}'"):
            make(dtype, target)


def run_python(script: str, hash_seed: str = "0") -> str:
    """What a script prints in a fresh interpreter that finds the kernelgen under test."""
    environment = {"PYTHONPATH": str(Path(kernelgen.__file__).parents[1]), "PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return done.stdout
