"""Batches on disk: the same bits back, errors that name the place, and nothing half-written."""

import errno
import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from batchchol.datasets import files, generation, text_files
from batchchol.datasets.files import Slices, load, save
from batchchol.datasets.text_files import read_slices, read_text, write_text
from batchchol.errors import DataFileError

DTYPES = ("float32", "float64")


TEXT = "2\n2\n1 2\n2 5\n3 0.5\n0.5 4\n"


shared_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@st.composite
def batches(draw):
    dtype = draw(st.sampled_from(DTYPES))
    n = draw(st.integers(0, 4))
    return draw(arrays.arrays(dtype, (draw(st.integers(0, 5)), n, n)))


def same(one, other):
    """Equal to the bit, but for the bits of a NaN."""
    numbers = ~np.isnan(one)
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and np.array_equal(numbers, ~np.isnan(other))
        and one[numbers].tobytes() == other[numbers].tobytes()
    )


@shared_folder
@given(a=batches())
def test_npy_gives_back_the_bits(tmp_path, a):
    path = tmp_path / "a.npy"
    save(path, a)
    assert same(np.load(path, allow_pickle=False), a)
    loaded = load(path)
    assert same(np.asarray(loaded), a)
    assert loaded.size == 0 or isinstance(loaded, np.memmap)


