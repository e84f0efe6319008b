"""Times of one matrix on one block of a GPU's threads, in each order of evaluation, beside cuSOLVER.

python -m tests.times.single --out datasets/single_lookings_h200.csv
"""

from __future__ import annotations

import argparse
import csv
from itertools import product
from pathlib import Path

from batchchol.backends import get_backend
from batchchol.compare.single_matrix import CUSOLVER, sample_single
from batchchol.measure.provenance import about
from kernelgen.schedules.axes import LOOKINGS

COLUMNS = ("n", "way", "looking", "nb", "dtype", "math", "us", "spread", "ratio", "gpu", "commit", "date")


def main() -> None:
    """Measure what is asked for, a line at a time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=20)
    arguments = parser.parse_args()
    where = about(get_backend("cuda"))
    ways = [("shared", looking, nb) for looking, nb in product(LOOKINGS, (8, 16, 32))] + [(CUSOLVER, "", 0)]
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for n, (way, looking, nb) in product((128, 256, 512, 1024), ways):
            chosen = {"looking": looking, "nb": nb} if looking else {}
            found = sample_single(n, way, samples=arguments.samples, **chosen)  # type: ignore[arg-type]
            numbers = (f"{each:.5g}" for each in (found.median * 1e6, found.spread, found.ratio))
            said = (where.get("gpu", ""), where["commit"], where["date"])
            writer.writerow((n, way, looking, nb or "", "float32", "ieee", *numbers, *said))
            file.flush()


if __name__ == "__main__":
    main()
