"""The texts of stored and default kernels are those of the manifest; `python -m tests.kernel_texts` compares all."""

from __future__ import annotations

from ..kernel_texts import DEFAULTS, groups, read, texts

# All take minutes.
FEW = {2, 17, 33}


def test_texts_of_stored_and_default_specs_are_unchanged() -> None:
    manifest = {group: found for group, found in read().items() if group.n in FEW}
    assert {group.stored_in for group in manifest} > {DEFAULTS, "paper_h200.parquet"}
    assert {group: texts(specs) for group, specs in groups(FEW.__contains__).items()} == manifest
