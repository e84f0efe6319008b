"""The libraries that batchchol is measured against, all optional but NumPy and SciPy."""

from __future__ import annotations

from collections.abc import Iterable

from batchchol.compare.peers import mkl, numpy_linalg, scipy_linalg, torch_linalg
from batchchol.compare.peers.base import Peer
from batchchol.errors import BatchcholError

__all__ = ["PEERS", "Peer", "find"]

PEERS: dict[str, Peer] = {
    peer.name: peer for peer in (numpy_linalg.PEER, scipy_linalg.PEER, torch_linalg.PEER, mkl.STRIDED, mkl.COMPACT)
}


def find(names: Iterable[str] | None = None) -> list[Peer]:
    """The peers of these names, in this order; all of them for None.

    Raises
    ------
    BatchcholError
        If a name is unknown; says which are known.
    """
    chosen = list(PEERS if names is None else names)
    if unknown := [name for name in chosen if name not in PEERS]:
        raise BatchcholError(f"peers: got {', '.join(map(repr, unknown))}, expected some of {', '.join(PEERS)}")
    return [PEERS[name] for name in chosen]
