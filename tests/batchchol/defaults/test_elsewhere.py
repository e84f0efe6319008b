"""Defaults of GPUs that were not measured: nothing that is known to spill."""

from __future__ import annotations

from dataclasses import replace

import pytest

from batchchol.defaults import elsewhere
from batchchol.defaults.elsewhere import kind_of, name_of, spared
from kernelgen import KernelSpec, Problem, WarpSchedule

from ...cuda_spills import read
from ...cuda_spills_elsewhere import asked

SPEC = KernelSpec(
    problem=Problem(24), target="cuda", layout="canonical", order="row", schedule=WarpSchedule(2, blocks=4)
)


@pytest.mark.parametrize("arch", ["sm_80", "sm_86", "sm_89", "sm_100", "sm_120"])
def test_no_default_is_known_to_spill(arch: str) -> None:
    said = {(spec, of): row for (spec, of, _), row in read().items() if of == arch}
    rows = {spec.name: said.get((spec.name, arch)) for spec in asked((16, 20, 24, 48, 72, 104, 128), ("ieee",), arch)}
    assert sum(row is not None for row in rows.values()) > 0.9 * len(rows)
    assert not [name for name, row in rows.items() if row and int(row["spill_bytes"]) > 0]


def test_a_kernel_is_changed_where_it_is_said_and_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {kind_of(SPEC): {"blocks": 2}, kind_of(replace(SPEC, layout="chunked", order="col")): None}
    monkeypatch.setattr(elsewhere, "_read", lambda: {"sm_86": known})
    elsewhere._of.cache_clear()
    upper = replace(SPEC, problem=Problem(31, uplo="upper"))
    for spec in (SPEC, upper):
        assert spared(spec, "sm_89", "sm_90") == replace(spec, schedule=replace(spec.schedule, blocks=2))
    assert spared(replace(SPEC, layout="chunked", order="col"), "sm_86", "sm_90") is None
    for arch in ("sm_80", "sm_90", None):
        assert spared(SPEC, arch, "sm_90") is SPEC
    known[name_of(SPEC)] = None
    assert spared(SPEC, "sm_86", "sm_90") is None
    assert spared(upper, "sm_86", "sm_90") is not None
    del known[name_of(SPEC)]
    known[kind_of(SPEC)] = {"blocks": 99}
    assert spared(SPEC, "sm_86", "sm_90") is None
    elsewhere._of.cache_clear()
