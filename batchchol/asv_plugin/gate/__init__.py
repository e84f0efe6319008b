"""The gate: is a commit slower than another? Proof where the code is equal, paired measurement where it is not."""
