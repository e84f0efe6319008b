"""`python -m batchchol factor`: from a file to a file of factors, and what it says of matrices that have none."""

import io
import os
import signal

import numpy as np
import pytest

from batchchol.cli import main
from batchchol.datasets import generation
from batchchol.datasets.files import load, save
from batchchol.datasets.text_files import read_text, write_text

MATRIX = "3\n4 1 0.5\n1 5 2\n0.5 2 6\n"


def run(*arguments):
    return main(["factor", *map(str, arguments)])


@pytest.fixture
def standard_input(monkeypatch):
    def give(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    return give


def wishart(dtype, n=3, batch=20):
    return generation.generate("wishart", n=n, stop=batch, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_npy_gives_npy_of_its_precision(tmp_path, capsys, dtype):
    a = wishart(dtype)
    save(tmp_path / "a.npy", a)
    assert run(tmp_path / "a.npy", tmp_path / "l.npy") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'l.npy'}: 20 factors of order 3, {dtype}\n"
    factors = load(tmp_path / "l.npy")
    assert factors.dtype == dtype
    np.testing.assert_allclose(factors, np.linalg.cholesky(a), rtol=1e-4)


def test_text_gives_text(tmp_path):
    a = wishart("float64")
    write_text(tmp_path / "a.txt", a)
    assert run(tmp_path / "a.txt", tmp_path / "l.txt") == 0
    np.testing.assert_allclose(read_text(tmp_path / "l.txt"), np.linalg.cholesky(a), rtol=1e-12)
    assert run(tmp_path / "a.txt", tmp_path / "l.npy", "--dtype", "float32", "--math", "fast") == 0
    np.testing.assert_allclose(load(tmp_path / "l.npy"), np.linalg.cholesky(a), rtol=1e-4)


def test_one_matrix_gives_one_factor(tmp_path):
    (tmp_path / "a.txt").write_text(MATRIX.replace("\n", " "))
    assert run(tmp_path / "a.txt", tmp_path / "l.txt") == 0
    order, *rows = (tmp_path / "l.txt").read_text().splitlines()
    factor = np.array([[float(word) for word in row.split()] for row in rows])
    assert order == "3"
    np.testing.assert_allclose(factor @ factor.T, [[4, 1, 0.5], [1, 5, 2], [0.5, 2, 6]], rtol=1e-14)


def test_only_the_triangle_that_is_asked_for_is_read(tmp_path):
    a = wishart("float64")
    lower = np.linalg.cholesky(a)
    triangle = np.triu(np.ones((3, 3), bool))
    save(tmp_path / "a.npy", np.where(triangle, a, np.nan))
    assert run(tmp_path / "a.npy", tmp_path / "u.npy", "--upper") == 0
    np.testing.assert_allclose(load(tmp_path / "u.npy"), lower.swapaxes(1, 2), rtol=1e-12)


def test_what_is_not_positive_definite_is_named_and_ends_with_1(tmp_path, capsys):
    a = wishart("float64", batch=40)
    a[5:20, 1, 1] = -1
    save(tmp_path / "a.npy", a)
    assert run(tmp_path / "a.npy", tmp_path / "l.npy") == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "15 of 40 matrices are not positive definite; their factors are NaN"
    assert [line.split(",")[0] for line in said[1:-1]] == [f"matrix {index}: info 2" for index in range(5, 15)]
    assert said[-1] == "and 5 more"
    factors = load(tmp_path / "l.npy")
    assert np.isnan(factors[5:20]).all()
    good = np.delete(np.arange(40), slice(5, 20))
    np.testing.assert_allclose(factors[good], np.linalg.cholesky(a[good]), rtol=1e-12)


def test_standard_streams_have_either_kind(tmp_path, capfd, standard_input):
    standard_input(MATRIX.encode())
    assert run("-", "-") == 0
    text = capfd.readouterr().out
    (tmp_path / "a.txt").write_text(MATRIX)
    assert run(tmp_path / "a.txt", tmp_path / "l.txt") == 0
    assert text == (tmp_path / "l.txt").read_text()

    save(tmp_path / "a.npy", wishart("float64"))
    standard_input((tmp_path / "a.npy").read_bytes())
    assert run("-", tmp_path / "l.npy") == 0
    assert load(tmp_path / "l.npy").shape == (20, 3, 3)


def test_a_batch_is_factored_in_slices(tmp_path, monkeypatch):
    monkeypatch.setattr("batchchol.datasets.files.slice_length", lambda n, dtype: 7)
    a = wishart("float64")
    save(tmp_path / "a.npy", a)
    # Into the file itself: it is replaced when the last slice is done.
    assert run(tmp_path / "a.npy", tmp_path / "a.npy") == 0
    np.testing.assert_allclose(load(tmp_path / "a.npy"), np.linalg.cholesky(a), rtol=1e-12)


def test_an_empty_batch_has_no_factors(tmp_path):
    save(tmp_path / "a.npy", np.empty((0, 3, 3)))
    assert run(tmp_path / "a.npy", tmp_path / "l.npy") == 0
    assert load(tmp_path / "l.npy").shape == (0, 3, 3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "standard input: line 1: '', expected the number of matrices, or the order of one matrix"),
        (b"3 1 2 x", "standard input: line 1, number 4: 'x' is not a number"),
        (b"2 1.5 0 0", "standard input: line 1: the file ends before number 2 of row 2 of matrix 1 of 1"),
        (b"\x93NUMPY", "standard input: byte 6: not a .npy header"),
    ],
)
def test_a_damaged_standard_input_is_an_error(capfd, standard_input, content, message):
    standard_input(content)
    assert run("-", "-") == 2
    out, err = capfd.readouterr()
    assert message in err
    assert "nan" not in out


@pytest.mark.parametrize("out", ["missing/l.npy", "folder.npy"])
def test_what_cannot_be_written_is_known_before_the_work(tmp_path, monkeypatch, capsys, out):
    (tmp_path / "folder.npy").mkdir()
    monkeypatch.setattr("batchchol.datasets.batch_files.read", lambda *_: pytest.fail("the work has begun"))
    assert run("a.npy", tmp_path / out) == 2
    assert f"{tmp_path / out}: writing: " in capsys.readouterr().err


def test_a_batch_system_that_ends_it_finds_nothing_left(tmp_path, monkeypatch):
    def ended(*_, **__):
        os.kill(os.getpid(), signal.SIGTERM)
        pytest.fail("the signal was not noticed")

    monkeypatch.setattr("batchchol.cli.library.factor.cholesky_ex", ended)
    save(tmp_path / "a.npy", wishart("float64"))
    before = signal.getsignal(signal.SIGTERM)
    assert run(tmp_path / "a.npy", tmp_path / "l.npy") == 143
    assert os.listdir(tmp_path) == ["a.npy"]
    assert signal.getsignal(signal.SIGTERM) == before
