"""What each recipe promises about its matrices, against LAPACK and NumPy in float64."""

import sys

import numpy as np
import pytest
from scipy.linalg.lapack import dpotrf, spotrf

from batchchol.datasets import generation, recipes
from batchchol.errors import BatchcholError

CATALOGUE = generation.catalogue()
DEFINITE = [name for name, recipe in CATALOGUE.items() if recipe.spd]
ORDERS = (1, 2, 3, 8, 31, 64, 100)


def lapack_info(matrices):
    return np.array([dpotrf(matrix.astype(np.float64), lower=1)[1] for matrix in matrices])


def extremes(matrices):
    eigenvalues = np.linalg.eigvalsh(matrices.astype(np.float64))
    return eigenvalues[:, 0], eigenvalues[:, -1]


def test_catalogue_describes_every_recipe():
    assert list(CATALOGUE) == [
        "diagonally_dominant",
        "wishart",
        "condition",
        "graded",
        "banded",
        "integer_recipe",
        "failing",
        "digits",
    ]
    for name, recipe in CATALOGUE.items():
        assert recipe.name == name
        assert isinstance(recipe.spd, bool)
        assert isinstance(recipe.stream, int)
        assert recipe.description
        assert "\n" not in recipe.description
        assert recipe.source
        assert all(parameter.about for parameter in recipe.parameters.values())
    assert CATALOGUE["digits"].requires == ("scikit-learn",)


@pytest.mark.parametrize("name", CATALOGUE)
def test_every_member_is_symmetric_to_the_bit(name):
    for n in ORDERS:
        made = generation.generate(name, n=n, stop=30)
        assert np.array_equal(made, made.transpose(0, 2, 1))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", DEFINITE)
def test_definite_recipes_are_definite(name, dtype):
    for n in ORDERS:
        made = generation.generate(name, n=n, stop=60, seed=n, dtype=dtype)
        assert not lapack_info(made).any()
        assert np.array_equal(generation.expected_info(name, n=n, stop=60), np.zeros(60, np.int32))


def test_diagonally_dominant_is_strictly_so():
    for n in (2, 8, 100):
        made = generation.generate("diagonally_dominant", n=n, stop=50, dtype="float64")
        diagonal = np.einsum("bii->bi", made)
        others = made.sum(2) - diagonal
        assert (diagonal > others).all()
        off_diagonal = made[:, ~np.eye(n, dtype=bool)]
        assert (off_diagonal >= 0).all()
        assert (off_diagonal < 1).all()


def test_diagonally_dominant_is_uniform():
    n = 16
    made = generation.generate("diagonally_dominant", n=n, stop=4000, dtype="float64")
    r = np.einsum("bii->bi", made) - n
    mean = made[:, np.triu(np.ones((n, n), bool), 1)]
    # Five standard errors of the mean and of the variance, for R uniform and for the mean of two such.
    assert abs(r.mean() - 1 / 2) < 5 * np.sqrt(1 / 12 / r.size)
    assert abs(r.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / r.size)
    assert abs(mean.mean() - 1 / 2) < 5 * np.sqrt(1 / 24 / mean.size)
    assert abs(mean.var() - 1 / 24) < 5 * np.sqrt(1 / 180 / mean.size)


@pytest.mark.parametrize("columns", [0, 12, 300])
def test_wishart_is_a_scaled_gram_matrix_of_integers(columns):
    n = 12
    made = generation.generate("wishart", n=n, stop=200, columns=columns, dtype="float64")
    width = columns or 2 * n
    scale = 2.0 ** np.ceil(np.log2(21845 * width))
    assert np.array_equal(made * scale, np.rint(made * scale))
    odd_squares = (np.einsum("bii->bi", made) * scale - width) / 8  # an odd square is 1 modulo 8
    assert np.array_equal(odd_squares, np.rint(odd_squares))
    diagonal = np.einsum("bii->bi", made).mean()
    off_diagonal = made[:, ~np.eye(n, dtype=bool)].mean()
    assert diagonal == pytest.approx(21845 * width / scale, rel=0.05)
    assert abs(off_diagonal) < 0.05 * diagonal


def test_wishart_gets_worse_with_fewer_columns():
    few, many = (
        np.divide(*reversed(extremes(generation.generate("wishart", n=16, stop=50, columns=columns))))
        for columns in (16, 256)
    )
    assert np.median(few) > 100 * np.median(many)


