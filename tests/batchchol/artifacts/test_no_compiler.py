"""Without a C compiler: the same answers from LAPACK, and one warning that says what is lost."""

from __future__ import annotations

import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from batchchol import (
    Batch,
    Layout,
    NoCompilerWarning,
    backends,
    cholesky,
    cholesky_ex,
    default_spec,
    factor,
    get_backend,
)
from batchchol.artifacts import no_compiler
from batchchol.batches import packing
from batchchol.defaults import lookup
from batchchol.errors import BackendUnavailable, CompilerNotFound

Array = NDArray[np.floating]
Spd = Callable[..., Array]
Run = Callable[..., subprocess.CompletedProcess[str]]

N = 6
LAYOUTS = [Layout.canonical(), Layout.canonical("col"), Layout.interleaved(), Layout.chunked(16), Layout.chunked(3)]


def forget() -> None:
    # Kernels that calls have kept need no compiler any more.
    lookup.forget()
    backends._make.cache_clear()
    packing._loaded.cache_clear()


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A process that has met no compiler, and will meet none."""
    for variable in ("BATCHCHOL_CC", "CC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(no_compiler, "_FIRST", Lock())
    forget()
    yield
    forget()


@pytest.fixture
def warned(bare: None) -> None:
    """The same, once it has been said."""
    no_compiler._FIRST.acquire()


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 17, 128])
def test_arrays(spd: Spd, n: int, dtype: str, upper: bool) -> None:
    a = spd(2, 9, n, dtype=dtype)
    l = cholesky(a, upper=upper)
    reference = np.linalg.cholesky(a.astype(np.float64), upper=upper)
    np.testing.assert_allclose(l, reference, rtol=0, atol=4 * n * np.finfo(dtype).eps * reference.max())
    a[1, 3, n // 2, n // 2] = -1
    l, info = cholesky_ex(a, upper=upper, math="fast")
    assert info.shape == (2, 9)
    assert info[1, 3] == n // 2 + 1
    assert np.count_nonzero(info) == 1


@pytest.mark.usefixtures("warned")
@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("place", ["new", "out", "in place"])
def test_batches(spd: Spd, layout: Layout, place: str) -> None:
    dense = spd(37, N)
    dense[20, 3, 3] = -1
    batch = Batch.from_dense(dense, layout)
    np.testing.assert_array_equal(batch.to_dense(), dense)
    np.testing.assert_array_equal(batch.get(5, 30), dense[5:30])
    out = {"new": None, "out": Batch.empty(N, 37, layout), "in place": batch}[place]
    l, info = factor(batch, out=out, threads=2)
    assert out is None or l.data is out.data
    assert (l.triangle, l.layout, info.dtype) == ("lower", layout, np.int32)
    np.testing.assert_array_equal(info, [4 * (m == 20) for m in range(37)])
    good = info == 0
    np.testing.assert_allclose(l.to_dense()[good], np.linalg.cholesky(dense[good]), rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(l.to_dense(), np.tril(l.to_dense()))
    if place != "in place":
        np.testing.assert_array_equal(batch.to_dense(), dense)


@pytest.mark.usefixtures("warned")
def test_batches_in_slices(spd: Spd, monkeypatch: pytest.MonkeyPatch) -> None:
    from batchchol.backends import lapack

    monkeypatch.setattr(lapack, "_SLICE_BYTES", 1)
    monkeypatch.setattr(packing, "_SLICE_BYTES", 1000)
    dense = spd(1100, 3)
    dense[1050, 1, 1] = -1
    l, info = factor(Batch.from_dense(dense, Layout.chunked(16)))
    np.testing.assert_array_equal(np.flatnonzero(info), [1050])
    np.testing.assert_allclose(l.to_dense()[:1050], np.linalg.cholesky(dense[:1050]), rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("warned")
def test_what_is_wrong_with_a_call_is_refused_as_ever(spd: Spd) -> None:
    batch = Batch.from_dense(spd(9, N))
    refused: list[tuple[dict[str, Any], str]] = [
        ({"threads": 0}, "threads: got 0"),
        ({"math": "junk"}, "math: got 'junk'"),
        ({"stream": 3}, "stream: got 3, expected None"),
        ({"out": Batch.empty(N, 8)}, "out: got 8 ×"),
        ({"backend": "cuda"}, "backend: got 'cuda', expected 'cpu'"),
    ]
    for arguments, words in refused:
        with pytest.raises(ValueError, match=f"^{words}"):
            factor(batch, **arguments)
    with pytest.raises(ValueError, match="batch: got one whose upper triangle alone"):
        factor(batch.marked("upper"))
    out = Batch.empty(N, 9)
    out.data.flags.writeable = False
    with pytest.raises(ValueError, match="out: its array is read-only"):
        factor(batch, out=out)
    assert len(factor(Batch.empty(N, 0)).info) == 0


@pytest.mark.usefixtures("warned")
def test_what_takes_a_kernel_says_how_to_get_a_compiler(spd: Spd) -> None:
    spec = default_spec(N, layout="canonical", order="row")
    words = "backend 'cpu' cannot be used: no usable C compiler .*apt install gcc"
    for call in (
        lambda: cholesky(spd(3, N), spec=spec),
        lambda: factor(Batch.from_dense(spd(3, N)), default_spec(N)),
        lambda: get_backend("cpu"),
    ):
        with pytest.raises(BackendUnavailable, match=words) as caught:
            call()
        assert isinstance(caught.value, CompilerNotFound)


def test_kernels_that_are_loaded_go_on_when_the_compiler_is_gone(spd: Spd, request: pytest.FixtureRequest) -> None:
    a = spd(40, N)
    batch = Batch.from_dense(a, Layout.canonical())
    expected = cholesky(a), factor(batch).L.to_dense()
    backend = get_backend("cpu")
    request.getfixturevalue("bare")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backends, "_make", lambda *_: backend)
        np.testing.assert_array_equal(cholesky(a), expected[0])
        np.testing.assert_array_equal(factor(batch).L.to_dense(), expected[1])
        # One that was never built is LAPACK's.
        with pytest.warns(NoCompilerWarning):
            assert not cholesky_ex(spd(3, 77)).info.any()


def test_the_variable_that_names_no_compiler_is_named(spd: Spd, bare: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCHCHOL_CC", "/no/such/cc")
    with pytest.warns(NoCompilerWarning, match="BATCHCHOL_CC=/no/such/cc is not an executable"):
        cholesky(spd(3, N))


@pytest.mark.parametrize("call", [cholesky, Batch.from_dense], ids=["cholesky", "from_dense"])
def test_one_warning_that_says_what_is_lost(spd: Spd, bare: None, call: Callable[[Array], object]) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call(spd(16, N))
        cholesky(spd(16, 5))
        factor(Batch.from_dense(spd(16, N)))
    (only,) = caught
    assert only.category is NoCompilerWarning
    assert only.filename == __file__, "the line that called the library"
    for words in ("no usable C compiler", "apt install gcc", "LAPACK", "slower", "cache"):
        assert words in str(only.message)


def test_a_warning_that_is_an_error_is_one_each_time(spd: Spd, bare: None) -> None:
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(NoCompilerWarning):
                cholesky(spd(3, N))


def test_a_process_without_a_compiler(run_python: Run) -> None:
    script = """
