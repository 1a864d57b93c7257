"""Measurements: reading them, and saying how far predictions are from them."""
