"""What the benchmark suite needs of asv: checkouts, a guard, samples and results."""
