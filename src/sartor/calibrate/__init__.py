"""From a user's measurements to a calibration file."""
