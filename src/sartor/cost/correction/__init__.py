"""What measurements add to the formulas: calibration data, and what is learned from it."""
