"""Search spaces: what the shipped ones hold, what a malformed one says, and which points a machine has."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from batchchol.errors import BatchcholError
from batchchol.measure import shared_code
from batchchol.measure.point import Point
from batchchol.tune import candidates
from batchchol.tune.choosing.winners import value_of
from batchchol.tune.expand import Expansion, Machine, expand, points
from batchchol.tune.space import SPACES, SpaceError, load_space, parse_space
from kernelgen import FAMILIES

GPU = Machine.cuda()
CPU = Machine("cpu", "avx512", "single", {"float32": 16, "float64": 8})
PAPER_ORDERS = {*range(2, 25, 2), 28, 32, 36, 40, 48, 56, 64, 80, 100}


def parse(text: str) -> Any:
    return parse_space(text, "mine.toml", "mine")


def expanded(text: str, machine: Machine = GPU, **narrow: Any) -> Expansion:
    return expand(parse(text), machine, **narrow)


def values(expansion: Expansion, name: str) -> set[Any]:
    return {value_of(point, name) for point in expansion.points}


@pytest.fixture(scope="module")
def paper() -> Expansion:
    return expand(load_space("paper"), GPU)


def test_paper_has_the_parameters_of_the_study(paper: Expansion) -> None:
    assert {point.spec.problem.n for point in paper.points} == PAPER_ORDERS
    assert values(paper, "nb") == set(range(1, 10))
    assert values(paper, "looking") == {"right", "left", "top"}
    assert values(paper, "cache") == {"l1", "shared"}
    assert values(paper, "math") == {"ieee", "fast"}
    assert {point.batch for point in paper.points} == {16384}
    full = {point.spec.problem.n for point in paper.points if point.spec.schedule.unroll == "full"}
    assert full == {n for n in PAPER_ORDERS if n <= 32}
    chunked = [point for point in paper.points if point.chunk is not None]
    assert {point.chunk for point in chunked} == {32, 64, 128, 256, 512}
    assert all(point.spec.schedule.threads == point.chunk for point in chunked)
    assert {point.spec.layout for point in paper.points} == {"chunked", "interleaved"}
    assert all(point.spec.schedule.stride is None for point in paper.points)


def test_paper_is_over_20_000_points_of_few_compiles(paper: Expansion) -> None:
    assert len(paper.points) > 20_000
    assert len({point.key for point in paper.points}) == len(paper.points)
    kernels = {shared_code.identity(point) for point in paper.points}
    # 1,698 for each of both layouts: their code differs in the width of its offsets.
    assert len(kernels) == 2 * 1698


def test_what_cannot_be_built_is_counted_and_not_dropped(paper: Expansion) -> None:
    combinations = 21 * 9 * 3 * 2 * 2 * 2 * (5 + 2)
    assert len(paper.points) + paper.unsupported.total() == combinations
    reasons = {reason.split(":")[0]: count for reason, count in paper.unsupported.items()}
    assert set(reasons) == {"nb", "unroll"}
    too_large = sum(9 - n for n in (2, 4, 6, 8))
    assert reasons["nb"] == too_large * 3 * 2 * 2 * 2 * 7


def test_general_has_every_operation_by_its_own_candidates() -> None:
    points = expand(load_space("general"), GPU, n=[8], layout=["canonical"]).points
    assert {point.spec.problem.op for point in points} == {"getrf", "gesv", "geqrf", "gels"}
    assert len({point.spec.name for point in points}) == len(points) == len({point.key for point in points})
    written = '[[kernels]]\nn = 8\nnb = 1\nlooking = "right"\nunroll = "full"\nop = ["getrf", "gesv"]'
    assert len(expanded(written).points) == 2
    with pytest.raises(SpaceError, match="op: got 'posv', expected some of potrf, getrf"):
        parse(written.replace("getrf", "posv"))


def test_study2_has_both_families_and_the_rule_of_the_shared_one() -> None:
    expansion = expand(load_space("study2"), GPU)
    assert {point.spec.problem.n for point in expansion.points} == set(range(20, 101, 10))
    assert {point.spec.family for point in expansion.points} == {"thread", "shared"}
    assert values(expansion, "nb") == set(range(1, 10))
    assert {point.batch for point in expansion.points} == {2**power for power in range(10, 21)}
    shared = [point for point in expansion.points if point.spec.family == "shared"]
    assert {point.chunk for point in shared} == {None, 32, 64, 128, 256, 512}
    on_chunks = [point for point in shared if point.chunk == point.spec.schedule.matrices]
    assert {(p.spec.schedule.nb, p.chunk) for p in on_chunks if p.chunk} == {
        (nb, chunk) for nb in range(1, 10) for chunk in (32, 64, 128, 256, 512) if chunk <= 1024 // nb**2
    }
    assert {point.spec.layout for point in shared} == {"chunked", "interleaved", "canonical"}


def test_course_is_a_part_of_study2_with_every_value_of_its_plots() -> None:
    course, whole = (expand(load_space(name), GPU) for name in ("course", "study2"))
    assert {point.batch for point in course.points} == {1024}
    assert {_kernel(point) for point in course.points} <= {_kernel(point) for point in whole.points}
    for family in ("thread", "shared"):
        mine = [point for point in course.points if point.spec.family == family]
        assert {point.spec.problem.n for point in mine} == set(range(20, 101, 10))
        for name, wanted in (("nb", set(range(1, 10))), ("looking", {"right", "left", "top"})):
            assert {getattr(point.spec.schedule, name) for point in mine} == wanted
        assert {point.spec.layout for point in mine} == {"chunked", "interleaved", "canonical"}
        assert {point.chunk for point in mine} == {None, 32, 64, 128, 256, 512}


def _kernel(point: Point) -> tuple[object, ...]:
    schedule = point.spec.schedule
    return point.spec.family, point.spec.problem, point.spec.layout, point.chunk, schedule.nb, schedule.looking


def test_full_has_every_family_and_candidate() -> None:
    expansion = expand(load_space("full"), GPU, n=[64], math=["fast"], dtype=["float32"])
    specs = {point.spec for point in expansion.points}
    # The family whole factors arrays alone, which the space has not.
    assert {spec.family for spec in specs} == set(FAMILIES) - {"whole"}
    known = candidates.specs(64, "float32", "fast", "cuda", candidates.families_of("cuda"))
    assert {varied for spec in known for varied in candidates.variations(spec)} == specs
    assert {spec.schedule.pdl for spec in specs} == {True}
    assert all(point.chunk == candidates.chunk_of(point.spec) for point in expansion.points)
    assert {point.any_block for point in expansion.points if point.spec.family != "thread"} == {False}


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("machine", [GPU, CPU], ids=["cuda", "cpu"])
def test_every_space_is_for_every_machine(name: str, machine: Machine) -> None:
    space = load_space(name)
    assert space.about
    expansion = expand(space, machine, n=[20, 32])
    assert {point.spec.target for point in expansion.points} == {machine.target}
    assert {point.protocol for point in expansion.points} == {machine.protocol}
    if machine is CPU:
        assert all((point.chunk or 16) % point.spec.lanes == 0 for point in expansion.points)


def test_quick_is_quick() -> None:
    assert 100 < len(expand(load_space("quick"), CPU).points) < len(expand(load_space("quick"), GPU).points) < 2_000


def test_points_come_one_by_one() -> None:
    first = next(points(load_space("paper"), GPU))
    assert isinstance(first, Point)


def test_points_of_the_same_data_follow_each_other(paper: Expansion) -> None:
    runs = [paper.points[0].data]
    orders = [paper.points[0].spec.problem.n]
    for point in paper.points:
        if point.data != runs[-1]:
            runs.append(point.data)
        if point.spec.problem.n != orders[-1]:
            orders.append(point.spec.problem.n)
    assert len(runs) == len(set(runs)) == 21 * 6
    assert len(orders) == 21
    assert orders != sorted(orders), "a device that gets slower must not make large matrices look slow"


def test_the_order_is_always_the_same() -> None:
    twice = [expand(load_space("paper"), GPU, n=[2, 4, 6, 8]).points for _ in range(2)]
    assert [point.key for point in twice[0]] == [point.key for point in twice[1]]


def test_a_space_is_narrowed(paper: Expansion) -> None:
    narrow = expand(load_space("paper"), GPU, n=[8], math=["fast"], layout=["interleaved"], dtype=None)
    wanted = [
        point
        for point in paper.points
        if (point.spec.problem.n, point.spec.problem.math, point.spec.layout) == (8, "fast", "interleaved")
    ]
    assert {point.key for point in narrow.points} == {point.key for point in wanted}
    with pytest.raises(SpaceError, match="space 'paper' has no points on backend 'cuda', n of 33"):
        expand(load_space("paper"), GPU, n=[33])


def test_what_does_not_fit_in_memory_is_counted() -> None:
    text = '[[kernels]]\nn = [8]\nnb = 4\nbatch = ["2^10", "2^20"]\n'
    small = Machine("cuda", "cuda", "queued", {"float32": 32}, free_bytes=1 << 28)
    expansion = expanded(text, small)
    assert [point.batch for point in expansion.points] == [1024]
    assert expansion.unsupported == {"batch: input and output do not fit in the free memory": 1}


def test_words_and_ranges_of_numbers() -> None:
    text = """
        [[kernels]]
        n = ["4-10:2", 16]
        nb = 2
        chunk = ["default", 64]
        threads = ["chunk", "default", 64]
        stride = ["chunk", "default"]
        batch = ["2^11", "1MiB", 100]
        protocol = ["default", "single"]
    """
    expansion = expanded(text)
    assert {point.spec.problem.n for point in expansion.points} == {4, 6, 8, 10, 16}
    assert {(point.chunk, point.spec.schedule.threads) for point in expansion.points} == {
        (32, 32),
        (32, 64),
        (64, 64),
        (64, 32),
    }
    assert {(point.chunk, point.spec.schedule.stride) for point in expansion.points} == {
        (32, 32),
        (32, None),
        (64, 64),
        (64, None),
    }
    assert {point.batch for point in expansion.points if point.spec.problem.n == 16} == {2048, 1024, 100}
    assert {point.protocol for point in expansion.points} == {"queued", "single"}


def test_words_that_are_a_familys_own() -> None:
    """Whichever fields its schedule has."""
    for name, family in FAMILIES.items():
        for field in fields(family):
            if "str" in str(field.type) and field.name not in ("math", "looking", "unroll", "cache"):
                expansion = points(parse(f"[[kernels]]\nfamily = '{name}'\nn = 8\n{field.name} = 'nonsense'\n"), GPU)
                assert field.name in next(expansion)
                with pytest.raises(SpaceError, match=rf"{field.name}: got 3, expected a text"):
                    parse(f"[[kernels]]\nfamily = '{name}'\nn = 8\n{field.name} = 3\n")


def test_operations_are_an_axis() -> None:
    text = '[[kernels]]\nn = 8\nnb = 1\nop = ["gesv", "getrf"]\nlooking = "right"\nunroll = "full"\n'
    assert {point.spec.problem.op for point in expanded(text).points} == {"gesv", "getrf"}
    with pytest.raises(SpaceError, match="op: got 'getri', expected some of potrf, getrf"):
        parse(text.replace('"getrf"', '"getri"'))


def test_a_layout_without_chunks_is_there_once() -> None:
    text = '[[kernels]]\nn = 8\nnb = 2\nlayout = ["chunked", "interleaved", "canonical"]\nchunk = [32, 64]\n'
    assert [(p.spec.layout, p.chunk) for p in expanded(text).points] == [
        ("canonical", None),
        ("chunked", 32),
        ("chunked", 64),
        ("interleaved", None),
    ]
    nothing = '[[kernels]]\nn = 8\nnb = 2\nlayout = "interleaved"\nthreads = ["chunk", 64]\n'
    assert expanded(nothing).unsupported.total() == 1


MALFORMED = {
    "[[kernels]]\nn = 8\nnb = \n": r"mine.toml: not TOML: .*line 3.*, key 'nb'",
    "[[kernels]\nn = 8\n": r"mine.toml: not TOML: .*line 1",
    "[[kernels]]\nn = 8\nnb = 2\nsize = 3\n": r"line 4: \[\[kernels\]\] size: unknown, expected one of family, .*nb",
    "[[kernels]]\nn = 8\nnb = 2\n\n[[kernels]]\nn = 9\nlanes = 2\n": r"line 7: \[\[kernels\]\] lanes: unknown",
    "colour = 3\n[[kernels]]\nn = 8\nnb = 2\n": r"line 1: colour: unknown, expected about, \[\[kernels\]\]",
    "[kernels]\nn = 8\nnb = 2\n": r"line 1: kernels: expected tables: \[\[kernels\]\]",
    "about = 3\n[[kernels]]\nn = 8\nnb = 2\n": r"line 1: about: got 3, expected a text",
    "[[kernels]]\nn = 8\nnb = [2, 'x']\n": r"line 3: \[\[kernels\]\] nb: got 'x', expected positive integers, ranges",
    "[[kernels]]\nn = 8\nnb = []\n": r"line 3: \[\[kernels\]\] nb: got nothing",
    "[[kernels]]\nn = '9-2'\nnb = 2\n": r"line 2: \[\[kernels\]\] n: got '9-2', expected positive integers, ranges",
    "[[kernels]]\nn = 'chunk'\nnb = 2\n": r"line 2: \[\[kernels\]\] n: got 'chunk'",
    "[[kernels]]\nn = true\nnb = 2\n": r"line 2: \[\[kernels\]\] n: got True",
    "[[kernels]]\nnb = 2\n": r"line 1: \[\[kernels\]\] n: missing",
    "[[kernels]]\nn = 8\nnb = 2\n[[kernels]]\nn = 8\n": r"line 4: \[\[kernels\]\] nb: missing",
    "[[kernels]]\nn = 8\nnb = 2\nlooking = 'up'\n": r"line 4: \[\[kernels\]\] looking: got 'up', expected some of r",
    "[[kernels]]\nn = 8\nnb = 2\nbatch = '2GB'\n": r"line 4: \[\[kernels\]\] batch: got '2GB', expected .*2GiB",
    "[[kernels]]\nn = 8\nnb = 2\nany_block = 1\n": r"line 4: \[\[kernels\]\] any_block: got 1, expected true",
    "[[kernels]]\nfamily = 'team'\nn = 8\n": r"line 2: \[\[kernels\]\] family: got 'team', expected one of thread",
    "[[kernels]]\nfamily = 'all'\nn = 8\n": r"line 2: \[\[kernels\]\] family: got 'all', expected one of thread",
    "[[candidates]]\nfamily = 'all'\nn = 8\nnb = 4\n": r"line 4: \[\[candidates\]\] nb: unknown",
    "about = 'nothing'\n": r"mine.toml: no points",
}


@pytest.mark.parametrize("text", MALFORMED, ids=range(len(MALFORMED)))
def test_what_is_malformed_is_named_with_key_and_line(text: str) -> None:
    with pytest.raises(SpaceError, match=MALFORMED[text]):
        parse(text)


def test_spaces_are_names_and_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text("about = 'x'\n[[kernels]]\nn = 8\nnb = 2\n")
    assert load_space(path).name == load_space(str(path)).name == "mine"
    with pytest.raises(SpaceError, match=r"got 'papers', expected one of paper, .*, general, or a file"):
        load_space("papers")
    with pytest.raises(BatchcholError, match=r"absent.toml: cannot be read"):
        load_space(tmp_path / "absent.toml")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SpaceError, match="cannot be read"):
        load_space(path)
