"""Commands that use the library: what is here, what would run, kernels ahead of time."""
