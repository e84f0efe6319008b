"""The peers: each gets the same matrices right, and Intel MKL's compact routine is an oracle for ours."""

from __future__ import annotations

import subprocess
import weakref
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest

from batchchol.api import factor
from batchchol.backends import get_backend
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import Arena, Contender, Factored
from batchchol.compare.peers import PEERS as ALL_PEERS
from batchchol.compare.peers import find, mkl, torch_linalg
from batchchol.errors import BatchcholError, ResidualError

Run = Callable[..., subprocess.CompletedProcess[str]]
DTYPES = ("float32", "float64")
PEERS = ALL_PEERS["cpu"]


def found(name: str) -> None:
    """Skip where a peer's library is absent."""
    survey = PEERS[name].survey()
    if not survey.found:
        pytest.skip(f"{survey.detail}: {survey.hint}")


def arena_of(n: int, batch: int, dtype: str = "float32", threads: int = 1) -> Arena:
    return Arena(get_backend("cpu"), "wishart", n, batch, dtype, cold=False, threads=threads)


def contender_of(name: str, arena: Arena) -> Contender:
    (contender,) = PEERS[name].contenders(arena)
    return contender


def run_once(name: str, contender: Contender) -> Factored:
    with PEERS[name].limit(1):
        if contender.restore is not None:
            contender.restore()
        contender.calls[-1]()
    result = contender.result(len(contender.calls) - 1)
    assert isinstance(result, Factored)
    return result


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 5, 17])
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_factors_a_ragged_batch(name: str, n: int, dtype: str, threads: int) -> None:
    found(name)
    arena = arena_of(n, 101, dtype, threads)
    before = arena.input(0).copy()
    contender = contender_of(name, arena)
    result = run_once(name, contender)
    assert arena.verify(contender, 0) <= 1.5
    assert (result.l.n, result.l.batch) == (n, 101)
    assert (arena.input(0) == before).all()


@pytest.mark.parametrize("name", PEERS)
def test_peers_that_work_in_place_can_be_repeated(name: str) -> None:
    found(name)
    contender = contender_of(name, arena_of(6, 40))
    first = run_once(name, contender).l.to_dense()
    assert (run_once(name, contender).l.to_dense() == first).all()


@pytest.mark.parametrize("name", ["scipy", "torch", "mkl"])
def test_info_of_a_failing_matrix_reaches_the_check(name: str) -> None:
    found(name)
    arena = arena_of(4, 20)
    arena.input(0)[13, 2, 2] = -1
    contender = contender_of(name, arena)
    info = run_once(name, contender).info
    assert info[13] == 3
    assert not np.delete(info, 13).any()
    with pytest.raises(ResidualError, match="matrix 13 has info 3"):
        arena.verify(contender, 0)


def test_a_wrong_result_is_refused() -> None:
    arena = arena_of(4, 20)
    contender = contender_of("numpy", arena)
    run_once("numpy", contender).l.data[7, 2, 1] *= 1 + 1e-3
    with pytest.raises(ResidualError, match="matrix 7"):
        arena.verify(contender, 0)


def test_cold_arenas_exceed_the_cache_and_hot_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = get_backend("cpu")
    monkeypatch.setattr(type(backend), "last_level_cache_bytes", lambda self: 10_000)
    cold, hot = (Arena(backend, "wishart", 5, 10, "float32", cold=cold) for cold in (True, False))
    inputs = cold.each(cold.input)
    assert len(inputs) == cold.sets == 67
    assert sum(array.nbytes * 3 // 5 for array in inputs) >= 40_000, "of triangles alone"
    assert len({array.ctypes.data for array in [*inputs, *cold.each(cold.output)]}) == 134
    assert hot.sets == 1
    part = cold.changed(inputs=cold.inputs, batch=4, threads=2)
    assert (part.batch, part.sets, part.threads, cold.batch, cold.threads) == (4, 167, 2, 10, 1)
    assert part.inputs is cold.inputs


def test_what_a_call_returned_is_forgotten_before_the_next_one() -> None:
    contender = contender_of("numpy", arena_of(3, 7))
    contender.calls[0]()
    made = weakref.ref(contender.result(0).l.data)
    assert contender.forget is not None
    contender.forget()
    assert made() is None


def test_unknown_peers_are_refused_with_the_known_ones() -> None:
    assert [peer.name for peer in find("cpu", ["torch", "numpy"])] == ["torch", "numpy"]
    assert [peer.name for peer in find("cpu")] == list(PEERS)
    with pytest.raises(BatchcholError, match="'numby', expected some of numpy, scipy"):
        find("cpu", ["numby"])


def test_an_absent_pytorch_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(torch_linalg, "version", absent)
    survey = torch_linalg.CPU.survey()
    assert not survey.found
    assert "pip install torch" in survey.hint


def test_an_absent_mkl_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl, "_places", lambda: iter(()))
    mkl._library.cache_clear()
    for peer in (mkl.COMPACT, mkl.STRIDED):
        assert not peer.survey().found
        assert "pip install mkl" in peer.survey().hint
    with pytest.raises(ImportError, match="pip install mkl"):
        mkl.compact_format()


def test_importing_the_peers_loads_none_of_the_optional_ones(run_python: Run) -> None:
    script = (
        "import sys, batchchol.compare.peers\n"
        "print([name for name in ('torch', 'jax', 'cupy') if name in sys.modules])"
    )
    done = run_python("-c", script)
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("batch", [8, 67])
@pytest.mark.parametrize("n", [1, 2, 3, 7, 16, 33])
@pytest.mark.parametrize("compact_format", [181, 182])
def test_mkl_compact_agrees_on_the_same_bytes(compact_format: int, n: int, batch: int, dtype: str) -> None:
    found("mkl-compact")
    layout = mkl.compact_layout(compact_format, dtype)
    a = Batch.from_dense(arena_of(n, batch, dtype).input(0), layout)
    theirs = Batch(a.data.copy(), n, batch, layout)
    mkl.factor_compact(theirs, compact_format, threads=2)
    ours = factor(a, threads=2).L
    # Elements (chunk, column, row, member): the lower triangle only, padding included. It is a factor of identities.
    columns, rows = np.triu_indices(n)
    largest = float(np.abs(theirs.data).max())
    tolerance = 40 * n * float(np.finfo(dtype).eps)
    np.testing.assert_allclose(
        ours.data[:, columns, rows], theirs.data[:, columns, rows], rtol=tolerance, atol=tolerance * largest
    )
