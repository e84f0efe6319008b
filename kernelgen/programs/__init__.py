"""Tile programs: an operation as a stream of operations on tiles, as data."""
