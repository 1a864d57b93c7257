"""The search for a faster shape of the same size."""
