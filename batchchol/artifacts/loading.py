"""Loading a shared object from bytes: what was verified is what runs, whatever happens to its file meanwhile."""

from __future__ import annotations

import ctypes
import hashlib
import os
from pathlib import Path

from batchchol.artifacts.scratch import scratch_folder


def load_library(data: bytes, name: str) -> ctypes.CDLL:
    """Load a shared object of these bytes; `name` is what debuggers and profilers call it.

    Raises
    ------
    OSError
        If the system's loader refuses it.
    """
    try:
        return _from_memory(data, name)
    except (OSError, AttributeError):
        # Some systems have no memory files, or allow no code in them; or it is the object that is bad.
        return _from_private_file(data, name)


def _from_memory(data: bytes, name: str) -> ctypes.CDLL:
    # A descriptor is needed until the object is mapped, no longer: there may be thousands of kernels.
    descriptor = os.memfd_create(name[:200], os.MFD_CLOEXEC)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(data)
        stream.flush()
        return ctypes.CDLL(f"/proc/self/fd/{_detour(data)}{descriptor}")


def _detour(data: bytes) -> str:
    """A way from a folder to itself that no other bytes have.

    The loader takes what has the same path for the same object, and descriptors are used again.
    """
    bits = int.from_bytes(hashlib.sha256(data).digest()[:8], "big")
    return "".join("./" if bits >> bit & 1 else "/" for bit in range(64))


def _from_private_file(data: bytes, name: str) -> ctypes.CDLL:
    with scratch_folder() as folder:
        path = Path(folder, f"{name[:200]}.so")
        path.write_bytes(data)
        return ctypes.CDLL(str(path))
