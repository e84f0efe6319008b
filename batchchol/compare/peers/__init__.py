"""The libraries that batchchol is measured against, all optional except NumPy and SciPy."""

from __future__ import annotations

from collections.abc import Iterable

from batchchol.compare.peers import (
    cublas,
    cusolver,
    cusolverdx,
    jax_lax,
    magma,
    mkl,
    numpy_linalg,
    scipy_linalg,
    torch_linalg,
)
from batchchol.compare.peers.base import Peer
from batchchol.errors import BatchcholError

__all__ = ["PEERS", "Peer", "find"]

_ALL = (
    numpy_linalg.PEER,
    scipy_linalg.PEER,
    torch_linalg.CPU,
    mkl.STRIDED,
    mkl.COMPACT,
    cublas.PEER,
    cusolver.PEER,
    torch_linalg.GPU,
    jax_lax.PEER,
    cusolverdx.PEER,
    cusolverdx.EARLY_PEER,
    magma.PEER,
)

PEERS: dict[str, dict[str, Peer]] = {
    backend: {peer.name: peer for peer in _ALL if peer.backend == backend} for backend in ("cpu", "cuda")
}
"""By backend and name."""


def find(backend: str, names: Iterable[str] | None = None) -> list[Peer]:
    """The peers of these names on a backend, in this order; all of them for None.

    Raises
    ------
    BatchcholError
        If a name is unknown; says which are known.
    """
    known = PEERS[backend]
    chosen = list(known if names is None else names)
    if unknown := [name for name in chosen if name not in known]:
        place = " on a GPU" * (backend == "cuda")
        raise BatchcholError(
            f"peers: got {', '.join(map(repr, unknown))}, expected some of {', '.join(known)}{place}"
        )
    return [known[name] for name in chosen]
