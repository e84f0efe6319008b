"""Guided search: the best of a search space by few measurements, and the replay that compares strategies."""
