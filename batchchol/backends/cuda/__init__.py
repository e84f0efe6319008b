"""NVIDIA GPUs: compiling, loading and running kernels there. Importing this initialises nothing."""
