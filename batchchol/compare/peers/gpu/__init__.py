"""The libraries that batchchol is measured against on a GPU, all optional."""

from __future__ import annotations

from collections.abc import Iterable

from batchchol.compare.peers.gpu.base import DevicePeer
from batchchol.compare.peers.gpu.cusolver import PEER as CUSOLVER
from batchchol.compare.peers.gpu.cusolverdx import EARLY_PEER as CUSOLVERDX_PDL
from batchchol.compare.peers.gpu.cusolverdx import PEER as CUSOLVERDX
from batchchol.compare.peers.gpu.jax_lax import PEER as JAX
from batchchol.compare.peers.gpu.magma import PEER as MAGMA
from batchchol.compare.peers.gpu.torch_cuda import PEER as TORCH
from batchchol.errors import BatchcholError

__all__ = ["DEVICE_PEERS", "DevicePeer", "find"]

DEVICE_PEERS: dict[str, DevicePeer] = {
    peer.name: peer for peer in (CUSOLVER, TORCH, JAX, CUSOLVERDX, CUSOLVERDX_PDL, MAGMA)
}


def find(names: Iterable[str] | None = None) -> list[DevicePeer]:
    """The peers of these names, in this order; all of them for None.

    Raises
    ------
    BatchcholError
        If a name is unknown; says which are known.
    """
    chosen = list(DEVICE_PEERS if names is None else names)
    if unknown := [name for name in chosen if name not in DEVICE_PEERS]:
        known = ", ".join(DEVICE_PEERS)
        raise BatchcholError(f"peers: got {', '.join(map(repr, unknown))}, expected some of {known} on a GPU")
    return [DEVICE_PEERS[name] for name in chosen]
