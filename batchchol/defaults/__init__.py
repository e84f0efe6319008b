"""Which kernel runs when a caller names none, and why: tables that were measured, and rules where nothing was."""

from batchchol.defaults.lookup import Choice, array_layout, default_choice, default_layout, default_spec
from batchchol.defaults.shipped import source_of

__all__ = ["Choice", "array_layout", "default_choice", "default_layout", "default_spec", "source_of"]
