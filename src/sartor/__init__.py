"""sartor cuts the model to the hardware, the hardware to the model, and the plan to both."""

__version__ = "0.1.0"
