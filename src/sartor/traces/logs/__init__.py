"""Training logs: what a trainer prints of its steps, and what it says of its plan."""
