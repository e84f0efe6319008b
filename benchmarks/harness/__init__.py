"""What the questions share: the grid and its points, profiles, cases, and what the suite uses of the library."""
