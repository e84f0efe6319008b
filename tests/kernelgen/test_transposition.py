"""The shuffles that transpose a block held in vectors, carried out on lists."""

from __future__ import annotations

import pytest

from kernelgen.emit.simd import Shuffle, transposition

# (lanes, elements in 16 bytes): float32 and float64 on every target, and wider machines to come.
WIDTHS = [(4, 4), (8, 4), (16, 4), (32, 4), (2, 2), (4, 2), (8, 2), (16, 2)]


def apply(shuffles: tuple[Shuffle, ...], vectors: list[list[str]]) -> list[list[str]]:
    """Carry them out in pairs, as the templates do: both of a pair read before either is written."""
    for pair in zip(shuffles[::2], shuffles[1::2], strict=True):
        assert len({(shuffle.first, shuffle.second) for shuffle in pair}) == 1
        assert {shuffle.to for shuffle in pair} == {pair[0].first, pair[0].second}
        shuffled = [[(vectors[s.first] + vectors[s.second])[index] for index in s.mask] for s in pair]
        for shuffle, vector in zip(pair, shuffled, strict=True):
            vectors[shuffle.to] = vector
    return vectors


@pytest.mark.parametrize(("lanes", "per_word"), WIDTHS)
def test_shuffles_transpose(lanes: int, per_word: int) -> None:
    block = [[f"matrix {m} element {e}" for e in range(lanes)] for m in range(lanes)]
    transposed = [list(column) for column in zip(*block, strict=True)]
    assert apply(transposition(lanes, per_word), block) == transposed


@pytest.mark.parametrize(("lanes", "per_word"), WIDTHS)
def test_each_vector_is_shuffled_once_a_step(lanes: int, per_word: int) -> None:
    assert len(transposition(lanes, per_word)) == lanes * (lanes.bit_length() - 1)


@pytest.mark.parametrize(("lanes", "per_word"), WIDTHS)
def test_each_shuffle_is_one_instruction(lanes: int, per_word: int) -> None:
    """Unpacks within words of 16 bytes, the same in each; or whole words, where they are."""
    for shuffle in transposition(lanes, per_word):
        words = [shuffle.mask[start : start + per_word] for start in range(0, lanes, per_word)]
        whole = all(word == tuple(range(word[0], word[0] + per_word)) for word in words)
        offsets = {tuple(index - place * per_word for index in word) for place, word in enumerate(words)}
        assert whole or len(offsets) == 1
