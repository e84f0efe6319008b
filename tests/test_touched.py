from __future__ import annotations

import pytest

from tests.touched import EXAMPLES, files_with


@pytest.mark.parametrize("addition", EXAMPLES)
def test_an_addition_touches_few_files(addition: str) -> None:
    names, most = EXAMPLES[addition]
    files = files_with(names)
    assert 2 <= len(files) <= most, files
