"""PyTorch on the CPU: `torch.linalg.cholesky_ex`, one call for the whole batch, into memory that it is given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from batchchol.backends import Availability
from batchchol.compare.contenders import Contender, Outcome, Workload, canonical, touched
from batchchol.compare.peers.base import Peer
from kernelgen import Layout


def contender(workload: Workload, threads: int) -> Contender:
    """Tensors over the workload's own arrays; the factors column by column, as PyTorch itself lays them out."""
    torch: Any = import_module("torch")
    inputs = [torch.from_numpy(array) for array in workload.inputs]
    results = [touched(workload.dense.shape, workload.dtype, "PyTorch's factors") for _ in inputs]
    factors = [torch.from_numpy(array).mT for array in results]
    info = torch.zeros(workload.batch, dtype=torch.int32)

    def run(index: int) -> Outcome:
        start = time.perf_counter()
        torch.linalg.cholesky_ex(inputs[index], out=(factors[index], info))
        seconds = time.perf_counter() - start
        return Outcome(seconds, canonical(results[index], "col"), info.numpy())

    return Contender(
        PEER.name,
        f"torch {torch.__version__}",
        "torch.linalg.cholesky_ex",
        Layout.canonical("col"),
        len(inputs),
        run,
        limit=lambda: _torch_threads(torch, threads),
    )


@contextmanager
def _torch_threads(torch: Any, threads: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _survey() -> Availability:
    try:
        return Availability("torch", True, f"torch {version('torch')}")
    except PackageNotFoundError:
        return Availability("torch", False, "PyTorch is not installed", "pip install torch")


PEER = Peer("torch", _survey, contender)
