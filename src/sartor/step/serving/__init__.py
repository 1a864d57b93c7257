"""A model served: one pass and its memory, prompts, decoding steps, and the steady state of a server under load."""
