"""Rules about a plan: what is wasteful in how a training job is spread. One file, one rule."""
