"""How each recipe turns random words into matrices.

Bits must not depend on the machine, so inexact arithmetic is elementwise and in one fixed order, each
operation rounded by itself (no fused multiply-add), and sums whose order a library chooses are sums of
integers small enough to be exact. A float32 matrix is the float64 matrix rounded once. The words are those of
`philox`.
"""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from batchchol.batches.checks import check_range
from batchchol.datasets import catalogue
from batchchol.datasets.catalogue import Recipe, Value
from batchchol.datasets.philox import blocks_for, octets, words32
from batchchol.errors import optional

Dense = NDArray[Any]  # (m, n, n), float32 or float64
Words = NDArray[np.uint64]  # (m, 4*blocks)


@dataclass(frozen=True)
class Plan:
    """One recipe settled for one order and dtype.

    `stream` and `blocks` say which words a matrix uses; `build(words, start, out)` writes the matrices from
    `start` on to `out` and may spoil the words; `scratch` is the bytes it needs meanwhile for each matrix.
    """

    stream: int
    blocks: int
    scratch: int
    build: Callable[[Words, int, Dense], None]


def plan(name: str, n: int, dtype: str, parameters: Mapping[str, object]) -> Plan:
    """Settle recipe `name` for order `n` and `dtype`; ValueError for a parameter out of range."""
    recipe = catalogue.find(name)
    return _PLANNERS[name](recipe, n, dtype, catalogue.settle(recipe, parameters))


def failing_minors(n: int, start: int, stop: int, parameters: Mapping[str, object]) -> NDArray[np.int32]:
    """Return k for each member of a `failing` batch that fails at its leading minor of order k, else 0."""
    settled = catalogue.settle(catalogue.find("failing"), parameters)
    return _minors(n, start, stop, _checked_failures(n, settled))