@pytest.mark.parametrize("slice_bytes", [1, 200, 10**9])
def test_files_are_written_and_read_in_slices(tmp_path, monkeypatch, slice_bytes):
    for module in (files, text_files):
        monkeypatch.setattr(module, "slice_length", lambda n, dtype: max(1, slice_bytes // (n * n * 4)))
    whole = generation.generate("wishart", n=3, start=5, stop=105)
    sliced = lambda: generation.stream("wishart", n=3, start=5, stop=105, slice_bytes=slice_bytes)  # noqa: E731
    save(tmp_path / "a.npy", sliced())
    write_text(tmp_path / "a.txt", sliced())
    assert np.array_equal(load(tmp_path / "a.npy"), whole)
    parts = list(read_slices(tmp_path / "a.txt", "float32"))
    assert len(parts) == -(-100 // max(1, slice_bytes // 36))
    assert np.array_equal(np.concatenate([dense for _, dense in parts]), whole)


def test_load_touches_nothing_it_is_not_asked_for(tmp_path):
    path = tmp_path / "sparse.npy"
    save(path, np.zeros((1, 100, 100), "float32"))
    header = path.read_bytes()[:-40000]
    with path.open("wb") as file:
        batch = 10**7  # 400 GB
        file.write(header.replace(b"(1, 100, 100)", f"({batch}, 100, 100)".encode()).replace(b" " * 7 + b"\n", b"\n"))
        file.truncate(file.tell() + batch * 40000)
    assert load(path).shape == (batch, 100, 100)
    assert not load(path)[batch - 1].any()


def test_load_takes_numpys_own_files(tmp_path):
    path = tmp_path / "fortran.npy"
    a = np.asfortranarray(generation.generate("wishart", n=3, stop=4))
    np.save(path, a)
    assert np.array_equal(load(path), a)
    with path.open("wb") as file:
        np.lib.format.write_array(file, a, version=(2, 0))
    assert np.array_equal(load(path), a)


@pytest.mark.parametrize("reader", [load, read_text])
def test_a_file_that_cannot_be_opened(tmp_path, reader):
    with pytest.raises(DataFileError, match=r"missing: opening: No such file"):
        reader(tmp_path / "missing")
    with pytest.raises(DataFileError, match=r"opening: Is a directory"):
        reader(tmp_path)


def npy(tmp_path, a):
    path = tmp_path / "a.npy"
    np.save(path, a)
    return path


@pytest.mark.parametrize(
    ("a", "reason"),
    [
        (np.zeros((2, 3)), "shape (2, 3), expected (batch, n, n)"),
        (np.zeros((2, 3, 4)), "shape (2, 3, 4)"),
        (np.zeros((2, 3, 3), "int64"), "dtype int64, expected float32 or float64"),
        (np.zeros((2, 3, 3), "float16"), "dtype float16"),
        (np.array([[[None]]]), "dtype object"),
    ],
)
def test_npy_of_something_else_is_refused(tmp_path, a, reason):
    with pytest.raises(DataFileError) as caught:
        load(npy(tmp_path, a))
    assert caught.value.place == "header"
    assert reason in caught.value.reason


def test_npy_cut_anywhere_is_refused(tmp_path):
    path = npy(tmp_path, np.ones((2, 2, 2), "float32"))
    whole = path.read_bytes()
    for keep in range(len(whole)):
        path.write_bytes(whole[:keep])
        with pytest.raises(DataFileError) as caught:
            load(path)
        assert caught.value.place == f"byte {keep}"
    path.write_bytes(whole[:-1])
    with pytest.raises(
        DataFileError, match=f"byte {len(whole) - 1}: the file is truncated: .* expected {len(whole)}"
    ):
        load(path)
    path.write_bytes(whole + b"x")
    with pytest.raises(DataFileError, match=f"byte {len(whole)}: data follow the last matrix"):
        load(path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\x93NUMPY", b"NUMPY\x93"),
        (b"\x01\x00", b"\x03\x00"),
        (b"\x01\x00", b"\x09\x00"),
        (b"(2, 2, 2)", b"(2, 2, ("),
        (b"'shape'", b"'shave'"),
        (b"(2, 2, 2)", b"(-2,2,2)"),
        (b"(2, 2, 2), }   ", b"(True, 1, 1), }"),
        (b"\x01\x00v\x00", b"\x02\x00\xff\xff\xff\xff"),
    ],
)
def test_npy_with_a_damaged_header_is_refused(tmp_path, old, new):
    path = npy(tmp_path, np.ones((2, 2, 2), "float32"))
    whole = path.read_bytes()
    assert old in whole
    path.write_bytes(whole.replace(old, new, 1))
    with pytest.raises(DataFileError) as caught:
        load(path)
    assert caught.value.place.startswith(("byte", "header"))


@pytest.mark.parametrize(
    "shape",
    [
        (0, 10**30, 10**30),
        (10**30, 0, 0),
        (0, 2**40, 2**40),
        (2**40, 0, 0),
        (2**62, 2, 2),
        (True, 1, 1),
        (0, False, False),
    ],
)
def test_npy_of_a_hostile_shape_is_refused(tmp_path, shape):
    path = tmp_path / "a.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.write(bytes(4 if shape[0] is True else 0))
    with pytest.raises(DataFileError):
        load(path)


@pytest.mark.parametrize("writer", [save, write_text])
def test_a_failure_on_the_way_leaves_the_old_file_alone(tmp_path, writer):
    path = tmp_path / "kept"
    path.write_text("precious")

    def broken():
        yield 0, np.zeros((1, 2, 2), "float32")
        raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        writer(path, Slices(2, 2, "float32", broken()))
    assert path.read_text() == "precious"
    assert os.listdir(tmp_path) == ["kept"]


@pytest.mark.parametrize("writer", [save, write_text])
@pytest.mark.parametrize(
    ("starts", "shape", "dtype", "message"),
    [
        ([0], (1, 2, 2), "float32", "got 1 matrices, expected 2"),
        ([0, 1, 2], (1, 2, 2), "float32", "got 3 matrices, expected 2"),
        ([0, 2], (1, 2, 2), "float32", "expected .1, "),
        ([0, 0], (1, 2, 2), "float32", "expected .1, "),
        ([0, 1], (1, 3, 3), "float32", "expected .0, .2, 2., 'float32'"),
        ([0, 1], (1, 2, 2), "float64", "got .*'float64'"),
    ],
)
def test_slices_that_are_not_their_batch_are_refused(tmp_path, writer, starts, shape, dtype, message):
    parts = [(start, np.zeros(shape, dtype)) for start in starts]
    with pytest.raises(ValueError, match=message):
        writer(tmp_path / "a", Slices(2, 2, "float32", parts))
    assert os.listdir(tmp_path) == []


def test_a_full_disk_is_reported_and_cleaned_up(tmp_path, monkeypatch):
    def full(_descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DataFileError, match="writing: No space left on device"):
        save(tmp_path / "a.npy", np.zeros((1, 2, 2)))
    assert os.listdir(tmp_path) == []


def test_a_missing_folder_is_reported(tmp_path):
    with pytest.raises(DataFileError, match="writing: there is no folder"):
        write_text(tmp_path / "nowhere" / "a.txt", np.zeros((1, 2, 2)))


def test_new_files_have_ordinary_permissions(tmp_path):
    (tmp_path / "ordinary").touch()
    save(tmp_path / "a.npy", np.zeros((1, 2, 2)))
    assert (tmp_path / "a.npy").stat().st_mode == (tmp_path / "ordinary").stat().st_mode


@pytest.mark.parametrize(
    ("a", "message"),
    [
        (np.zeros((2, 2)), r"a: got shape \(2, 2\), expected \(batch, n, n\)"),
        (np.zeros((1, 2, 3)), r"a: got shape \(1, 2, 3\)"),
        (np.zeros((1, 2, 2), "int32"), "a: got dtype int32, expected float32 or float64"),
    ],
)
def test_only_batches_are_written(tmp_path, a, message):
    for writer in (save, write_text):
        with pytest.raises(ValueError, match=message):
            writer(tmp_path / "a", a)
    assert os.listdir(tmp_path) == []


def test_read_slices_refuses_other_dtypes(tmp_path):
    (tmp_path / "a.txt").write_text(TEXT)
    with pytest.raises(ValueError, match="dtype: got 'int8'"):
        read_slices(tmp_path / "a.txt", "int8")


def test_slices_in_another_precision():
    a = generation.generate("wishart", n=3, stop=50, dtype="float64") / 3
    ((start, dense),) = Slices.of(a).astype("float32")
    assert start == 0
    assert np.array_equal(dense, a.astype("float32"))
    a[7, 2, 1] = 1e300
    with pytest.raises(ValueError, match=r"matrix 7: 1e\+300 at row 2 does not fit in float32"):
        list(Slices.of(a).astype("float32"))


@pytest.mark.parametrize(("writer", "needed"), [(save, 8 * 2**60), (write_text, 2 * 2**60)])
def test_a_batch_for_which_there_is_no_room_is_refused_before_it_is_made(tmp_path, writer, needed):
    def made():
        pytest.fail("the disk was not looked at first")
        yield

    (tmp_path / "a").write_text("precious")
    with pytest.raises(DataFileError, match=rf"needs {needed:,} bytes and [\d,]+ bytes are free") as caught:
        writer(tmp_path / "a", Slices(2**40, 2**10, "float64", made()))
    assert caught.value.place == "writing"
    assert (os.listdir(tmp_path), (tmp_path / "a").read_text()) == (["a"], "precious")


@pytest.mark.parametrize("writer", [save, write_text])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left"), OSError(errno.EIO, "I/O"), KeyboardInterrupt()]
)
def test_what_ends_a_write_leaves_nothing(tmp_path, writer, error):
    def broken():
        yield 0, np.zeros((1, 2, 2), "float32")
        raise error

    with pytest.raises(DataFileError if isinstance(error, OSError) else KeyboardInterrupt):
        writer(tmp_path / "a", Slices(2, 2, "float32", broken()))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("writer", [save, write_text])
def test_a_device_is_written_to(tmp_path, writer):
    # It has no room to be asked for.
    writer("/dev/null", np.zeros((3, 2, 2)))
    (tmp_path / "a").symlink_to("/dev/null")
    writer(tmp_path / "a", np.zeros((3, 2, 2)))
    assert (tmp_path / "a").is_char_device()
    with pytest.raises(DataFileError, match="No space left"):
        writer("/dev/full", np.zeros((3, 2, 2)))


@pytest.mark.parametrize("reader", [load, read_text])
def test_pipes_and_devices_are_not_files(tmp_path, reader):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", "/dev/zero"):
        with pytest.raises(DataFileError, match=r"opening: a (pipe|device), expected a file"):
            reader(path)


@pytest.mark.parametrize(("writer", "reader"), [(save, load), (write_text, read_text)])
def test_files_that_are_open_are_read(tmp_path, writer, reader):
    writer(tmp_path / "a", np.eye(3)[None])
    with (tmp_path / "a").open("rb") as file:
        assert np.array_equal(reader(file), np.eye(3)[None])
        file.read()
        assert np.array_equal(reader(file), np.eye(3)[None])
    (tmp_path / "a").write_bytes(b"x")
    with (tmp_path / "a").open("rb") as file, pytest.raises(DataFileError, match=r"^standard input: "):
        reader(file)
