"""Rules about plans: waste in how a training job is spread over devices. One file, one rule."""
