"""A whole training step: blocks become stages, a pipeline, replicas and an optimizer; seconds and bytes."""