@pytest.mark.parametrize(
    ("dtype", "condition"),
    [("float32", 1), ("float32", 50.0), ("float32", 1e4), ("float64", 1e3), ("float64", 1e10), ("float64", 1e12)],
)
def test_prescribed_condition_number_is_reached(dtype, condition):
    roundoff = {"float32": 2.0**-24, "float64": 2.0**-53}[dtype]
    for n in (2, 3, 17, 64, 100):
        made = generation.generate("condition", n=n, stop=10, dtype=dtype, condition=condition)
        smallest, largest = extremes(made)
        # Each element is rounded once, and eigvalsh adds a few n*u of its own.
        tolerance = condition * (roundoff * np.sqrt(n) + 2.0**-53 * 20 * n)
        assert largest == pytest.approx(1, abs=tolerance / condition)
        assert largest / smallest == pytest.approx(condition, rel=tolerance / (1 - tolerance))


def test_spectrum_is_geometric_and_basis_is_dense():
    made = generation.generate("condition", n=40, stop=20, dtype="float64", condition=1e4)
    wanted = np.geomspace(1e-4, 1, 40)
    assert np.allclose(np.linalg.eigvalsh(made), wanted, rtol=1e-9, atol=0)
    off_diagonal = made[:, ~np.eye(40, dtype=bool)]
    diagonal = np.einsum("bii->bi", made)
    assert (off_diagonal != 0).mean() > 0.99
    # No trace of the order of the spectrum: every row meets every eigenvalue.
    assert diagonal.mean(0).max() < 2 * diagonal.mean(0).min()


def test_condition_beyond_the_precision_is_refused():
    with pytest.raises(ValueError, match=r"condition: got 1e\+08, expected 1 to .* at n = 8 in float32"):
        generation.generate("condition", n=8, stop=1, condition=1e8)
    assert generation.generate("condition", n=8, stop=1, condition=1e8, dtype="float64").shape == (1, 8, 8)
    for bad in (0.5, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="condition: got"):
            generation.generate("condition", n=8, stop=1, condition=bad)


@pytest.mark.parametrize("octaves", [-47, -5, 0, 12, 47])
def test_graded_is_an_exact_scaling(octaves):
    n = 9
    made = generation.generate("graded", n=n, stop=40, octaves=octaves)
    scale = np.exp2(-np.round(np.arange(n) * octaves / (n - 1) + 1e-9))
    base = made / np.outer(scale, scale)
    assert scale[0] / scale[-1] == 2.0**octaves
    diagonal = np.einsum("bii->bi", base)
    assert (diagonal >= n).all()
    assert (diagonal < n + 1).all()
    # Scaling by powers of two commutes with every rounding of the factorization.
    for graded, plain in zip(made, base.astype(np.float32), strict=True):
        assert np.array_equal(
            np.tril(spotrf(graded, lower=1)[0]), np.tril(scale[:, None] * spotrf(plain, lower=1)[0])
        )


def test_graded_beyond_the_exponent_range_is_refused():
    with pytest.raises(ValueError, match="graded: octaves: got 48, expected -47 to 47 for float32"):
        generation.generate("graded", n=4, stop=1, octaves=48)
    assert np.isfinite(generation.generate("graded", n=4, stop=5, octaves=-495, dtype="float64")).all()


@pytest.mark.parametrize("bandwidth", [0, 1, 2, 5, 20])
def test_banded_is_zero_exactly_outside_its_band(bandwidth):
    n = 10
    made = generation.generate("banded", n=n, stop=50, bandwidth=bandwidth, dtype="float64")
    inside = abs(np.subtract.outer(np.arange(n), np.arange(n))) <= bandwidth
    assert not made[:, ~inside].any()
    assert (made[:, inside] != 0).mean() > 0.99
    diagonal = np.einsum("bii->bi", made)
    assert (diagonal > abs(made).sum(2) - diagonal).all()


def test_banded_refuses_a_negative_band():
    with pytest.raises(ValueError, match="banded: bandwidth: got -1, expected at least 0"):
        generation.generate("banded", n=4, stop=1, bandwidth=-1)


def test_integer_recipe_draws_each_integer_equally_often():
    n = 8
    made = generation.generate("integer_recipe", n=n, stop=4000)
    r = np.einsum("bii->bi", made) - n
    counts = np.bincount(r.astype(int).ravel(), minlength=n + 1)
    assert np.array_equal(r, np.rint(r))
    assert counts[0] == 0
    assert len(counts) == n + 1
    assert abs(counts[1:] - r.size / n).max() < 5 * np.sqrt(r.size / n)
    assert np.array_equal(2 * made, np.rint(2 * made))


def test_integer_recipe_is_not_definite():
    definite = {
        n: np.mean(lapack_info(generation.generate("integer_recipe", n=n, stop=500)) == 0) for n in (8, 20, 32, 64)
    }
    assert 0.7 < definite[8] < 0.9
    assert definite[20] == definite[32] == definite[64] == 0
    with pytest.raises(ValueError, match="integer_recipe: which members fail is not known"):
        generation.expected_info("integer_recipe", n=8, stop=4)


