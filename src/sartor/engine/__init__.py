"""Many evaluations: who runs them, what is kept of them, and how they go on after an end that nobody planned."""
