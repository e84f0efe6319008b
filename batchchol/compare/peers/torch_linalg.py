"""PyTorch: `torch.linalg.cholesky_ex`, one call for the whole batch, into memory that it is given."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import version
from typing import Any

from batchchol.backends.cuda import memory
from batchchol.backends.cuda.device import device
from batchchol.compare.contenders import Arena, Contender
from batchchol.compare.peers.base import Peer


def contenders(arena: Arena) -> list[Contender]:
    """Tensors over the arena's own arrays; the factors column by column, as PyTorch itself lays them out."""
    # Backends have the names that PyTorch has for devices.
    torch, place = import_module("torch"), arena.backend.name
    inputs = [torch.as_tensor(array, device=place) for array in arena.each(arena.input)]
    factors = [torch.as_tensor(array, device=place).mT for array in arena.each(arena.output)]
    info = torch.zeros(arena.batch, dtype=torch.int32, device=place)
    status = info.numpy() if place == "cpu" else memory.as_gpuarray(info)
    if place == "cuda":
        device().synchronize()

    def call(index: int) -> None:
        torch.linalg.cholesky_ex(inputs[index], out=(factors[index], info))

    spec = "torch.linalg.cholesky_ex" + ", out given" * (place == "cuda")
    return [Contender(spec, arena.calls(call), lambda index: arena.result(index, info=status, order="col"))]


@contextmanager
def _limit(threads: int) -> Iterator[None]:
    torch: Any = import_module("torch")
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _version_on_gpu() -> str:
    torch: Any = import_module("torch")
    if not torch.cuda.is_available():
        raise ImportError(f"torch {torch.__version__} finds no GPU: install a build of it for this driver's CUDA")
    if torch.cuda.current_stream().cuda_stream:
        raise ImportError("its current stream is not the default one: leave it as it is")
    return f"torch {torch.__version__}"


CPU = Peer(
    "torch",
    "cpu",
    lambda: f"torch {version('torch')}",
    contenders,
    limit=_limit,
    missing="PyTorch is not installed",
    hint="pip install torch",
)
GPU = Peer(
    "torch",
    "cuda",
    _version_on_gpu,
    contenders,
    missing="PyTorch cannot be used ({error})",
    hint="pip install torch",
)
