"""Commits that are slower on purpose: what a gate must find.

    python -m tests.gate.planted FOLDER {kernel,call} PERCENT [--backend cuda --profile quick --bench REGEX]

commits, in the clone FOLDER, a library whose kernels or whose `cholesky` take that much longer, and prints the
commit's hash; the branch that is checked out there moves to it. Each call of a CPU's kernel waits for that part of
its own time. With `--backend cuda` the kernels of a profile's cases are slower, on a GPU that must be there: see
`tests.gate.planted_gpu`.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from tests.gate import planted_gpu

_CPU = Path("kernelgen", "templates", "simd", "thread.c.jinja")
_API = Path("batchchol", "api", "__init__.py")

_SPENT = """#include <time.h>
static double spent(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

"""

_SLOWER_CALL = """

_unhurried = cholesky


def cholesky(*args, **options):
    from time import perf_counter

    begin = perf_counter()
    result = _unhurried(*args, **options)
    end = perf_counter()
    until = end + {part} * (end - begin)
    while perf_counter() < until:
        pass
    return result
"""


def slower_kernels(folder: Path, part: float) -> None:
    """Have the kernels of SIMD targets take that part of their time in addition."""
    path = folder / _CPU
    text = _replaced(
        path.read_text(), "/* Factors groups first, ..., last - 1", _SPENT + "/* Factors groups first, ..., last - 1"
    )
    text = _replaced(
        text,
        "#ifdef FLUSH_DENORMALS\n    const unsigned",
        "    const double begin = spent();\n#ifdef FLUSH_DENORMALS\n    const unsigned",
    )
    waited = (
        f"    const double until = spent() + {part} * (spent() - begin);\n    while (spent() < until)\n        ;\n"
    )
    path.write_text(_replaced(text, "    return status;\n", waited + "    return status;\n"))


def slower_calls(folder: Path, part: float) -> None:
    """Have `cholesky` take that part of its time in addition."""
    path = folder / _API
    path.write_text(path.read_text() + _SLOWER_CALL.format(part=part))


def _replaced(text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise ValueError(f"expected one {old!r}, got {text.count(old)}: the template has changed, change this too")
    return text.replace(old, new)


def main() -> None:
    """Plant, commit, and print the commit's hash."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("where", choices=("kernel", "call"))
    parser.add_argument("percent", type=float)
    parser.add_argument("--backend", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--bench", default="")
    arguments = parser.parse_args()
    folder, part = arguments.folder, arguments.percent / 100
    if arguments.where == "call":
        slower_calls(folder, part)
    elif arguments.backend == "cpu":
        slower_kernels(folder, part)
    else:
        planted_gpu.slower_kernels(folder, planted_gpu.pauses(part, arguments.profile, arguments.bench))
    git = ("git", "-C", str(arguments.folder), "-c", "user.name=batchchol", "-c", "user.email=batchchol@localhost")
    subprocess.run((*git, "commit", "-qam", f"Plant {arguments.percent:g}% in every {arguments.where}"), check=True)
    subprocess.run((*git, "rev-parse", "HEAD"), check=True)


if __name__ == "__main__":
    main()
