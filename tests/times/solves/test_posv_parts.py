"""The kernels without parts: all texts have the parts that are taken out."""

from __future__ import annotations

import pytest

from .posv_parts import CASES, Case, sources


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op}-{case.n}-{case.layout}-{case.math}")
def test_parts_are_taken_out(case: Case) -> None:
    (name, whole), *rest = sources(case)
    assert name == ""
    assert [name for name, _ in rest] == list(case.parts)
    assert len({source.text for _, source in rest} | {whole.text}) == len(rest) + 1
