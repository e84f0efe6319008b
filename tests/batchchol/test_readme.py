"""The Python of README and docs/api.md runs as pasted: the blocks, one after another, as they are read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batchchol import Batch

ROOT = Path(__file__).parents[2]
README, API = ROOT / "README.md", ROOT / "docs" / "api.md"

pytestmark = pytest.mark.skipif(not README.exists(), reason="README.md belongs to the clone, and this is no clone")


def blocks(path: Path, *, gpu: bool = False) -> list[str]:
    """The Python blocks of a document; those that name the backend "cuda" need a GPU."""
    found = re.findall(r"^```python\n(.*?)^```$", path.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [block for block in found if gpu or '"cuda"' not in block]


def run(block: str, names: dict[str, Any]) -> None:
    exec(compile(block, "a document", "exec"), names)


@pytest.mark.parametrize("path", [README, API], ids=lambda path: path.stem)
def test_the_first_block_stands_alone(path: Path) -> None:
    names: dict[str, Any] = {}
    run(blocks(path)[0], names)
    assert isinstance(names["packed"], Batch)
    assert not names["info"].any()
    np.testing.assert_allclose(names["l"], np.linalg.cholesky(names["a"]), rtol=1e-5, atol=1e-6)


def test_a_spec_is_changed_and_used() -> None:
    names: dict[str, Any] = {}
    for block in blocks(API):
        run(block, names)
    assert names["other"].schedule.nb == 4 != names["spec"].schedule.nb
    dense = names["factors"].to_dense()
    np.testing.assert_allclose(dense, np.linalg.cholesky(names["a"]), rtol=1e-5, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("path", [README, API], ids=lambda path: path.stem)
def test_the_blocks_for_a_gpu(path: Path) -> None:
    names: dict[str, Any] = {}
    for block in blocks(path, gpu=True):
        run(block, names)
    np.testing.assert_allclose(names["l"].get(), np.linalg.cholesky(names["a"]), rtol=1e-5, atol=1e-6)
