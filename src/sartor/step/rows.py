"""What of a plan decides how long a block takes, each combination once: few rows under a million plans."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from sartor.model.training import TrainingPlan
from sartor.step.distinct import distinct_rows

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockRows:
    """Distinct (tp, cp, ep, microbatch_size, sequence_parallel), one array each, and which of them every plan has.

    ``index`` has the shape these fields of the plan broadcast to, () for a single plan.
    """

    tp: IntArray
    cp: IntArray
    ep: IntArray
    microbatch_size: IntArray
    sequence_parallel: npt.NDArray[np.bool_]
    index: IntArray

    @property
    def size(self) -> int:
        return self.tp.size


def block_rows(plan: TrainingPlan) -> BlockRows:
    """The distinct rows of a plan's arrays, in ascending order.

    Without tensor parallelism there is nothing for sequence parallelism to split: such plans share a row.
    """
    dims = plan.dims
    sequence = np.asarray(dims.sequence_parallel, dtype=bool) | (np.asarray(dims.tp) == 1)
    columns = np.broadcast_arrays(dims.tp, dims.cp, dims.ep, plan.microbatch_size, sequence)
    (tp, cp, ep, microbatch, sequence), index = distinct_rows(columns)
    return BlockRows(
        tp=tp, cp=cp, ep=ep, microbatch_size=microbatch, sequence_parallel=sequence.astype(bool), index=index
    )
