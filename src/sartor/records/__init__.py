"""Tables of measurements: reading them, what each row is, and one target per shape."""
