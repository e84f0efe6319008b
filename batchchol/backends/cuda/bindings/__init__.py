"""What CuPy binds: cuBLAS, and the page-locked memory of the host."""
