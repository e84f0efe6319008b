"""Arguments of odd types and kinds: the right answer, or an error that names the argument; never a wrong answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    cho_solve,
    cholesky,
    cholesky_ex,
    factor,
    get_backend,
    inv,
    lstsq,
    lu_solve,
    ormqr,
    qr,
    solve,
)

Array = NDArray[np.floating]

A = np.array([[4.0, 2.0], [2.0, 5.0]])
L = np.array([[2.0, 0.0], [1.0, 2.0]])


class Arrayed:
    """Has the numbers, and is no array."""

    def __init__(self, made: Callable[[], Any]) -> None:
        self._made = made

    def __array__(self, dtype: object = None, copy: object = None) -> Any:
        return self._made()


class Odd(np.ndarray):
    """An array whose own functions give nonsense."""

    def __getitem__(self, key: Any) -> Any:
        return 7

    def __array_function__(self, *_: Any, **__: Any) -> Any:
        raise AssertionError("the library's arrays are plain ones")


def read_only(a: Array) -> Array:
    a = a.copy()
    a.flags.writeable = False
    return a


TAKEN: dict[str, Any] = {
    "lists": A.tolist(),
    "tuples": tuple(map(tuple, A.tolist())),
    "list of arrays": list(A),
    "list of NumPy's numbers": [[np.float32(x) for x in row] for row in A],
    "object with __array__": Arrayed(lambda: A),
    "subclass": A.view(Odd),
    "other byte order": A.astype(">f8"),
    "dtype with metadata": A.astype(np.dtype("f8", metadata={"unit": "m"})),
    "read-only": read_only(A),
    "negative strides": A[::-1, ::-1].copy()[::-1, ::-1],
    "rows that overlap": np.lib.stride_tricks.as_strided(np.array([4.0, 2.0, 5.0]), (2, 2), (8, 8)),
    "nothing masked": np.ma.array(A),
    "list of arrays, nothing masked": [np.ma.array(row) for row in A],
    "memory": memoryview(A),
}


@pytest.mark.parametrize("a", TAKEN.values(), ids=TAKEN.keys())
def test_what_is_an_array_of_floats(a: Any) -> None:
    l = cholesky(a)
    assert type(l) is np.ndarray
    np.testing.assert_array_equal(l, L)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_matrix_gives_an_array() -> None:
    l = cholesky(np.matrix(A))
    assert type(l) is np.ndarray
    np.testing.assert_array_equal(l, L)


MASKED = np.ma.array(A, mask=[[True, False], [False, False]])
CONVERT = r"convert with \.astype first"
REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "integers": (A.astype(int), TypeError, rf"^a: got dtype int64, .*{CONVERT}"),
    "booleans": (A.astype(bool), TypeError, rf"^a: got dtype bool, .*{CONVERT}"),
    "half": (A.astype("f2"), TypeError, rf"^a: got dtype float16, .*{CONVERT}"),
    "long double": (A.astype("longdouble"), TypeError, rf"^a: got dtype float128, .*{CONVERT}"),
    "complex": (A.astype(complex), TypeError, r"^a: got dtype complex128, .*numpy\.linalg takes complex"),
    "list of complex": ((A * 1j).tolist(), TypeError, r"^a: got dtype complex128, .*numpy\.linalg takes"),
    "list of integers": ([[4, 2], [2, 5]], TypeError, r"^a: got dtype int64, .*pass np\.asarray\(a, dtype=float\)"),
    "objects": (A.astype(object), TypeError, rf"^a: got dtype object, .*{CONVERT}"),
    "records": (np.zeros((2, 2), "f4,f4"), TypeError, r"^a: got dtype \[.*use a field of the records"),
    "words": ("ab", TypeError, "^a: got dtype <U2"),
    "dates": (np.zeros((2, 2), "M8[s]"), TypeError, r"^a: got dtype datetime64\[s\]"),
    "None": (None, TypeError, "^a: got dtype object"),
    "set": ({1.0, 2.0}, TypeError, "^a: got dtype object"),
    "one number": (4.0, ValueError, r"^a: got shape \(\), expected square"),
    "one row": (A[0], ValueError, r"^a: got shape \(2,\), expected square"),
    "masked": (MASKED, ValueError, "^a: got an array of which elements are masked"),
    "list of masked": ([MASKED, MASKED], ValueError, "^a: got an array of which elements are masked"),
    "nested list of masked": (([A], (MASKED,)), ValueError, "^a: got an array of which elements are masked"),
    "batch": (Batch.from_dense(A[None]), TypeError, r"use to_dense\(\)"),
    "list of batches": ([Batch.from_dense(A[None])], TypeError, r"use to_dense\(\)"),
    "rows of two lengths": ([[1.0, 2.0], [3.0]], ValueError, "inhomogeneous"),
    "__array__ that raises": (Arrayed(lambda: 1 / 0), ZeroDivisionError, "division by zero"),
    "__array__ that returns none": (Arrayed(lambda: 7), ValueError, "__array__"),
}


@pytest.mark.parametrize("function", [cholesky, cholesky_ex])
@pytest.mark.parametrize(("a", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_no_array_of_floats(
    function: Callable[[Any], object], a: Any, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        function(a)


SOLVING: dict[str, Callable[[Any], object]] = {
    "solve": lambda b: solve(A, b),
    "solve by LU": lambda b: solve(A, b, assume_a="gen"),
    "cho_solve": lambda b: cho_solve(L, b),
    "lstsq": lambda b: lstsq(A, b),
    "ormqr": lambda b: ormqr(qr(A, "raw"), b),
}


@pytest.mark.parametrize("function", SOLVING.values(), ids=SOLVING.keys())
def test_right_hand_sides(function: Callable[[Any], Any]) -> None:
    b = np.array([6.0, 9.0])
    np.testing.assert_array_equal(function(b.astype(">f8")), function(b))
    for odd, got in ((None, "object"), ("ab", "<U2"), (np.zeros(3, "M8[s]"), r"datetime64\[s\]")):
        with pytest.raises(TypeError, match=f"^b: got dtype {got}, expected"):
            function(odd)


PIVOTS = np.ma.array([1, 2], mask=[True, False])
WRONG: dict[str, tuple[Callable[[], object], type[Exception], str]] = {
    "no pivots": (lambda: lu_solve(A, None, A), TypeError, "^pivots: got None, expected"),
    "masked pivots": (lambda: lu_solve(A, PIVOTS, A), ValueError, "^pivots: got an array of which elements are"),
    "no pair": (lambda: ormqr(A[:1], A), TypeError, r"^factors: got ndarray, expected the pair \(qr, tau\)"),
    "three": (lambda: ormqr((A, A, A), A), TypeError, r"^factors: got 3 of them, expected the pair"),
    "out in one place": (lambda: cholesky(A, out=ONE_PLACE), ValueError, "^out: got .* share their memory"),
    "inverses": (lambda: inv(A, out=A[0]), ValueError, "^out: got .*, that of the inverses"),
}
ONE_PLACE = np.lib.stride_tricks.as_strided(np.zeros(2), (2, 2), (0, 8))


@pytest.mark.parametrize(("call", "error", "words"), WRONG.values(), ids=WRONG.keys())
def test_wrong_beside_matrices(call: Callable[[], object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        call()


def test_products_of_no_matrices_are_none() -> None:
    factors = qr(np.empty((0, 3, 2)), "raw")
    assert ormqr(factors, np.empty((0, 3, 4))).shape == (0, 3, 4)


# Arrays are equal to strings, or not, element by element.
ODD = [
    3,
    True,
    b"ieee",
    ["ieee"],
    np.array(["ieee"]),
    np.array(["cpu"]),
    np.array(["lower", "ieee"]),
    np.array(["lower"]),
    object(),
]


@pytest.mark.parametrize("function", [cholesky, cholesky_ex])
@pytest.mark.parametrize("upper", ["no", "", "lower", 0, 1, None, 1.0, [], np.array([True]), np.int64(1)], ids=repr)
def test_upper_is_true_or_false(function: Callable[..., object], upper: Any) -> None:
    with pytest.raises(TypeError, match=r"^upper: got .*, expected True or False"):
        function(A, upper=upper)


@pytest.mark.parametrize("upper", [np.True_, np.False_])
def test_upper_of_numpy(upper: Any) -> None:
    np.testing.assert_array_equal(cholesky(A, upper=upper), L.T if upper else L)
    np.testing.assert_array_equal(cholesky_ex(A, upper=upper).L, L.T if upper else L)


MATH = r"^math: got .*, expected one of 'ieee', 'fast'"
BACKEND = r"^backend=.* is unknown: use one of 'cpu', 'cuda'"
TRIANGLE = r"^triangle: got .*, expected None, 'lower' or 'upper'"
SPEC = r"^spec: got .*, expected a KernelSpec"
NAMES: dict[str, tuple[Callable[[Batch, Any], object], type[Exception], str]] = {
    "math of arrays": (lambda batch, odd: cholesky(A, math=odd), ValueError, MATH),
    "math of a batch": (lambda batch, odd: factor(batch, math=odd), ValueError, MATH),
    "math of a batch and out": (lambda batch, odd: factor(batch, out=batch.copy(), math=odd), ValueError, MATH),
    "math of a layout": (lambda batch, odd: get_backend().default_layout(4, math=odd), ValueError, MATH),
    "backend of arrays": (lambda batch, odd: cholesky(A, backend=odd), ValueError, BACKEND),
    "backend of a batch": (lambda batch, odd: factor(batch, backend=odd), ValueError, BACKEND),
    "triangle": (lambda batch, odd: Batch(batch.data, 2, 1, batch.layout, odd), ValueError, TRIANGLE),
    "triangle of a batch that has one": (lambda batch, odd: batch.marked("lower").marked(odd), ValueError, TRIANGLE),
    "spec of arrays": (lambda batch, odd: cholesky(A, spec=odd), TypeError, SPEC),
    "spec of a batch": (factor, TypeError, SPEC),
    "out": (lambda batch, odd: factor(batch, out=odd), TypeError, r"^out: got .*, expected a Batch"),
}


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
@pytest.mark.parametrize(("call", "error", "words"), NAMES.values(), ids=NAMES.keys())
def test_names_of_odd_types(
    call: Callable[[Batch, Any], object], error: type[Exception], words: str, odd: Any
) -> None:
    with pytest.raises(error, match=words):
        call(Batch.from_dense(A[None]), odd)


@pytest.mark.parametrize("odd", ODD, ids=lambda odd: type(odd).__name__)
def test_math_of_odd_types_where_the_last_call_is_remembered(odd: Any) -> None:
    batch = Batch.from_dense(A[None])
    out = batch.copy()
    factor(batch, math="ieee")
    factor(batch, out=out, math="ieee")
    for place in (None, out):
        with pytest.raises(ValueError, match=MATH):
            factor(batch, out=place, math=odd)


@pytest.mark.parametrize("threads", [0, -1, 1.0, "2", True, np.True_, [2], np.array([2]), b"2", 1 + 0j], ids=repr)
def test_threads_are_a_positive_integer(threads: Any) -> None:
    with pytest.raises(ValueError, match=r"^threads: got .*, expected a positive integer"):
        factor(Batch.from_dense(A[None]), threads=threads)
