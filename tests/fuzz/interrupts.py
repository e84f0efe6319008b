"""Interrupt calls again and again, at any moment, and look for what should not have happened.

Each round interrupts one call by an exception of a signal handler: no byte of the memory that the call gave back,
nor of any other array, may change after that; the call must end soon; and the next one must be right.

    python tests/fuzz/interrupts.py --interrupts 500 --threads 64
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

import batchchol

PATTERN = 0x5A5A5A5A5A5A5A5A


class Interrupted(Exception):
    """What the signal handler raises."""


def interrupted(number: int, frame: object) -> None:
    raise Interrupted


def calls(a: NDArray[np.float32]) -> dict[str, Callable[[], object]]:
    """What is interrupted: every way into the generated code, out of place and in place."""
    packed, b = batchchol.Batch.from_dense(a), np.ones((*a.shape[:2], 4), np.float32)
    result, scratch = packed.like(None), packed.like(None)
    return {
        "cholesky": lambda: batchchol.cholesky(a),
        "factor": lambda: batchchol.factor(packed, out=result),
        "from_dense": lambda: batchchol.Batch.from_dense(a),
        "to_dense": packed.to_dense,
        "in place": lambda: batchchol.factor(scratch.marked(None), out=scratch),
        "solve": lambda: batchchol.solve(a, b, jitter="auto"),
        "cho_solve": lambda: batchchol.cho_solve(packed, b),
        "inv": lambda: batchchol.inv(packed),
        "slogdet": lambda: batchchol.slogdet(a),
        "solve with both": lambda: batchchol.solve_ex(packed, b, jitter="auto", logdet=True),
        "inv with both": lambda: batchchol.inv_ex(packed, jitter="auto", logdet=True),
    }


def interrupt(call: Callable[[], object], after: float) -> float | None:
    """Seconds from the signal to the end of the call; None if it was faster than the signal."""
    try:
        sent = time.perf_counter() + after
        signal.setitimer(signal.ITIMER_REAL, after)
        call()
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return time.perf_counter() - sent
    return None


def canaries(nbytes: int) -> list[NDArray[np.uint64]]:
    """Arrays that get the memory which the interrupted call has given back."""
    return [np.full(nbytes // 8, PATTERN, np.uint64) for _ in range(3)]


def check_calm(arrays: Sequence[NDArray[np.uint64]], seconds: float = 0.05) -> None:
    """Fail if somebody writes to arrays that hold the pattern."""
    time.sleep(seconds)
    for array in arrays:
        if changed := int(np.count_nonzero(array != PATTERN)):
            raise SystemExit(f"{changed} numbers of another array were overwritten after an interrupt")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the rounds; the exit status is 0 if nothing was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--interrupts", type=int, default=500)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--batch", type=int, default=6_000)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(argv)
    os.environ["BATCHCHOL_THREADS"] = str(given.threads)
    signal.signal(signal.SIGALRM, interrupted)
    random = np.random.default_rng(given.seed)
    a = np.broadcast_to(np.float32(4) * np.eye(given.n, dtype=np.float32), (given.batch, given.n, given.n)).copy()
    expected, latencies = np.sqrt(a), []
    ways = calls(a)
    durations = {name: duration(call) for name, call in ways.items()}
    while len(latencies) < given.interrupts:
        name = str(random.choice(list(ways)))
        taken = interrupt(ways[name], max(1e-6, durations[name] * random.uniform(0, 1)))
        if taken is None:
            continue
        latencies.append(taken)
        check_calm(canaries(a.nbytes))
        print(f"\r{len(latencies)} of {given.interrupts} interrupts", end="", file=sys.stderr)
    if not np.array_equal(batchchol.cholesky(a), expected) or not np.array_equal(a, expected**2):
        raise SystemExit("a call after the interrupts gave a wrong result")
    if not np.array_equal(batchchol.solve(a, a), expected - expected / 2) or (batchchol.inv(a) != a / 16).any():
        raise SystemExit("a solve after the interrupts gave a wrong result")
    print(file=sys.stderr)
    print(
        f"{given.interrupts} interrupts under {given.threads} threads: no byte changed; calls ended within "
        f"{1e3 * np.median(latencies):.0f} ms (median), {1e3 * max(latencies):.0f} ms (longest)"
    )
    return 0


def duration(call: Callable[[], object]) -> float:
    """Seconds of a warm call."""
    call()
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


if __name__ == "__main__":
    sys.exit(main())
