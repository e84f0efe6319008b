"""The sweep: every point of a search space measured, each in a process that may die, and every measurement kept."""
