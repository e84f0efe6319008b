"""The caller's arrays on a GPU: those of other libraries, their addresses, and where results go."""