import numpy, batchchol
for n in (3, 3, 129):
    print(batchchol.cholesky(4 * numpy.eye(n)).sum())
"""
    done = run_python("-c", script, PATH="", BATCHCHOL_CC=None, CC=None)
    assert (done.returncode, done.stdout) == (0, "6.0\n6.0\n258.0\n"), done.stderr
    assert done.stderr.count("NoCompilerWarning") == 1
    assert done.stderr.startswith("<string>:4: NoCompilerWarning: backend 'cpu' cannot be used: no usable C compiler")


def test_a_compiler_without_the_headers_of_the_c_library(run_python: Run, tmp_path: Path) -> None:
    """As after `apt install --no-install-recommends gcc`."""
    gcc = tmp_path / "gcc"
    gcc.write_text('#!/bin/sh\nexec cc -nostdinc "$@"\n')
    gcc.chmod(0o755)
    script = "import numpy, batchchol; print(batchchol.cholesky(4 * numpy.eye(3)).sum())"
    own = {"BATCHCHOL_CC": gcc, "BATCHCHOL_CACHE": tmp_path / "cache"}
    done = run_python("-c", script, **own)
    assert (done.returncode, done.stdout) == (0, "6.0\n"), done.stderr
    for words in ("<string>:1: NoCompilerWarning: no usable C compiler", "stddef.h): install", "gcc libc6-dev"):
        assert words in done.stderr
    done = run_python("-m", "batchchol", "tune", "--n", "3", **own)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
