"""A command of the command line in a process of its own, to be interrupted while something in it hangs.

``python -m interrupted BENCH COMPILED COMMAND ...``: BENCH is one of `sweep_benches`; with COMPILED
every kernel of a CPU counts as compiled, and - compiles them.
"""

from __future__ import annotations

import os
import runpy
import sys

LOG = "SWEEP_TEST_LOG"
"""The variable that names a pipe: what begins and does not end says its process's number there."""


def begun(*_: object) -> None:
    """Tell the test that something has begun, and never end."""
    with open(os.environ[LOG], "a") as stream:
        stream.write(f"{os.getpid()} task\n")
    import time

    time.sleep(1000)


def main() -> None:
    bench, compiled, *command = sys.argv[1:]
    from batchchol.batches import host_memory

    # Before it is imported by others: what exceeds a real cache takes its time.
    host_memory.last_level_cache_bytes = lambda: 1 << 17
    from batchchol.artifacts.cuda_modules import Outcome
    from batchchol.measure import process
    from batchchol.tune import compile

    process.BENCH = f"sweep_benches:{bench}"
    if compiled != "-":
        built = Outcome("a kernel", "built")
        compile._outcomes = lambda points, *_: dict.fromkeys(points, built)
    sys.argv = ["batchchol", *command]
    runpy.run_module("batchchol", run_name="__main__")


if __name__ == "__main__":
    main()
