"""Stands beside torch_modules.py, which imports it as a script would."""

WIDTH = 64
