"""The peers: each gets the same matrices right, and Intel MKL's compact routine is an oracle for ours."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from importlib.metadata import PackageNotFoundError

import numpy as np
import pytest

from batchchol.api import factor
from batchchol.batches.batch import Batch
from batchchol.compare.contenders import Contender, Outcome, Workload, verify
from batchchol.compare.peers import PEERS, find, mkl, torch_linalg
from batchchol.compare.peers.base import blas_limit
from batchchol.datasets import generation
from batchchol.errors import BatchcholError, ResidualError

Run = Callable[..., subprocess.CompletedProcess[str]]
DTYPES = ("float32", "float64")


def found(name: str) -> None:
    """Skip where a peer's library is absent."""
    survey = PEERS[name].survey()
    if not survey.found:
        pytest.skip(f"{survey.detail}: {survey.hint}")


def workload(n: int, batch: int, dtype: str = "float32") -> Workload:
    return Workload(generation.generate("wishart", n=n, stop=batch, dtype=dtype), cold=False)


def run_once(contender: Contender) -> Outcome:
    with contender.limit():
        if contender.restore is not None:
            contender.restore()
        return contender.run(contender.sets - 1)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [1, 5, 17])
@pytest.mark.parametrize("name", PEERS)
def test_every_peer_factors_a_ragged_batch(name: str, n: int, dtype: str, threads: int) -> None:
    found(name)
    data = workload(n, 101, dtype)
    before = data.dense.copy()
    contender = PEERS[name].contender(data, threads)
    outcome = run_once(contender)
    assert verify(contender, outcome, data.dense) <= 1.5
    assert (outcome.factors.n, outcome.factors.batch) == (n, 101)
    assert outcome.seconds > 0
    assert (data.dense == before).all()


@pytest.mark.parametrize("name", PEERS)
def test_peers_that_work_in_place_can_be_repeated(name: str) -> None:
    found(name)
    data = workload(6, 40)
    contender = PEERS[name].contender(data, 1)
    first = run_once(contender).factors.to_dense()
    assert (run_once(contender).factors.to_dense() == first).all()


@pytest.mark.parametrize("name", PEERS)
def test_a_peer_says_the_same_version_before_and_while_it_is_timed(name: str) -> None:
    found(name)
    assert PEERS[name].contender(workload(2, 8), 1).version == PEERS[name].survey().detail


@pytest.mark.parametrize("name", ["scipy", "torch", "mkl"])
def test_info_of_a_failing_matrix_reaches_the_check(name: str) -> None:
    found(name)
    data = workload(4, 20)
    data.dense[13, 2, 2] = -1
    outcome = run_once(PEERS[name].contender(data, 1))
    assert outcome.info[13] == 3
    assert not np.delete(outcome.info, 13).any()


def test_a_wrong_result_is_refused_by_name() -> None:
    data = workload(4, 20)
    contender = PEERS["numpy"].contender(data, 1)
    outcome = run_once(contender)
    outcome.factors.data[7, 2, 1] *= 1 + 1e-3
    with pytest.raises(ResidualError, match=r"numpy \(numpy\.linalg\.cholesky.*matrix 7"):
        verify(contender, outcome, data.dense)


def test_cold_workloads_exceed_the_cache_and_hot_ones_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batchchol.compare.contenders.last_level_cache_bytes", lambda: 10_000)
    dense = generation.generate("wishart", n=5, stop=10)
    cold, hot = Workload(dense), Workload(dense, cold=False)
    assert 2 * sum(array.nbytes for array in cold.inputs) >= 40_000
    assert len({array.ctypes.data for array in cold.inputs}) == cold.sets(2 * dense.nbytes) == 20
    assert all((array == dense).all() for array in cold.inputs)
    assert len(hot.inputs) == 1


def test_unknown_peers_are_refused_with_the_known_ones() -> None:
    assert [peer.name for peer in find(["torch", "numpy"])] == ["torch", "numpy"]
    assert [peer.name for peer in find()] == list(PEERS)
    with pytest.raises(BatchcholError, match="'numby', expected some of numpy, scipy"):
        find(["numby"])


def test_an_absent_pytorch_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(torch_linalg, "version", absent)
    survey = torch_linalg.PEER.survey()
    assert not survey.found
    assert "pip install torch" in survey.hint


def test_an_absent_mkl_is_named_with_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mkl, "_library", lambda: None)
    for peer in (mkl.COMPACT, mkl.STRIDED):
        assert not peer.survey().found
        assert "pip install mkl" in peer.survey().hint
    with pytest.raises(ImportError, match="pip install mkl"):
        mkl.compact_format()


def test_blas_threads_are_left_alone_without_threadpoolctl(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    assert isinstance(blas_limit(1), nullcontext)


def test_importing_the_peers_loads_none_of_the_optional_ones(run_python: Run) -> None:
    script = (
        "import sys, batchchol.compare.peers\n"
        "print([name for name in ('torch', 'threadpoolctl') if name in sys.modules])"
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
    a = Batch.from_dense(workload(n, batch, dtype).dense, layout)
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
