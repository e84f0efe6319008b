"""Solutions of systems, and the logarithms of determinants beside them, on the host and on a GPU."""
