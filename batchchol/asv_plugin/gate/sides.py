"""The two commits: their packages in folders of their own, and a process that imports them from there."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from batchchol.asv_plugin.checkout import GUARD, PACKAGES, checkout_first
from batchchol.asv_plugin.gate.worker import Worker
from batchchol.errors import BatchcholError
from batchchol.files import make_folder

_LINES = Path(__file__).with_name("lines.py")
_SIDE = "benchmarks.harness.side:Side"


def resolve(folder: Path, commit: str) -> str:
    """The hash of a commit.

    Raises
    ------
    BatchcholError
        If the folder's repository has no such commit.
    """
    found = _git(folder, "rev-parse", "--verify", "--quiet", f"{commit}^{{commit}}", fails=f"no commit {commit!r}")
    return found.decode().strip()


def export(folder: Path, commit: str, into: Path) -> Path:
    """The packages of a commit, in a folder of their own; what is there already is used."""
    place = into / commit
    if place.exists():
        return place
    make_folder(into)
    packed = _git(folder, "archive", commit, "--", *PACKAGES, fails=f"{commit[:8]} has no {' and '.join(PACKAGES)}")
    # In one step: another gate may do the same, and this one be killed.
    with TemporaryDirectory(dir=into) as unpacked, tarfile.open(fileobj=BytesIO(packed)) as archive:
        # Releases of Python 3.11 before 3.11.4 have no filters; the archive is git's own.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(Path(unpacked, commit))
        try:
            Path(unpacked, commit).rename(place)
        except OSError:
            if not place.exists():
                raise
    return place


def start(suite: Path, checkout: Path, cache: Path, **options: Any) -> Worker:
    """A process of a commit's that has begun, by the suite of the folder `suite`.

    `options` are profile, backend, arch and bench. Compiled kernels are kept in `cache`.

    Raises
    ------
    BatchcholError
        If the commit cannot be imported, or its library not be used here.
    """
    environment = checkout_first({**os.environ, "BATCHCHOL_CACHE": str(cache)}, checkout)
    environment |= {"PYTHONPATH": os.pathsep.join((environment["PYTHONPATH"], str(suite)))}
    command = [sys.executable, "-P", str(GUARD), str(checkout), ",".join(PACKAGES), str(_LINES), _SIDE]
    side = Worker(command, checkout, environment)
    try:
        side.ask("start", **options)
    except BatchcholError as error:
        side.close()
        raise BatchcholError(f"commit {checkout.name[:8]} cannot be measured: {error}") from error
    except BaseException:
        side.close()
        raise
    return side


def start_pair(suite: Path, backend: str) -> Worker:
    """A process that runs both commits' kernels, by the library of the folder `suite`."""
    path = os.pathsep.join(filter(None, (str(suite), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, "-P", str(_LINES), "batchchol.asv_plugin.gate.pair:Pair"]
    pair = Worker(command, suite, {**os.environ, "PYTHONPATH": path})
    try:
        pair.ask("start", backend=backend)
    except BaseException:
        pair.close()
        raise
    return pair


class Ahead:
    """Starts processes ahead: one that waits disturbs no GPU, and a start takes seconds of a host's core."""

    def __init__(self, start: Callable[[], Worker], ahead: int = 4) -> None:
        self._start, self._pool = start, ThreadPoolExecutor(ahead)
        self._begun = deque(self._pool.submit(start) for _ in range(ahead))

    def __enter__(self) -> Callable[[], Worker]:
        return self

    def __call__(self) -> Worker:
        """The process that was begun first; another is begun."""
        # Until it has begun, `__exit__` ends it.
        begun = self._begun[0].result()
        self._begun.popleft()
        self._begun.append(self._pool.submit(self._start))
        return begun

    def __exit__(self, *_: object) -> None:
        with self._pool:
            for begun in self._begun:
                with suppress(BatchcholError, OSError):
                    begun.result().close()


def _git(folder: Path, *arguments: str, fails: str) -> bytes:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        done = subprocess.run(
            ("git", "-C", str(folder), *arguments), env=environment, capture_output=True, check=False
        )
    except FileNotFoundError as error:
        raise BatchcholError("the gate compares commits, and there is no git on the PATH: apt install git") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip()
        raise BatchcholError(f"{folder}: {fails}{f' ({said})' if said else ''}")
    return done.stdout
