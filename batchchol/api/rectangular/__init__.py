"""Rectangular matrices: QR factorizations, products with Q, least squares."""