@pytest.mark.parametrize("base", DEFINITE)
@pytest.mark.parametrize("kind", ["negative", "zero"])
def test_failing_members_fail_where_they_are_told(base, kind):
    for n in (1, 7, 32):
        chosen = {"base": base, "kind": kind, "every": 3}
        made = generation.generate("failing", n=n, start=4, stop=124, **chosen)
        expected = generation.expected_info("failing", n=n, start=4, stop=124, **chosen)
        assert np.array_equal(lapack_info(made), expected)
        assert np.array_equal(np.flatnonzero(expected) + 4, np.arange(6, 124, 3))
        assert set(expected) == set(range(n + 1))
        healthy = expected == 0
        assert np.array_equal(made[healthy], generation.generate(base, n=n, start=4, stop=124)[healthy])


def test_failing_takes_members_and_minors_by_name():
    chosen = {"members": (12, 3, 5), "minors": [2, 4]}
    expected = generation.expected_info("failing", n=6, stop=20, **chosen)
    assert {int(at): int(expected[at]) for at in np.flatnonzero(expected)} == {3: 2, 5: 4, 12: 2}
    assert np.array_equal(lapack_info(generation.generate("failing", n=6, stop=20, **chosen)), expected)
    assert np.array_equal(generation.expected_info("failing", n=6, start=4, stop=13, **chosen), expected[4:13])


def test_failing_with_nan_puts_it_on_the_pivot():
    made = generation.generate("failing", n=5, stop=30, kind="nan", every=4)
    expected = generation.expected_info("failing", n=5, stop=30, kind="nan", every=4)
    assert np.array_equal(np.isnan(made).sum((1, 2)), expected > 0)
    for matrix, k in zip(made, expected, strict=True):
        assert k == 0 or np.isnan(matrix[k - 1, k - 1])


def test_failing_can_fail_nowhere():
    assert not generation.expected_info("failing", n=5, stop=30, every=0).any()
    assert not lapack_info(generation.generate("failing", n=5, stop=30, every=0)).any()


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"base": "integer_recipe"}, "failing: base: got 'integer_recipe', expected a positive definite"),
        ({"base": "nothing"}, "name: got 'nothing'"),
        ({"kind": "odd"}, "failing: kind: got 'odd'"),
        ({"every": -2}, "failing: every: got -2"),
        ({"members": [-1]}, "failing: members: got -1"),
        ({"members": 3}, "failing: members: got 3, expected a list of integers"),
        ({"members": "3"}, "failing: members: got '3', expected a list of integers"),
        ({"minors": [0]}, "failing: minors: got 0, expected 1 to 4"),
        ({"minors": [5]}, "failing: minors: got 5"),
    ],
)
def test_bad_failures_are_refused_alike_by_both(chosen, message):
    for function in (generation.generate, generation.expected_info):
        with pytest.raises(ValueError, match=message):
            function("failing", n=4, stop=3, **chosen)


def test_digits_are_normal_equations_of_windows_of_the_images():
    pixels = pytest.importorskip("sklearn.datasets").load_digits().data.ravel() / 16
    n, rows, ridge = 70, 40, 0.25
    made = generation.generate("digits", n=n, stop=6, rows=rows, ridge=ridge, dtype="float64")
    cyclic = np.concatenate([pixels, pixels[: 64 * (rows + 2)]])
    corner = sum(cyclic[64 * row : 64 * row + pixels.size] ** 2 for row in range(rows))
    for matrix in made:
        gram = matrix - ridge * np.eye(n)
        windows = (
            np.stack([cyclic[start + 64 * row :][:n] for row in range(rows)])
            for start in np.flatnonzero(corner == gram[0, 0])
        )
        assert any(np.array_equal(window.T @ window, gram) for window in windows)


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"rows": 0}, "digits: rows: got 0, expected 1 to 1797"),
        ({"rows": 1798}, "digits: rows: got 1798"),
        ({"ridge": 0}, "digits: ridge: got 0"),
        ({"ridge": float("nan")}, "digits: ridge: got nan"),
        ({"ridge": float("inf")}, "digits: ridge: got inf"),
    ],
)
def test_digits_refuses_bad_parameters(chosen, message):
    with pytest.raises(ValueError, match=message):
        generation.generate("digits", n=4, stop=3, **chosen)


def test_digits_without_scikit_learn_names_the_extra(monkeypatch):
    recipes._load_digits.cache_clear()
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(BatchcholError, match=r"digits needs scikit-learn.*pip install -e '\.\[data\]'"):
        generation.generate("digits", n=4, stop=3)
