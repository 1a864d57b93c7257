"""Prediction: seconds of every operator on a GPU or an accelerator, through one door."""
