"""The fuzzer of a GPU's solves: a kernel passes, and what depends on a matrix's place is found."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from batchchol.backends import Backend
from kernelgen import Layout

from ....fuzz import solve_kernels


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches of few matrices, each there twice at most."""
    monkeypatch.setattr(solve_kernels, "ELEMENTS", 1)
    monkeypatch.setattr(solve_kernels, "COPIES", 2)
    monkeypatch.setattr(solve_kernels, "SIZES", (131_072,))


def test_a_kernel_passes(cuda: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(solve_kernels, "LAYOUTS", (Layout.chunked(2),))
    chosen = ["--op", "potrfdet", "--orders", "3", "--kernels", "1"]
    assert solve_kernels.main([*chosen, "--matrices", "1", "--case", "0"]) == 0
    said = capsys.readouterr().out
    assert "matrices, 1 cases, " in said
    assert "largest errors over their bounds: cholesky_logdet 0." in said


def test_a_result_that_depends_on_the_place_is_reported(
    cuda: Backend, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    host = cuda.host

    def wrong(array: Any) -> Any:
        found = np.array(host(array))
        if found.dtype == np.int32:
            found[-1] += 1
        return found

    monkeypatch.setattr(type(cuda), "host", staticmethod(wrong))
    monkeypatch.setattr(solve_kernels, "LAYOUTS", (Layout.canonical(),))
    assert solve_kernels.main(["--op", "logdet", "--orders", "3", "--kernels", "1", "--case", "2"]) == 1
    said = capsys.readouterr().out
    assert "FAILED: logdet, n = 3" in said
    assert "python -m tests.fuzz.solve_kernels --op logdet --orders 3 --kernels 1 --seed 0 --case 2" in said
