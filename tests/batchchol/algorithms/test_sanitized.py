"""What compute-sanitizer looks at of larger matrices, emulated."""

from __future__ import annotations

import pytest

from ...sanitizers.larger import check_larger, check_solve_below, larger, solves_below


@pytest.mark.usefixtures("fake_gpu")
def test_checks_of_larger_matrices() -> None:
    """They pass, and every family is among them."""
    cases = list(larger())
    assert {type(case.how.panel).__name__ for case in cases} == {"OnChip", "FusedPanel", "Panel"}
    check_larger(min((case for case in cases if case.how.blocks), key=lambda case: case.n))
    check_solve_below(min(solves_below(), key=lambda panel: panel.nb))
