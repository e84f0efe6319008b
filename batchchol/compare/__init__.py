"""Other libraries' factorizations beside this one's, measured alike."""
