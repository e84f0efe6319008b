"""Where a number comes from: what goes beside every stored measurement."""

from __future__ import annotations

import hashlib
import subprocess
from contextlib import suppress
from datetime import date
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import batchchol
from batchchol.backends import Backend

_DEVICE_FIELDS = ("gpu", "driver", "toolkit", "cpu", "compiler")


def about(backend: Backend) -> dict[str, str]:
    """The machine, the software on it, the commit and the date."""
    device = backend.device()
    machine = {name: str(device[name]) for name in _DEVICE_FIELDS if name in device}
    return machine | {"version": batchchol.__version__, "commit": commit(), "date": date.today().isoformat()}


def installed(distribution: str) -> str | None:
    """The version of a package, None if it is not installed."""
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@cache
def commit() -> str:
    """The commit that this package was imported from, "-dirty" if it was changed since; "" outside a checkout."""
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return ""
    command = ["git", "-C", str(folder), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    return ""


def source_hash(text: str) -> str:
    """The first 16 hexadecimal digits of a source text's SHA-256: enough to tell kernels apart."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]
