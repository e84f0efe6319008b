"""The CUDA driver: loaded kernels and their launches, with PyCUDA, without it, and without Python."""
