"""The real nvcc, on sources of every kind, for every architecture of the last generations; no GPU is needed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import pytest

from batchchol.artifacts.cuda_modules import build, build_all, module_groups
from batchchol.artifacts.nvcc import compile_code, find_nvcc, known_architectures
from batchchol.artifacts.stats import CompileStats
from batchchol.errors import CompileError, CompilerNotFound
from kernelgen import (
    BlockSchedule,
    KernelSource,
    KernelSpec,
    Launch,
    Problem,
    SharedSchedule,
    StripSchedule,
    ThreadSchedule,
    WarpSchedule,
    generate,
)
from kernelgen.emit.support import support_kernels

ARCHITECTURES = ("sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120")
CHUNKED, INTERLEAVED, CANONICAL = ("chunked", "col"), ("interleaved", "row"), ("canonical", "row")
SPECS = (
    KernelSpec(Problem(5, math="fast"), *CHUNKED, ThreadSchedule(2, "top", "full"), "cuda"),
    KernelSpec(
        Problem(12, "float64", "upper", math="ieee"), *INTERLEAVED, ThreadSchedule(5, "right", "tiles"), "cuda"
    ),
    KernelSpec(Problem(7, math="fast"), *CANONICAL, ThreadSchedule(4, "left", "tiles", threads=64), "cuda"),
    KernelSpec(
        Problem(9, "float64", math="fast"), *CHUNKED, ThreadSchedule(3, "left", "tiles"), "cuda", in_place=True
    ),
    KernelSpec(Problem(9, "float64"), *CHUNKED, SharedSchedule(4, "left"), "cuda"),
    KernelSpec(Problem(13), *CHUNKED, BlockSchedule(6, 8, blocks=4), "cuda"),
    KernelSpec(Problem(12, uplo="upper", math="fast"), *CANONICAL, BlockSchedule(4, 16), "cuda", in_place=True),
    KernelSpec(Problem(13), *CHUNKED, BlockSchedule(6, 8, blocks=2, pipeline=2, early=1), "cuda"),
    KernelSpec(Problem(13, math="fast"), *CHUNKED, WarpSchedule(4, stride=4), "cuda"),
    KernelSpec(Problem(20, math="fast"), *CANONICAL, WarpSchedule(2, teams=4, update="fma"), "cuda"),
    KernelSpec(Problem(17, math="fast"), "canonical", "col", WarpSchedule(unroll="full"), "cuda", in_place=True),
    KernelSpec(Problem(24, uplo="upper"), *INTERLEAVED, WarpSchedule(1, 2, 1), "cuda", in_place=True),
    KernelSpec(Problem(40, math="fast"), *CHUNKED, StripSchedule(6, ahead=1, stride=8), "cuda"),
    KernelSpec(
        Problem(32, uplo="upper", math="fast"), *CHUNKED, StripSchedule(3, stride=4, pdl=True), "cuda", in_place=True
    ),
)
# The one that was measured gets all of them, the oldest and the newest one of each family, those between every third.
ONE_OF_EACH_FAMILY = tuple({spec.schedule.family: spec for spec in SPECS}.values())
SPECS_FOR = {"sm_90": SPECS, "sm_80": ONE_OF_EACH_FAMILY, "sm_120": ONE_OF_EACH_FAMILY} | {
    arch: ONE_OF_EACH_FAMILY[place::3] for place, arch in enumerate(("sm_86", "sm_89", "sm_100"))
}
# Kernels whose launch bounds leave a thread few registers more than its tile has elements.
CROWDED = (
    KernelSpec(Problem(32, math="fast"), *CHUNKED, BlockSchedule(8, 8, blocks=5, stride=8), "cuda"),
    KernelSpec(Problem(64, math="fast"), *CHUNKED, BlockSchedule(8, 8, blocks=2, stride=8), "cuda"),
    KernelSpec(Problem(128, math="fast"), *CHUNKED, BlockSchedule(8, 2, blocks=2, stride=2), "cuda"),
    KernelSpec(
        Problem(32, math="fast"), *CHUNKED, BlockSchedule(8, 8, blocks=5, stride=8, pipeline=1, early=1), "cuda"
    ),
    KernelSpec(
        Problem(64, math="fast"), *CHUNKED, BlockSchedule(8, 4, blocks=3, stride=4, pipeline=1, early=1), "cuda"
    ),
    KernelSpec(Problem(128, math="fast"), *CHUNKED, BlockSchedule(8, 1, blocks=3, stride=2, pipeline=1), "cuda"),
    KernelSpec(Problem(32, math="fast"), *CHUNKED, WarpSchedule(4, stride=4), "cuda"),
    KernelSpec(Problem(64, math="fast"), *CHUNKED, WarpSchedule(stride=32), "cuda"),
    KernelSpec(Problem(128, math="fast"), *CHUNKED, WarpSchedule(1, 2, 1, stride=2), "cuda"),
    KernelSpec(Problem(128, math="fast"), *CANONICAL, WarpSchedule(1, 2, 1), "cuda"),
    KernelSpec(Problem(112, math="fast"), *CHUNKED, StripSchedule(24, 4, stride=4, pdl=True), "cuda"),
    KernelSpec(Problem(120, math="fast"), *CHUNKED, StripSchedule(24, 2, stride=4, pdl=True), "cuda"),
    KernelSpec(Problem(128, math="fast"), *CHUNKED, StripSchedule(20, 2, stride=4, pdl=True), "cuda"),
)


@pytest.fixture(scope="module", autouse=True)
def nvcc() -> None:
    try:
        find_nvcc()
    except CompilerNotFound as error:
        pytest.skip(str(error))


def require(arch: str) -> None:
    if arch not in known_architectures():
        pytest.skip(f"nvcc {find_nvcc().version} makes no code for {arch}")


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_kernels_compile_for_every_architecture(arch: str) -> None:
    require(arch)
    sources = list(map(generate, SPECS_FOR[arch]))
    for source, outcome in zip(sources, build_all(sources, arch), strict=True):
        assert outcome.status == "built", outcome.message
        module = build(source, arch)
        assert module.kind == "cubin"
        assert module.path.read_bytes().startswith(b"\x7fELF")
        check(module.stats, source)


def test_tiles_stay_in_registers_on_crowded_multiprocessors() -> None:
    require("sm_90")
    outcomes = build_all([generate(spec) for spec in CROWDED], "sm_90")
    stats = {spec.name: outcome.stats for spec, outcome in zip(CROWDED, outcomes, strict=True)}
    spilled = {name: made.spill_bytes for name, made in stats.items() if made and made.spill_bytes}
    assert all(stats.values())
    # Of strips a number that a tile needs once is written and read; of blocks that share a multiprocessor, in `fast`,
    # seven words around the roots.
    most = {name: 8 if "_strip_" in name else 28 if "_fast_" in name else 0 for name in spilled}
    assert all(spill <= most[name] for name, spill in spilled.items()), spilled


def check(stats: CompileStats, source: KernelSource) -> None:
    assert stats.registers is not None
    assert 0 < stats.registers <= 255
    assert stats.spill_bytes == 0, "matrices this small stay in registers"
    assert stats.stack_bytes == 0
    assert bool(stats.shared_bytes) == bool(re.search("(?<!extern )__shared__", source.text))
    assert stats.code_bytes > 500
    assert stats.compile_seconds > 0
    assert stats.compiler == find_nvcc().identity


def test_every_support_kernel_compiles_without_a_warning() -> None:
    require("sm_90")
    assert set(kinds_without_a_warning(support_kernels(), "sm_90")) == {"cubin"}


def test_generated_sources_compile_without_a_warning() -> None:
    assert set(kinds_without_a_warning(list(map(generate, SPECS)), "compute_90")) == {"ptx"}


def kinds_without_a_warning(sources: Sequence[KernelSource], arch: str) -> Iterator[str]:
    """What nvcc makes of the sources, in as few modules as can be; a warning is an error."""
    for group in module_groups(sources, per_module=32):
        text, entries = "\n".join(source.text for source in group), [source.entry for source in group]
        yield compile_code(find_nvcc(), text, entries, arch, (*group[0].flags, "-Werror", "all-warnings")).kind


def test_an_architecture_of_the_future_gets_ptx() -> None:
    module = build(generate(SPECS[0]), "sm_999")
    newest = known_architectures()[-1].removeprefix("sm_")
    assert module.kind == "ptx"
    assert re.search(rf"^\.target sm_{newest}", module.path.read_text(), re.MULTILINE)


def test_tensor_cores_of_the_past_are_refused_by_name() -> None:
    require("sm_75")
    with pytest.raises(CompileError, match=r"family 'warp' needs a GPU of compute capability 8\.0"):
        build(generate(KernelSpec(Problem(8), *CHUNKED, WarpSchedule(), "cuda")), "sm_75")


def test_an_architecture_of_the_past_is_refused() -> None:
    with pytest.raises(CompileError, match="use an older toolkit"):
        build(generate(SPECS[0]), "sm_20")


def test_a_source_that_is_wrong_is_quoted() -> None:
    source = KernelSource('extern "C" __global__ void f() { not_c++; }', "f", 1, (), Launch(1, 1))
    with pytest.raises(CompileError, match="not_c"):
        build(source, "sm_90")


RESOURCES = """
extern "C" __global__ void f(const float *a, float *l, const int count)
{
    __shared__ float parts[100];
    float x[300];
    for (int i = 0; i < 300; i++)
        x[i] = a[i];
    parts[threadIdx.x] = x[count];
    __syncthreads();
    l[threadIdx.x] = parts[count];
}
"""


def test_resources_are_those_of_the_source() -> None:
    require("sm_90")
    usage = compile_code(find_nvcc(), RESOURCES, ["f"], "sm_90").usage["f"]
    assert (usage.shared_bytes, usage.spill_bytes) == (400, 0)
    assert usage.stack_bytes is not None
    assert usage.stack_bytes >= 1200


def test_registers_that_are_not_enough_are_spilled() -> None:
    require("sm_90")
    source = generate(KernelSpec(Problem(12, math="fast"), *CHUNKED, ThreadSchedule(4, "left", "full"), "cuda"))
    text, flags = source.text.replace("__launch_bounds__(32)", ""), [*source.flags, "--maxrregcount=32"]
    code = compile_code(find_nvcc(), text, [source.entry], "sm_90", flags)
    usage = code.usage[source.entry]
    assert usage.registers is not None
    assert usage.registers <= 32
    assert usage.spill_bytes


def test_equal_sources_give_equal_bytes() -> None:
    require("sm_90")
    source = generate(SPECS[0])
    first, second = (compile_code(find_nvcc(), source.text, [source.entry], "sm_90", source.flags) for _ in range(2))
    assert first.data == second.data
