"""Models and data for a first look, with nothing to download."""
