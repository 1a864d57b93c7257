"""One file, one rule: where a shape wastes hardware, the cost, and the nearest better values."""
