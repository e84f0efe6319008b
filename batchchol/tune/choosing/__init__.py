"""From measured rows to what is used: winners, contests with the current choice, and tables of defaults."""
