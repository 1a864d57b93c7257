"""Formulas of GPU kernels: tiles, waves, attention, streaming. Nothing fitted stands in the code."""
