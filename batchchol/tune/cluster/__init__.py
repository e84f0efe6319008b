"""The points of a sweep on many machines."""
