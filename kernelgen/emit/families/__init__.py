"""Factorizations by families other than the thread family, one file a family."""
