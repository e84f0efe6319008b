"""Times of one matrix on one block of a GPU's threads, in each order of evaluation, beside cuSOLVER.

python -m tests.times.single --out datasets/larger/single_lookings_h200.csv
"""

from __future__ import annotations

import argparse
import csv
from itertools import product
from pathlib import Path

from batchchol.backends import get_backend
from batchchol.compare.single_matrix import CUSOLVER, PANEL, sample_single
from batchchol.measure.provenance import about
from kernelgen.emit.families.single import TILES
from kernelgen.schedules.axes import LOOKINGS
from kernelgen.targets import ELEMENT_BYTES

COLUMNS = ("n", "way", "looking", "nb", "dtype", "math", "us", "spread", "ratio", "gpu", "commit", "date")


def main() -> None:
    """Measure what is asked for, a line at a time."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=20)
    parser.add_argument("--orders", type=int, nargs="+", default=[128, 256, 512, 1024])
    parser.add_argument("--dtype", choices=ELEMENT_BYTES, default="float32")
    arguments = parser.parse_args()
    where = about(get_backend("cuda"))
    ways = [*((way, *how) for how in product(LOOKINGS, TILES[::-1]) for way in (PANEL, "shared")), (CUSOLVER, "", 0)]
    with arguments.out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for n, (way, looking, nb) in product(arguments.orders, ways):
            # The older form takes long with small tiles.
            if way == "shared" and n > 128 and nb < max(TILES):
                continue
            chosen = {"looking": looking, "nb": nb} if looking else {}
            found = sample_single(n, way, dtype=arguments.dtype, samples=arguments.samples, **chosen)
            numbers = (f"{each:.5g}" for each in (found.median * 1e6, found.spread, found.ratio))
            said = (where.get("gpu", ""), where["commit"], where["date"])
            writer.writerow((n, way, looking, nb or "", arguments.dtype, "ieee", *numbers, *said))
            file.flush()


if __name__ == "__main__":
    main()
