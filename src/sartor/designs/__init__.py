"""The search for an accelerator and a plan together, with a proof."""
