"""Text files of matrices: what is written is read back, and what is damaged is refused by its line."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchchol.datasets import generation, text_files
from batchchol.datasets.text_files import read_slices, read_text, write_text
from batchchol.errors import DataFileError

from .test_files import DTYPES, TEXT, batches, same, shared_folder


@shared_folder
@given(a=batches())
def test_text_gives_back_the_bits(tmp_path, a):
    path = tmp_path / "a.txt"
    write_text(path, a)
    assert same(read_text(path, dtype=a.dtype.name), a)
    # float64 is the default because it holds the numbers of either.
    with np.errstate(over="ignore"):
        assert same(read_text(path).astype(a.dtype), a)


def test_text_is_the_row_major_format(tmp_path):
    path = tmp_path / "a.txt"
    write_text(path, np.array([[[1, 2], [2, 5]], [[3, 0.5], [0.5, 4]]], dtype="float32"))
    assert path.read_text() == TEXT


MATRIX = [[[4, 1, 0.5], [1, 5, 2], [0.5, 2, 6]]]


@pytest.mark.parametrize(
    "text",
    [
        "3\n4 1 0.5\n1 5 2\n0.5 2 6\n",
        "3 4 1 0.5 1 5 2 0.5 2 6",
        "\n\n3\n4\n1\n0.5\n1\n5\n2\n0.5\n2\n6\n\n",
        "3\r\n4 1\r\n0.5 1 5\r\n\r\n2 0.5 2 6",
        "3\r4 1 .5\r1 5 2\r.5 2 6",
        "1 3 4 1 0.5 1 5 2 0.5 2 6",
        "1\n3\n4 1 0.5 1\n5 2 0.5 2\n6",
    ],
)
def test_text_of_one_matrix_and_of_a_batch_may_have_any_line_breaks(tmp_path, monkeypatch, text):
    path = tmp_path / "a.txt"
    path.write_text(text, newline="")
    for block in (1 << 20, 16, 5, 4):
        monkeypatch.setattr(text_files, "_BLOCK_BYTES", block)
        assert read_text(path).tolist() == MATRIX
    assert read_slices(path).single == text.split()[0].startswith("3")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1 0", (1, 0, 0)),
        ("1 1", [[[1.0]]]),
        ("1\n7\n", [[[7.0]]]),
        ("1 1 9", [[[9.0]]]),
        ("2 1 9 8", [[[9.0]], [[8.0]]]),
        ("2\n1\n0\n0\n1\n", [[[1.0, 0.0], [0.0, 1.0]]]),
        ("2 1e0 0 0 1", [[[1.0, 0.0], [0.0, 1.0]]]),
        ("0 5", (0, 5, 5)),
        ("5 0", (5, 0, 0)),
    ],
)
def test_how_many_numbers_follow_says_what_a_text_is(tmp_path, text, expected):
    path = tmp_path / "a.txt"
    path.write_text(text)
    read = read_text(path)
    assert (read.shape if isinstance(expected, tuple) else read.tolist()) == expected


def test_a_single_matrix_is_written_as_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("2 4 1 1 3")
    write_text(path, read_slices(path).astype("float32"))
    assert path.read_text() == "2\n4 1\n1 3\n"


def test_words_across_blocks_have_their_place(tmp_path, monkeypatch):
    path = tmp_path / "a.txt"
    path.write_text("2\n2\n1 2 2 5\n3 0.5 0.5 x\n")
    for block in range(1, 30):
        monkeypatch.setattr(text_files, "_BLOCK_BYTES", max(4, block))
        with pytest.raises(DataFileError, match="line 4, number 4: 'x' is not a number"):
            read_text(path)


def test_text_may_have_other_blanks(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"  2 \r\n2\r\n 1\t2 \r\n2   5\r\n3 5e-1\r\n.5 +4\r\n\r\n  \n")
    assert read_text(path).tolist() == [[[1, 2], [2, 5]], [[3, 0.5], [0.5, 4]]]


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", "line 1", "expected the number of matrices"),
        ("two\n2\n", "line 1", "'two', expected the number of matrices"),
        ("-1\n2\n", "line 1", "'-1', expected"),
        pytest.param("9" * 5000 + "\n2\n", "line 1", "9...', expected", id="many digits"),
        ("2.0\n2\n", "line 1", "'2.0', expected"),
        ("2", "line 1", "'', expected n"),
        ("2\nx\n", "line 2", "'x', expected n"),
        ("900000000000\n100\n1 2\n", "line 1", "do not fit in the file's 21 bytes"),
        ("99999999\n1.5\n", "line 1", "1 matrices of order 99999999 do not fit in the file's 13 bytes"),
        ("0\n99999999999999999\n", "line 1", "0 matrices of order 99999999999999999, expected at most"),
        ("99999999999999999\n0\n", "line 1", "99999999999999999 matrices of order 0, expected at most"),
        ("0", "line 1", "'', expected n"),
        (
            TEXT.replace("2\n2\n", "3\n2\n", 1),
            "line 7",
            "the file ends before number 1 of row 1 of matrix 3 of 3",
        ),
        (TEXT.replace("2\n2\n", "1\n2\n", 1), "line 5", "text follows the last of 1 matrices"),
        (TEXT + "7\n", "line 7", "text follows the last of 2 matrices: line 7 has 1 numbers, where rows have 2"),
        (TEXT[:-6] + "0.50004\n", "line 7", "number 2 of row 2 of matrix 2 of 2: line 6 has 1 numbers"),
        (TEXT.replace("2 5", "2 5 6"), "line 6", "2 matrices: line 4 has 3 numbers, where rows have 2"),
        (TEXT.replace("2 5", "2"), "line 7", "number 2 of row 2 of matrix 2 of 2: line 4 has 1 numbers"),
        (TEXT.replace("2 5", "     "), "line 7", "the file ends before number 1 of row 2 of matrix 2 of 2"),
        ("2 2 1 2 3\n5 6 7\n", "line 3", "the file ends before number 1 of row 2 of matrix 2 of 2"),
        ("2 1.5 3\n2\n", "line 3", "the file ends before number 2 of row 2 of matrix 1 of 1"),
        ("2 1.5 3\n2 4 5\n", "line 2", "text follows the last of 1 matrices"),
        ("1" * (1 << 21), "line 1", "...', expected the number of matrices"),
        (TEXT + "9" * (1 << 21), "line 7", "text follows the last of 2 matrices"),
        (TEXT.replace("2 5", "2 " + "5" * (1 << 21)), "line 4, number 2", "...' is not a number"),
        (TEXT.replace("2 5", "2 five"), "line 4, number 2", "'five' is not a number"),
        (TEXT.replace("2 5", "1_0 5"), "line 4, number 1", "'1_0' is not a number"),
        (TEXT.replace("2 5", "0x2 5"), "line 4, number 1", "'0x2' is not a number"),
        (TEXT.replace("2 5", "2 1e400"), "line 4, number 2", "'1e400' does not fit in float64"),
        (TEXT.replace("2 5", "2 \xff"), "line 4, number 2", r"'\\xc3\\xbf' is not a number"),
        (TEXT.replace("2 5", "2 " + "9x" * 50), "line 4, number 2", "...' is not a number"),
    ],
)
def test_damaged_text_names_the_line(tmp_path, text, place, reason):
    path = tmp_path / "damaged.txt"
    path.write_bytes(text.encode())
    with pytest.raises(DataFileError) as caught:
        read_text(path)
    assert (caught.value.path, caught.value.place) == (path, place)
    assert reason in caught.value.reason
    assert str(caught.value).startswith(f"{path}: {place}: ")


def test_text_too_large_for_float32_is_refused_there_only(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1\n1\n1e300\n")
    assert read_text(path)[0, 0, 0] == 1e300
    with pytest.raises(DataFileError, match="line 3, number 1: '1e300' does not fit in float32"):
        read_text(path, dtype="float32")


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_number_beside_an_infinity_is_read(tmp_path, dtype):
    """With 9 digits it is more than it is."""
    a = np.array([[[np.inf]], [[np.finfo(dtype).max]], [[np.finfo(dtype).min]]], dtype)
    write_text(tmp_path / "a.txt", a)
    assert np.array_equal(read_text(tmp_path / "a.txt", dtype), a)


def test_infinities_and_nan_are_numbers(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("1\n2\ninf -Infinity\nnan -NaN\n")
    assert np.array_equal(read_text(path), [[[np.inf, -np.inf], [np.nan, np.nan]]], equal_nan=True)


@given(keep=st.integers(0, 10**4))
@shared_folder
def test_text_cut_anywhere_is_an_error_or_a_shorter_last_number(tmp_path, keep):
    a = generation.generate("wishart", n=3, stop=4)
    path = tmp_path / "cut.txt"
    write_text(path, a)
    whole = path.read_bytes()
    keep %= len(whole)
    path.write_bytes(whole[:keep])
    try:
        read = read_text(path, "float32")
    except DataFileError:
        return
    # Only the digits of the very last number can go missing without a trace.
    assert whole[:keep].split()[:-1] == whole.split()[:-1]
    assert np.array_equal(read.ravel()[:-1], a.ravel()[:-1])


def test_sample_is_what_its_readme_says():
    folder = Path(__file__).parents[3] / "datasets"
    if not folder.exists():
        pytest.skip("datasets/ is not part of an installed package")
    sample = read_text(folder / "sample_n4.txt", "float32")
    assert np.array_equal(sample, generation.generate("diagonally_dominant", n=4, stop=16))
