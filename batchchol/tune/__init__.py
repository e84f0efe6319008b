"""Many kernels: spaces, sweeps, guided search, clusters, and the tables made of what they measured."""
