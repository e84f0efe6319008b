"""SPD batches by name, seed and slice, and the files that hold them."""

from batchchol.datasets.generation import fill, generate, stream

__all__ = ["fill", "generate", "stream"]
