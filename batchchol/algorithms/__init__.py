"""What takes several launches."""
