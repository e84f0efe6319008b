"""Algorithms that take several launches."""
