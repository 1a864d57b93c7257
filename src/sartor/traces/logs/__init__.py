"""Training logs: what a trainer prints about its steps and its plan."""
