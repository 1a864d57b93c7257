"""``lower`` turns a model and a workload into the operators of one device; ``feasible`` says which shapes can be split.

Formulas: docs/concepts/operator-graph.md. Sizes are per device (one rank of the tensor-parallel group). A size may be
an array of candidates. Every operator keeps only the axes of the sizes it depends on, so a grid of a million candidates
costs a few hundred evaluations per operator.
"""

from sartor.model.lower.graph import lower
from sartor.model.lower.setting import feasible

__all__ = ["feasible", "lower"]
