"""Candidates of general matrices: what can be built, with one thread and several to a matrix."""

from __future__ import annotations

import pytest

from batchchol.tune.candidates import specs, variations
from batchchol.tune.general_candidates import OPS


@pytest.mark.parametrize("op", [op for op in OPS if op != "potrf"])
@pytest.mark.parametrize("target", ["cuda", "generic"])
def test_candidates_and_their_variations_are_of_the_operation(op: str, target: str) -> None:
    for layout, n in (("canonical", 8), ("chunked", 40)):
        found = specs(n, "float32", "ieee", target, layout=layout, op=op)
        assert {(spec.problem.op, spec.layout) for spec in found} == {(op, layout)}
        assert all(each.problem.op == op for each in variations(found[0]))
        splits = {spec.schedule.split for spec in found}
        assert (len(splits) > 1) == (target == "cuda")
