"""The search for the fastest parallel plan that fits."""
