"""Prediction of the seconds of every operator on a GPU or an accelerator; ``price`` is the entry point."""
