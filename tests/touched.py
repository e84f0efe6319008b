"""Which files know an axis, a peer or an operation: what adding one touches, by examples that are in the tree.

    python -m tests.touched

A file knows one if it has its names. Tests, documents and measured data are not counted: every addition has those.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernelgen", "batchchol", "benchmarks")
SUFFIXES = (".py", ".jinja")

# The names that stand for each addition, and the most files that may know one.
EXAMPLES: Mapping[str, tuple[str, int]] = MappingProxyType(
    {
        "a tuning axis (fold, of the block family)": (
            # Stages of triangles have a fold too, which is something else.
            r"fold: int|\A(?!triangle)[\s\S]*\.fold\b",
            4,
        ),
        "a SIMD target (avx2)": (r"\bavx2\b", 3),
        "a peer (SciPy)": (r"\bscipy_linalg\b", 2),
        "an operation (potrs)": (
            r"\bpotrs\b|\bPOTRS\b|\b(cho|device|generate|sample)_solve\b|\bsolve_(batch|program|spec)\b|Solver\b|\Asolve",
            # Five of them are the comparison's: who takes part, and how each of the peers solves; one is the gate's.
            # Eight more are what posv, which factors and then solves in the same way, has in common with it; two are
            # its staged kernels'. Six are PyTorch's operators, and five the inverses', which speak of it. One is
            # tuning's, which times all operations but potrf alike. Three are those of `whole`, which also solves by
            # factors.
            52,
        ),
    }
)


def files_with(names: str) -> list[str]:
    """The files of the packages that have a pattern, by their paths in the checkout."""
    pattern = re.compile(names)
    found = (path for package in PACKAGES for path in sorted((ROOT / package).rglob("*")) if path.suffix in SUFFIXES)
    return [str(path.relative_to(ROOT)) for path in found if pattern.search(f"{path.name}\n{path.read_text()}")]


def main() -> None:
    """Print the files of each example."""
    for addition, (names, most) in EXAMPLES.items():
        files = files_with(names)
        print(f"{addition}: {len(files)} files, at most {most}")
        print("".join(f"  {file}\n" for file in files))


if __name__ == "__main__":
    main()
