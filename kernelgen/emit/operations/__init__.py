"""Operations other than factorization, by the thread family, one file an operation."""
