"""Matrices in host memory: layouts, packing, and what is checked of arguments."""
