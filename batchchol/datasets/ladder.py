"""The ladder of batches as files: the first 1,024, 2,048, 4,096 … matrices of a data set, a file each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from batchchol.datasets.batch_files import watched
from batchchol.datasets.files import check_space, load, save
from batchchol.datasets.generation import SMALLEST_BATCH, check_slice, generate, stream
from batchchol.errors import DataFileError


@dataclass(frozen=True)
class Ladder:
    """A data set by name, order, seed and dtype, whose largest file has at most `most_bytes` of matrices."""

    name: str
    n: int
    most_bytes: int
    seed: int = 0
    dtype: str = "float32"
    parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def batches(self) -> list[int]:
        """The powers of two from 1,024 up; empty if even those take more bytes."""
        check_slice(self.n, 0, 0, self.seed, self.dtype)
        largest = self.most_bytes // self.nbytes(1)
        return [1 << power for power in range(SMALLEST_BATCH.bit_length() - 1, largest.bit_length())]

    def nbytes(self, batch: int) -> int:
        """Bytes of that many matrices."""
        return batch * self.n**2 * np.dtype(self.dtype).itemsize

    def path(self, folder: Path, batch: int) -> Path:
        """The file of a batch."""
        return folder / f"{self.name}_n{self.n}_{self.dtype}_seed{self.seed}_{batch}.npy"

    def write(self, folder: Path) -> Iterator[tuple[Path, bool]]:
        """Write the files that are missing, the smallest first; each with whether it was there already.

        Raises
        ------
        DataFileError
            If a file cannot be written, there is no room for all of them, or one that is there is another batch.
        """
        paths = {batch: self.path(folder, batch) for batch in self.batches}
        missing = [batch for batch, path in paths.items() if not path.exists()]
        check_space(folder / "all of them", sum(map(self.nbytes, missing)))
        for batch, path in paths.items():
            if batch in missing:
                slices = stream(self.name, n=self.n, stop=batch, seed=self.seed, dtype=self.dtype, **self.parameters)
                save(path, watched(slices, "written"))
            else:
                self._check(path, batch)
            yield path, batch not in missing

    def _check(self, path: Path, batch: int) -> None:
        """Refuse a file that does not have the number, the order, and the last of this batch's matrices."""
        last: dict[str, Any] = {"start": batch - 1, "stop": batch, "seed": self.seed, "dtype": self.dtype}
        found, expected = load(path), generate(self.name, n=self.n, **last, **self.parameters)
        same = found.shape == (batch, self.n, self.n) and np.array_equal(found[-1:], expected, equal_nan=True)
        if not same:
            raise DataFileError(path, "matrices", "another batch than this: remove the file, or name another folder")
