"""Inverses: the public functions, and the kernels that compute them."""
