"""The question: everything a step depends on, each value with where it comes from."""
