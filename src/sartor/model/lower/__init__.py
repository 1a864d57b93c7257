"""From a model and a workload to what one device runs: ``lower``, and which shapes can be split at all: ``feasible``.

Formulas: docs/concepts/operator-graph.md. Sizes are per device (one rank of the tensor-parallel group). A size may be
an array of candidates; every operator keeps only the axes of the sizes it depends on, so an open grid of a million
candidates costs a few hundred evaluations per operator.
"""

from sartor.model.lower.graph import lower
from sartor.model.lower.split import feasible

__all__ = ["feasible", "lower"]
