"""The accelerator template: latency, area, power and energy of a chip that may not exist yet."""
