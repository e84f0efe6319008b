"""Whole arrays: factored on a GPU or streamed through it, and the libraries whose arrays a call takes."""
