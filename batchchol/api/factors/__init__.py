"""Cholesky factors: the public functions, and how they are computed on the host and on a GPU."""
