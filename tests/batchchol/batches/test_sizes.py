"""Numbers and lists on the command line: what is taken, and what is refused before it costs anything."""

import re
from argparse import ArgumentTypeError

import pytest

from batchchol.artifacts.nvcc import parse_architecture
from batchchol.batches.sizes import (
    LARGEST,
    architecture,
    architectures,
    integer,
    integers,
    matrices,
    number,
    positive,
    seconds,
    size,
    sizes,
)
from batchchol.tune.search.cases import Budget, budget
from batchchol.tune.space import SpaceError, parse_space

MANY_DIGITS = "9" * 5000


def test_what_is_taken():
    assert [integer(text) for text in ("7", "-7", "+7", "007")] == [7, -7, 7, 7]
    assert [number(text) for text in ("2", "-.5", "1.", "1e-3", "2.5E+1")] == [2, -0.5, 1, 1e-3, 25]
    assert positive(str(LARGEST)) == LARGEST
    assert integers("8, 16-18,3 - 4") == [8, 16, 17, 18, 3, 4]
    assert len(integers("1-10000")) == 10_000
    assert sizes("1024, 2GiB") == ["1024", "2GiB"]
    assert (matrices("7", 5, "float32"), matrices("1MiB", 8, "float64")) == (7, 2048)
    assert seconds("1.5") == 1.5
    assert architectures("sm_80, compute_90,sm_80") == ["sm_80", "compute_90"]
    assert (budget("40"), budget("2.5%")) == (Budget(points=40), Budget(share=0.025))


@pytest.mark.parametrize(
    ("parse", "texts"),
    [
        (integer, ("", "x", "1_0", " 1", "1\n", "１２", "٣", "1.0", "0x1", "--1", "nan", MANY_DIGITS)),
        (number, ("", "x", "1_0.0", "１.5", "nan", "inf", "-infinity", "1e400", "1e", ".", MANY_DIGITS)),
        (positive, ("", "0", "-1", "１", "1_0", "2.0", str(LARGEST + 1), MANY_DIGITS)),
        (seconds, ("", "0", "-1", "nan", "inf", "1e400", "１", "1_0", MANY_DIGITS)),
        (integers, ("", "-", "-5", "1-", "1-2-3", "5-3", "１-２", "1_0", f"1-{MANY_DIGITS}", f"{LARGEST + 1}")),
        (size, ("", "0", "-1", "2gib", "２GiB", "1.5GiB", "99999999999999999999", "9999999999GiB", MANY_DIGITS)),
        (architecture, ("", "sm_９０", "sm_90\n", "sm_9", "sm90", "sm_-9", MANY_DIGITS)),
        (budget, ("", "0", "-1", "５", "５%", "0%", "101%", "nan%", "1e400%", "1_0", MANY_DIGITS)),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_what_is_refused_in_a_line(parse, texts):
    for text in texts:
        with pytest.raises(ArgumentTypeError) as caught:
            parse(text)
        assert re.search(r"^got .*, expected |^got the empty range ", str(caught.value))
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize("text", ["1-99999999999", "1-10001", "1-9000,1-9000", f"1-{LARGEST}"])
def test_long_lists_are_refused_before_they_are_made(text):
    with pytest.raises(ArgumentTypeError, match="numbers, expected at most 10,000"):
        integers(text)


def test_architectures_of_the_library_are_in_ascii_digits():
    with pytest.raises(ValueError, match="arch: got 'sm_９０', expected"):
        parse_architecture("sm_９０")


@pytest.mark.parametrize(
    "value",
    ['"1-99999999999"', '"１-２"', f'"1-{MANY_DIGITS}"', MANY_DIGITS, f'"2^{MANY_DIGITS}"', '"2^１"', "9" * 30],
    ids=lambda value: value[:8],
)
def test_spaces_refuse_the_same(value):
    with pytest.raises(SpaceError):
        parse_space(f"[[candidates]]\nn = 4\nbatch = {value}\n", "space.toml", "space")


def test_deeply_nested_spaces_are_refused():
    with pytest.raises(SpaceError, match="not TOML"):
        parse_space("n = " + "[" * 100_000, "space.toml", "space")
