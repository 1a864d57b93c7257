"""Readers of the user's files: model configs, operator graphs, instances, spaces; and tracing of PyTorch modules."""
