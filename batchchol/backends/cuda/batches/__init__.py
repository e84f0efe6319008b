"""Batches in the memory of a GPU, and the data sets that it fills them with."""
