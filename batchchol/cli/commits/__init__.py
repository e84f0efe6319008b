"""Commands about commits: is one slower, the suite, its history, and this machine's place in it."""
