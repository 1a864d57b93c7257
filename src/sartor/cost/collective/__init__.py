"""Collectives over links, for GPUs and accelerators, groups of any size."""
