"""PyTorch on a GPU: `torch.linalg.cholesky_ex`, one call for the whole batch, into memory that it is given."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from importlib import import_module
from typing import Any

from batchchol.backends import Availability
from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.compare.gpu_contenders import Arena, DeviceContender, Result
from batchchol.compare.peers.gpu.base import DevicePeer
from kernelgen import Layout


def contenders(arena: Arena) -> Sequence[DeviceContender]:
    """Tensors over the arena's own arrays; the factors column by column, as PyTorch itself lays them out."""
    torch: Any = import_module("torch")
    inputs = [torch.as_tensor(arena.input(index), device="cuda") for index in range(arena.sets)]
    factors = [torch.as_tensor(arena.output(index), device="cuda").mT for index in range(arena.sets)]
    info = torch.zeros(arena.batch, dtype=torch.int32, device="cuda")
    device().synchronize()

    def call(index: int) -> None:
        torch.linalg.cholesky_ex(inputs[index], out=(factors[index], info))

    def result(index: int) -> Result:
        return arena.result(index, info=memory.as_gpuarray(info), order="col")

    calls = [partial(call, index) for index in range(arena.sets)]
    spec, layout = "torch.linalg.cholesky_ex, out given", Layout.canonical("col")
    return [DeviceContender(PEER.name, f"torch {torch.__version__}", spec, layout, arena.math, calls, result)]


def _survey() -> Availability:
    try:
        torch: Any = import_module("torch")
    except ImportError as error:
        return Availability("torch", False, f"PyTorch cannot be used ({error})", "pip install torch")
    if not torch.cuda.is_available():
        detail = f"torch {torch.__version__} finds no GPU"
        return Availability("torch", False, detail, "install a build of PyTorch for this driver's CUDA")
    if torch.cuda.current_stream().cuda_stream:
        return Availability("torch", False, "torch's current stream is not the default one", "leave it as it is")
    return Availability("torch", True, f"torch {torch.__version__}")


PEER = DevicePeer("torch", _survey, contenders)
