"""A training step on a cluster: its time and its memory, for one plan or a million."""
