"""Executors and study files for many evaluations: run them, store them, and resume after an interruption."""
