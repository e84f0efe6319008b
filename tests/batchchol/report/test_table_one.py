"""Table I of the 2017 study, by its own measure."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

pd = pytest.importorskip("pandas", reason="the extra 'report' is not installed")
pytest.importorskip("sklearn", reason="the extra 'report' is not installed")

from batchchol.report.table_one import STUDY, increases, table  # noqa: E402


def test_what_decides_ranks_before_what_does_not() -> None:
    random = np.random.default_rng(1)
    numbers = random.random((400, 3))
    found = increases(numbers, 10 * numbers[:, 0] + numbers[:, 1] + 0.1 * random.random(400), 60)
    assert found[0] > found[1] > 2 * abs(found[2])


def test_the_table_has_the_parameters_that_vary_in_the_order_of_the_study() -> None:
    grid = product(("chunked", "interleaved"), range(1, 9), ("right", "left", "top"), ("full", "tiles"), (8, 16, 32))
    rows = pd.DataFrame(grid, columns=["layout", "nb", "looking", "unroll", "n"])
    rows["chunk"] = rows["layout"].map({"chunked": 64.0, "interleaved": np.nan})
    rows["cache"] = "l1"
    rows["gflops"] = rows["n"] * (2.0 - (rows["layout"] == "interleaved")) + rows["nb"] * 3.0
    lines = table(rows, 40)
    assert [line.parameter for line in lines] == [name for name in STUDY if name != "cache"]
    ranks = {line.parameter: line.rank for line in lines}
    assert ranks["n"] < ranks["nb"] < ranks["looking"]
    assert sorted(ranks.values()) == [1, 2, 3, 4, 5, 6]
    assert {line.parameter: line.study_rank for line in lines}["chunking"] == 1
    assert table(rows[::20], 40) == (), "some of so few points are in no tree's sample"
