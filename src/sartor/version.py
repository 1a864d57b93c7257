"""The version of this package, which studies and answers name."""

__version__ = "0.2.0"
