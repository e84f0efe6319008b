"""The suite's results over commits: every run of every point, where they change, and pages of both."""
