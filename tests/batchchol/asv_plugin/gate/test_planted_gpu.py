"""What a kernel takes, and how many of its blocks a GPU holds: what planted waits are made of."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

from batchchol.backends import Backend
from kernelgen import Layout

from ....gate.planted_gpu import measured
from ....kernel_runs import make_spec


def test_a_kernel_is_measured_as_the_gate_does(cuda: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu: Any = cuda
    monkeypatch.setattr(gpu, "conditions", lambda: {"gpu_clock_mhz": 1_980})
    spec = make_spec(8, 4, target="cuda", threads=32)
    described = {"spec": spec.to_dict(), "layout": asdict(Layout.chunked(32)), "batch": 64, "threads": 1, "nrhs": 1}
    seconds, megahertz, blocks = measured(described)
    assert seconds > 0
    assert megahertz == 1_980
    assert blocks > 0
    assert blocks % gpu.kernel(spec).gpu.multiprocessors == 0
