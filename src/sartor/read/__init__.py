"""Readers of what a user brings: model configs, operator graphs, instances, spaces; and tracing of PyTorch modules."""
