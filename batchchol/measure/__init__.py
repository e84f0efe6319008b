"""One kernel on one case, timed and checked: a row."""
