"""Tables of measurements: reading them, converting rows to operators, and one target per shape."""
