"""Source text becomes code that can be loaded, and is kept: compilers, caches, and what is trusted of them."""