def _minors(n: int, start: int, stop: int, chosen: Mapping[str, Value]) -> NDArray[np.int32]:
    members, minors = cast(tuple[int, ...], chosen["members"]), cast(tuple[int, ...], chosen["minors"])
    every = cast(int, chosen["every"])
    info = np.zeros(stop - start, dtype=np.int32)
    if members:
        turns = [(turn, member) for turn, member in enumerate(sorted(set(members))) if start <= member < stop]
    elif every:
        turns = [(member // every, member) for member in range(-(-start // every) * every, stop, every)]
    else:
        turns = []
    for turn, member in turns:
        info[member - start] = minors[turn % len(minors)] if minors else 1 + turn % n
    return info


def _banded(recipe: Recipe, n: int, dtype: str, parameters: Mapping[str, Value]) -> Plan:
    bandwidth = cast(int, parameters["bandwidth"])
    check_range("banded: bandwidth", bandwidth, 0)
    index = np.arange(n)
    band = (abs(index[:, None] - index) <= bandwidth).astype(dtype)
    return _dominant(recipe, n, 2 * bandwidth + 1, band)


def _graded(recipe: Recipe, n: int, dtype: str, parameters: Mapping[str, Value]) -> Plan:
    octaves = cast(int, parameters["octaves"])
    # Two scales and the 31 bits of an element of B must stay normal numbers, so that scaling is exact.
    limit = (-np.finfo(dtype).minexp - 31) // 2
    if abs(octaves) > limit:
        raise ValueError(f"graded: octaves: got {octaves}, expected {-limit} to {limit} for {dtype}")
    steps = max(n - 1, 1)
    exponent = np.array([(2 * i * octaves + steps) // (2 * steps) for i in range(n)])
    scale = np.ldexp(np.ones((n, n), dtype), -(exponent[:, None] + exponent)).astype(dtype)
    return _dominant(recipe, n, n, scale)


def _integer_recipe(recipe: Recipe, n: int, dtype: str, parameters: Mapping[str, Value]) -> Plan:
    def build(drawn: Words, out: Dense) -> None:
        """R_ij = 1 + floor(w * n / 2**32), w the 32-bit word i*n + j; elements are half integers, exact."""
        integers = words32(drawn, n * n).astype(np.uint64)
        integers *= np.uint64(n)
        integers >>= np.uint64(32)
        square = integers.reshape(out.shape)
        out[...] = square + square.transpose(0, 2, 1)
        out *= 0.5
        out += 1
        _diagonal(out)[...] += n

    return _of_square(recipe, n, build)


def _of_square(recipe: Recipe, n: int, build: Callable[[Words, Dense], None]) -> Plan:
    """A plan for a recipe that makes each element of an n by n matrix R from a 32-bit word."""
    return Plan(recipe.stream, blocks_for(n * n, 4), 8 * n * n, lambda drawn, start, out: build(drawn, out))


def _dominant(recipe: Recipe, n: int, shift: int, factor: NDArray[Any] | None = None) -> Plan:
    """A plan for (R + R^T)/2 + shift*I, by a factor for each element, if given."""

    def build(drawn: Words, out: Dense) -> None:
        """R_ij = (w >> 2) * 2**-30, w the 32-bit word i*n + j.

        The sum is made in integers (below 2**31), so that each element is rounded at most once.
        """
        word = words32(drawn, n * n)
        word >>= np.uint32(2)
        square = word.view(np.int32).reshape(out.shape)
        doubled = square + square.transpose(0, 2, 1)
        out[...] = doubled
        out *= 2.0**-31
        _diagonal(out)[...] = _diagonal(doubled) * 2.0**-31 + shift
        if factor is not None:
            out *= factor

    return _of_square(recipe, n, build)


def _diagonal(dense: NDArray[Any]) -> NDArray[Any]:
    """The diagonals as a view (m, n)."""
    return cast(NDArray[Any], np.einsum("bii->bi", dense))


def wishart_columns(n: int, parameters: Mapping[str, Value]) -> int:
    """The columns of X, by default 2n."""
    return cast(int, parameters["columns"]) or 2 * n


def wishart_exponent(columns: int) -> int:
    """The power of two that X X^T is divided by: a diagonal element is 0.5 ... 1 on average.

    The mean square of an odd integer in -255 ... 255 is 21845.
    """
    return (21845 * columns).bit_length()


def _wishart(recipe: Recipe, n: int, dtype: str, parameters: Mapping[str, Value]) -> Plan:
    columns = wishart_columns(n, parameters)
    if columns < n:
        raise ValueError(f"wishart: columns: got {columns}, expected at least n = {n}, or 0 for {2 * n}")
    exact = _exact_dtype(columns * 255**2)
    scale = math.ldexp(1.0, -wishart_exponent(columns))

    def build(drawn: Words, start: int, out: Dense) -> None:
        """X_ij = 2*w - 255, w the byte i*columns + j; the product is exact, and rounded to `dtype` once."""
        odd = octets(drawn, n * columns).astype(exact).reshape(-1, n, columns)
        odd *= 2
        odd -= 255
        out[...] = _gram(odd)
        out *= scale

    return Plan(recipe.stream, blocks_for(n * columns, 1), n * (4 * columns + 8 * n), build)


def _exact_dtype(largest: int) -> str:
    """The cheaper dtype in which sums of integers, no part above `largest`, are exact in any order."""
    return "float32" if largest <= 2**24 else "float64"


def _gram(integers: Dense) -> Dense:
    """X X^T of each X (n, columns), exact, as a sum of products over a few columns at a time.

    A product of up to 2**18 multiplications OpenBLAS does in the calling thread; its own threads, which wait for
    each other at every matrix, cost milliseconds a matrix where the cores are shared.
    """
    count, n, width = integers.shape
    columns = max(16, 2**18 // n**2)
    gram: Dense = np.zeros((count, n, n), integers.dtype)
    for first in range(0, width, columns):
        part = integers[:, :, first : first + columns]
        gram += part @ part.transpose(0, 2, 1)
    return gram


def _condition(recipe: Recipe, n: int, dtype: str, parameters: Mapping[str, Value]) -> Plan:
    condition = cast(float, parameters["condition"])
    levels = (n - 1).bit_length() + 1 if n > 1 else 0  # every pair of rows has met, and once more
    perturbation = (float(np.finfo(dtype).eps) * math.sqrt(n) + np.finfo(np.float64).eps * 8 * levels) / 2
    limit = 0.5 / perturbation
    if not 1 <= condition <= limit:
        raise ValueError(f"condition: got {condition:g}, expected 1 to {limit:.3g} at n = {n} in {dtype}")
    spectrum = _geometric_spectrum(n, condition)
    pairs = n // 2

    def build(drawn: Words, start: int, out: Dense) -> None:
        """Q diag(spectrum) Q^T, Q a product of butterflies; pair p of level l turns by byte l*pairs + p."""
        odd = 2.0 * octets(drawn, levels * pairs).reshape(len(drawn), levels, pairs) - 255
        cosine, sine = (65536 - odd * odd) / (65536 + odd * odd), 512 * odd / (65536 + odd * odd)
        dense = np.zeros((len(drawn), n, n))
        _diagonal(dense)[...] = spectrum
        for level in range(levels):
            for _rows_then_columns in range(2):
                dense = _butterfly(dense, cosine[:, level], sine[:, level]).transpose(0, 2, 1)
        row, column = np.triu_indices(n, 1)
        dense[:, row, column] = dense[:, column, row]
        out[...] = dense

    return Plan(recipe.stream, blocks_for(levels * pairs, 1), 4 * 8 * n * n, build)


def _geometric_spectrum(n: int, condition: float) -> NDArray[np.float64]:
    """condition**(-i/(n-1)), i = 0 ... n-1, each correctly rounded: the mathematics library's pow is not."""
    with decimal.localcontext() as context:
        context.prec = 60
        logarithm = decimal.Decimal(condition).ln()
        exponents = [-logarithm * i / max(n - 1, 1) for i in range(n)]
        return np.array([float(exponent.exp()) for exponent in exponents])


def _butterfly(dense: Dense, cosine: Dense, sine: Dense) -> Dense:
    """Turn rows p and p + h (h = n // 2) by the angle of pair p, then riffle: an odd last row comes first.

    With x, y the two rows: c*x - s*y and s*x + c*y become rows 2p and 2p + 1 (one later if n is odd).
    """
    pairs, odd = cosine.shape[1], dense.shape[1] % 2
    upper, lower = dense[:, :pairs], dense[:, pairs : 2 * pairs]
    c, s = cosine[:, :, None], sine[:, :, None]
    turned = np.empty(dense.shape)
    turned[:, odd::2] = c * upper - s * lower
    turned[:, odd + 1 :: 2] = s * upper + c * lower
    turned[:, :odd] = dense[:, 2 * pairs :]
    return turned


def _failing(recipe: Recipe, n: int, dtype: str, parameters: Mapping[str, Value]) -> Plan:
    kind = _checked_failures(n, parameters)["kind"]
    base = plan(str(parameters["base"]), n, dtype, {})

    def build(drawn: Words, start: int, out: Dense) -> None:
        base.build(drawn, start, out)
        minors = _minors(n, start, start + len(out), parameters)
        member = np.flatnonzero(minors)
        at = minors[member] - 1
        if kind == "zero":
            out[member, at, :] = 0
            out[member, :, at] = 0
        else:
            out[member, at, at] = np.nan if kind == "nan" else -out[member, at, at]

    return Plan(base.stream, base.blocks, base.scratch, build)


def _checked_failures(n: int, parameters: Mapping[str, Value]) -> Mapping[str, Value]:
    if not catalogue.find(str(parameters["base"])).spd:
        raise ValueError(f"failing: base: got {parameters['base']!r}, expected a positive definite recipe")
    if parameters["kind"] not in ("negative", "zero", "nan"):
        raise ValueError(f"failing: kind: got {parameters['kind']!r}, expected negative, zero or nan")
    check_range("failing: every", cast(int, parameters["every"]), 0)
    for member in cast(tuple[int, ...], parameters["members"]):
        check_range("failing: members", member, 0)
    for minor in cast(tuple[int, ...], parameters["minors"]):
        check_range("failing: minors", minor, 1, n)
    return parameters


def _digits(recipe: Recipe, n: int, dtype: str, parameters: Mapping[str, Value]) -> Plan:
    rows, ridge = cast(int, parameters["rows"]), cast(float, parameters["ridge"])
    images = _load_digits()
    check_range("digits: rows", rows, 1, len(images))
    if not 0 < ridge < math.inf:
        raise ValueError(f"digits: ridge: got {ridge:g}, expected a finite number greater than 0")
    pixels = images.shape[1]
    cyclic = np.resize(images, images.size + rows * pixels + n)
    windows = np.lib.stride_tricks.sliding_window_view(cyclic, n)

    def build(drawn: Words, start: int, out: Dense) -> None:
        """X_rc = pixel offset + c from the start of image first + r, over image borders and cyclic.

        first = floor(w0 * images / 2**32), offset = w1 >> 26, w0 and w1 the first 32-bit words.
        """
        word = words32(drawn, 2).astype(np.int64)
        first, offset = word[:, :1] * len(images) >> 32, word[:, 1:] >> 26
        samples = windows[(first + np.arange(rows)) * pixels + offset].astype(_exact_dtype(rows * 16**2))
        out[...] = _gram(samples.transpose(0, 2, 1))
        out *= 2.0**-8  # pixels are 0 ... 16
        _diagonal(out)[...] = _diagonal(out).astype(np.float64) + ridge

    return Plan(recipe.stream, 1, n * (5 * rows + 8 * n), build)


@cache  # reading them takes longer than making a small batch
def _load_digits() -> NDArray[np.uint8]:
    """The images of scikit-learn's digits: shape (1797, 64), grey levels 0 ... 16."""
    images = optional("sklearn.datasets", "digits", "data").load_digits().data
    return cast(NDArray[np.uint8], images.astype(np.uint8))


_PLANNERS: Mapping[str, Callable[[Recipe, int, str, Mapping[str, Value]], Plan]] = {
    "diagonally_dominant": lambda recipe, n, dtype, parameters: _dominant(recipe, n, n),
    "wishart": _wishart,
    "condition": _condition,
    "graded": _graded,
    "banded": _banded,
    "integer_recipe": _integer_recipe,
    "failing": _failing,
    "digits": _digits,
}
