"""Panels of large matrices: what a blocked factorization launches between its matrix products."""
