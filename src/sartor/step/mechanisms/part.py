"""The parts of a step that its mechanisms are counted under; `sartor.step.mechanisms.parts` lists those in use."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of the step's seconds, as every report names it."""

    key: str
    """In JSON, and in ``StepEstimate.parts``: ``tp_s``."""
    words: str
    of_operators: bool = False
    """Scales with the seconds of a microbatch's operators."""
    network: bool = False
    """As uncertain as the network's times."""
    log_sigma: float = 0.0
    """Standard deviation of ln(measured/predicted) of its own, if it is not the kernels' or the network's."""


COMPUTE = Part(key="compute_s", words="compute", of_operators=True)
"""What the slowest stage computes: its busy time that no other part claims, recomputation included."""
TENSOR = Part(key="tp_s", words="tensor-parallel communication", of_operators=True)
BUBBLE = Part(key="pp_bubble_s", words="pipeline bubble", of_operators=True)
TRANSFERS = Part(key="pp_transfer_s", words="pipeline transfers", network=True)
REPLICAS = Part(key="dp_exposed_s", words="exposed data-parallel communication", network=True)
EXPERTS = Part(key="ep_s", words="expert-parallel communication", of_operators=True)
CONTEXTS = Part(key="cp_s", words="context-parallel communication", of_operators=True)
OPTIMIZER = Part(key="optimizer_s", words="optimizer step", log_sigma=0.2)
"""Uncertainty assumed, from the gap between fused and unfused steps."""
OVERHEAD = Part(key="overhead_s", words="kernel launches, jitter, fixed costs")
