"""The kernel where none was measured: rules, fitted to what was."""
