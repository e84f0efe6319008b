"""Commits that are slower on purpose: what is planted in GPU kernels waits as long as it says, and harms nothing."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernelgen import generate

from ..emulation.kernels import EmulatedKernel
from ..kernel_runs import make_spec, run_kernel
from ..matrices import dominant
from .planted_gpu import paused, slower_kernels

N = 8
# The emulation's clock ticks in microseconds, and its threads wait one after the other.
PAUSE = 500
LONG, SHORT = 40, 33
SPECS = {
    "thread": make_spec(N, 4, target="cuda", threads=32),
    "thread, early": make_spec(N, 4, target="cuda", threads=32, pdl=True),
    "warp, early": make_spec(N, family="warp", matrices=4, target="cuda", pdl=True),
    "block": make_spec(N, 4, family="block", lanes=4, target="cuda"),
    "strip, early": make_spec(32, family="strip", warps=4, ahead=1, stride=4, target="cuda", pdl=True),
}


@pytest.mark.parametrize("name", SPECS)
def test_a_planted_kernel_waits_before_its_work(name: str) -> None:
    spec = SPECS[name]
    source = generate(spec)
    text = paused(source.text, source.entry, 1, {LONG: PAUSE, SHORT: 0})
    ready = "wait_for_predecessors();\n    if (blockIdx.x < 1)" in text
    assert ready == name.endswith("early")
    kernel = EmulatedKernel.of(spec, replace(source, text=f"#include <time.h>\n{text}"))
    assert source.launch is not None
    for batch, least in ((LONG, PAUSE * 1e-6 * source.launch.threads), (SHORT, 0.0)):
        a = dominant(batch, spec.problem.n).astype(spec.problem.dtype)
        begin = time.perf_counter()
        done = run_kernel(spec, a, getattr(spec.schedule, "stride", None), kernel=kernel)
        assert time.perf_counter() - begin >= least
        np.testing.assert_allclose(np.tril(done.l), np.linalg.cholesky(a), rtol=1e-5, atol=1e-6)


def test_a_planted_commit_generates_what_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = SPECS["thread, early"], SPECS["block"]
    planted, other = (generate(spec) for spec in plain)
    emit = tmp_path / "kernelgen" / "emit" / "__init__.py"
    emit.parent.mkdir(parents=True)
    emit.write_text(Path(sys.modules["kernelgen.emit"].__file__ or "").read_text())
    slower_kernels(tmp_path, {planted.entry: (132, {16_384: 150, 1_024: 30})})
    made: dict[str, object] = {}
    exec(compile(emit.read_text(), str(emit), "exec"), made)
    slower = made["generate"]
    assert callable(slower)
    assert slower(plain[1]) == other
    text = slower(plain[0]).text
    assert text == paused(planted.text, planted.entry, 132, {16_384: 150, 1_024: 30})
    assert "pause = batch == 16384 ? 150u : 30u" in text
