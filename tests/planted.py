"""Commits that are slower on purpose: what a gate must find.

    python -m tests.planted FOLDER {kernel,call} PERCENT

commits, in the clone FOLDER, a library whose kernels or whose `cholesky` take so much longer, and prints the commit's
hash; the branch that is checked out there moves to it. Kernels wait for that part of their own time: on a CPU each
call of one, on a GPU each thread (thread family).
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

_CPU = Path("kernelgen", "templates", "simd", "thread.c.jinja")
_GPU = Path("kernelgen", "templates", "thread", "thread.cu.jinja")
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
    """Have the kernels of SIMD targets and of the GPU's thread family take that part of their time in addition."""
    c, cuda = folder / _CPU, folder / _GPU
    text = _replaced(
        c.read_text(), "/* Factors groups first, ..., last - 1", _SPENT + "/* Factors groups first, ..., last - 1"
    )
    text = _replaced(
        text,
        "#ifdef FLUSH_DENORMALS\n    const unsigned",
        "    const double begin = spent();\n#ifdef FLUSH_DENORMALS\n    const unsigned",
    )
    waited = (
        f"    const double until = spent() + {part} * (spent() - begin);\n    while (spent() < until)\n        ;\n"
    )
    c.write_text(_replaced(text, "    return status;\n", waited + "    return status;\n"))
    text = cuda.read_text()
    waited = "{% if schedule.pdl %}\n    wait_for_predecessors();\n{% endif %}\n"
    text = _replaced(text, waited, waited + "    const long long begin = clock64();\n")
    idle = f"    const long long end = clock64();\n    while (clock64() - end < {part} * (end - begin))\n        ;\n"
    cuda.write_text(text.rstrip().removesuffix("}") + idle + "}\n")


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
    arguments = parser.parse_args()
    {"kernel": slower_kernels, "call": slower_calls}[arguments.where](arguments.folder, arguments.percent / 100)
    git = ("git", "-C", str(arguments.folder), "-c", "user.name=batchchol", "-c", "user.email=batchchol@localhost")
    subprocess.run((*git, "commit", "-qam", f"Plant {arguments.percent:g}% in every {arguments.where}"), check=True)
    subprocess.run((*git, "rev-parse", "HEAD"), check=True)


if __name__ == "__main__":
    main()
