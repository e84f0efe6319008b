"""Kill processes while they compile, start many with an empty cache at once, and look for what should not be left.

After each kill, no record of the cache may name a payload that is not whole. In the end, the next process must be
right, and no temporary folder and no compiler of the killed ones may be left. Processes that begin at once must all
be right.

    python tests/fuzz/cache_kills.py --kills 50 --processes 16
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

# Children are forked, and the threads of NumPy's BLAS would not be in them.
os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

import batchchol
from batchchol.artifacts.cache import ArtifactCache

SECONDS = 300.0


class Wrong(Exception):
    """What was found."""


def factor(n: int) -> None:
    """Factor matrices of one order on the CPU; the result must be right."""
    r = np.random.default_rng(n).random((5, n, n))
    a = (r + r.swapaxes(1, 2)) / 2 + n * np.eye(n)
    if not np.allclose(batchchol.cholesky(a, backend="cpu"), np.linalg.cholesky(a), rtol=1e-12, atol=0):
        raise Wrong(f"a wrong factor of order {n}")


def start(work: Callable[[], None]) -> int:
    """Start a child that works and ends with status 0, or says what went wrong."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        work()
        status = 0
    except BaseException as error:
        print(f"process {os.getpid()}: {error!r}", file=sys.stderr, flush=True)
    finally:
        os._exit(status)


def status_of(child: int) -> int:
    """The exit status of a child; negative if a signal ended it."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def check_right(children: Sequence[int], what: str) -> None:
    """All children must end with status 0."""
    failed = sum(status_of(child) != 0 for child in children)
    if failed:
        raise Wrong(f"{failed} of {len(children)} processes {what} failed")


def check_entries() -> int:
    """Every record must be that of a whole payload; how many there are."""
    cache = ArtifactCache()
    keys = cache.stored_keys()
    if damaged := [key for key in keys if cache.get(key) is None]:
        raise Wrong(f"damaged entries: {damaged}")
    return len(keys)


def running_in(folder: Path) -> list[int]:
    """The processes whose working folder is below one."""
    found = []
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if Path(os.readlink(f"/proc/{number}/cwd")).is_relative_to(folder):
                found.append(int(number))
        except OSError:
            continue
    return found


def check_swept(temporary: Path) -> None:
    """Neither folders nor compilers may be left."""
    if left := sorted(path.name for path in temporary.iterdir()):
        raise Wrong(f"temporary folders that nothing sweeps: {left}")
    deadline = time.monotonic() + SECONDS
    while running_in(temporary):
        if time.monotonic() > deadline:
            raise Wrong("compilers of killed processes still run")
        time.sleep(0.01)


def age(temporary: Path) -> None:
    """Make all folders old: one whose process was killed just before it locked it is swept after a while only."""
    for folder in temporary.iterdir():
        os.utime(folder, (0, 0))


def compile_anew(compiler: str, turn: int) -> None:
    """Have nothing that was compiled so far be found: what a compiler is called with is part of the key."""
    os.environ["BATCHCHOL_CC"] = f"{compiler} -DTURN={turn}"


def kill_while_compiling(kills: int, compiler: str, temporary: Path, moments: random.Random) -> str:
    """Kill one process after the other at random moments of what takes a whole one so long."""
    compile_anew(compiler, 0)
    begin = time.perf_counter()
    check_right([start(lambda: factor(2))], "that nobody killed")
    seconds = time.perf_counter() - begin
    killed = 0
    for turn in range(1, kills + 1):
        compile_anew(compiler, turn)
        child = start(lambda: factor(2))
        time.sleep(moments.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        killed += status_of(child) == -signal.SIGKILL
        check_entries()
    age(temporary)
    # Of a new key: that it compiles is what sweeps.
    compile_anew(compiler, kills + 1)
    check_right([start(lambda: factor(2))], "after the kills")
    check_swept(temporary)
    return f"{killed} of {kills} killed before they were done, {check_entries()} entries are whole, nothing is left"


def start_at_once(processes: int, temporary: Path) -> str:
    """Start many with an empty cache: they compile the same kernel at the same time."""
    shutil.rmtree(os.environ["BATCHCHOL_CACHE"])
    check_right([start(lambda: factor(2)) for _ in range(processes)], "with an empty cache")
    check_swept(temporary)
    entries = check_entries()
    if entries != 1:
        raise Wrong(f"{entries} entries of one kernel")
    if left := list(ArtifactCache().folder.glob(".partial-*")):
        raise Wrong(f"partial files: {left}")
    return f"{processes} cold processes at once were right, and left one entry"


def main(argv: Sequence[str] | None = None) -> int:
    """0 if nothing was found, 1 if something was."""
    parser = argparse.ArgumentParser(description="kill processes while they compile; start many at once")
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    arguments = parser.parse_args(argv)
    compiler = os.environ.get("BATCHCHOL_CC", "cc")
    with tempfile.TemporaryDirectory(prefix="batchchol-fuzz-") as name:
        temporary = Path(name).resolve() / "temporary"
        temporary.mkdir()
        tempfile.tempdir = str(temporary)
        os.environ |= {"BATCHCHOL_CACHE": f"{name}/cache", "BATCHCHOL_TABLES": "shipped", "BATCHCHOL_THREADS": "1"}
        try:
            moments = random.Random(arguments.seed)
            print(kill_while_compiling(arguments.kills, compiler, temporary, moments), flush=True)
            print(start_at_once(arguments.processes, temporary), flush=True)
        except Wrong as error:
            print(f"cache_kills: {error} (--seed {arguments.seed})", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
