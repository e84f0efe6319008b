"""SPD batches by name, seed and slice, and the files that hold them."""

from batchchol.datasets.generation import (
    Parameter,
    Recipe,
    Slices,
    batch_sizes,
    expected_info,
    fill,
    generate,
    load,
    read_slices,
    read_text,
    save,
    stream,
    write_text,
)

__all__ = [
    "Parameter",
    "Recipe",
    "Slices",
    "batch_sizes",
    "expected_info",
    "fill",
    "generate",
    "load",
    "read_slices",
    "read_text",
    "save",
    "stream",
    "write_text",
]
