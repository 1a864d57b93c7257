"""One file, one rule: where a shape wastes its hardware, what that costs, and the nearest values that would not."""
