"""What compute-sanitizer looks at of larger matrices and single ones, emulated."""

from __future__ import annotations

import pytest

from ...sanitizers.larger import check_larger, check_solve_below, larger, solves_below
from ...sanitizers.single import check_single, single


@pytest.mark.usefixtures("fake_gpu")
def test_checks_of_larger_matrices() -> None:
    """They pass, and every family is among them."""
    cases = list(larger())
    assert {type(case.how.panel).__name__ for case in cases} == {"OnChip", "FusedPanel", "Panel"}
    check_larger(min((case for case in cases if case.how.blocks), key=lambda case: case.n))
    check_solve_below(min(solves_below(), key=lambda panel: panel.nb))


@pytest.mark.usefixtures("fake_gpu")
def test_checks_of_single_matrices() -> None:
    """Every order of evaluation and tile size is among them, in both types; the least of them passes."""
    cases = list(single())
    assert len(cases) == len({(dtype, *source.entry.split("_")[4:7]) for _, dtype, source in cases})
    check_single(*min(cases, key=lambda case: case[0]))
