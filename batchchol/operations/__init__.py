"""What a factorization costs at least, and how good its result is."""
