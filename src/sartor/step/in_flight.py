"""How many microbatches a pipeline rank holds activations of at its fullest, per chunk of layers."""

from __future__ import annotations

from typing import Any

import numpy as np

from sartor.model.training import PipelineSchedule


def in_flight(schedule: Any, device: Any, pp: int, virtual: int, microbatches: Any) -> Any:
    """Microbatches whose forward has begun and whose backward (with a zero bubble: weight gradient) has not ended, on
    rank ``device`` when it holds most: broadcast of the arguments' arrays with a last axis of ``virtual`` chunks.

    1F1B fills the pipeline: rank d holds pp - d (Narayanan et al. 2021, sec. 2.2); interleaved it has begun
    2 (pp - d - 1) + (v - 1) pp + 1 passes through a chunk. ZB-H1 keeps back as many weight gradients as a rank has
    devices before it, so every rank holds pp. GPipe holds all.
    """
    m = np.asarray(microbatches)[..., None]
    d = np.asarray(device)[..., None]
    kind = np.asarray(schedule)[..., None]
    if virtual == 1:
        steady = np.minimum(m, pp - d)
        whole = np.where(kind == PipelineSchedule.ZERO_BUBBLE, np.minimum(m, pp), steady)
        return np.where(kind == PipelineSchedule.GPIPE, m, whole)
    begun = np.minimum((pp - 1 - d) * 2 + (virtual - 1) * pp + 1, m * virtual)
    rounds, rest = begun // (pp * virtual), begun % (pp * virtual)
    of_chunk = rounds * pp + np.clip(rest - np.arange(virtual) * pp, 0, pp)
    return np.where(kind == PipelineSchedule.GPIPE, m, of_chunk)
