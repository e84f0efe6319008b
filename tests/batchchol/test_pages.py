"""The Python of pages about GPUs runs as pasted, after what the pages assume."""

from __future__ import annotations

import numpy as np
import pytest

import batchchol

from ..pages import run


@pytest.mark.usefixtures("fake_gpu")
def test_defaults(capsys: pytest.CaptureFixture[str]) -> None:
    names = run("defaults", {})
    assert capsys.readouterr().out.startswith(f"{names['choice'].spec.name}\ntable sm_90")


@pytest.mark.gpu
def test_launching(capsys: pytest.CaptureFixture[str]) -> None:
    gpu = batchchol.get_backend("cuda")
    batches = [gpu.from_dense(np.tile(np.eye(n, dtype=np.float32), (100, 1, 1))) for n in (4, 16)]
    names = run("launching", {"batchchol": batchchol, "batches": batches})
    assert float(capsys.readouterr().out) <= 1.5
    assert all(not info.get().any() for _, info in names["results"])


@pytest.mark.gpu
def test_small_batches() -> None:
    torch = pytest.importorskip("torch")
    gpu = batchchol.get_backend("cuda")
    arrays = [np.tile(np.eye(n, dtype=np.float32), (100, 1, 1)) for n in (4, 16)]
    batch = gpu.from_dense(arrays[1])
    spec = batchchol.default_spec(
        16, target="cuda", chunk=batch.layout.chunk, arch=gpu.architecture, batch=100, device=gpu.model
    )
    assumed = {"arrays": arrays, "stream_of_arrays": [arrays], "batch": batch, "out": batch.copy(), "spec": spec}
    names = run("small-batches", {**assumed, "torch": torch})
    assert all(not info.get().any() for _, info in names["results"])
    assert min(names["host"]) > 0
