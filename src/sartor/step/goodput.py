"""Time that a run loses to failures and checkpoints, from published rates."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sartor.model.counts import count_params
from sartor.model.training import Optimizer, TrainingJob

DEVICE_HOURS_PER_FAILURE = 54 * 24 * 16_384 / 419
"""Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783, sec. 3.3.4): 419 unexpected interruptions in 54 days on 16,384
H100."""
RESTART_S = 600.0
"""MegaScale (Jiang et al. 2024, arXiv 2402.15627, sec. 6.3): failures found and diagnosed in less than 10 minutes."""
STORED_BYTES_PER_S = 2e12 / 16_384
"""Checkpoint bandwidth per device: Llama 3 (sec. 3.3.1), 2 TB/s sustained for 16,384 devices."""
STATE_BYTES = {Optimizer.ADAM: 14, Optimizer.MUON: 10, Optimizer.SGD: 10}
"""Checkpoint bytes per parameter: 16-bit weights, fp32 master weights, and the optimizer's fp32 moments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Goodput:
    """Share of a run's time spent on training steps that are not lost, at the checkpoint interval that loses least."""

    share: float
    failure_every_s: float
    checkpoint_bytes: float
    checkpoint_s: float
    checkpoint_every_s: float
    restart_s: float


def goodput(job: TrainingJob, num_devices: int) -> Goodput:
    """Goodput of a job on ``num_devices``: time is lost to saving checkpoints, and with each failure to the restart and
    to the steps since the last checkpoint (Young 1974: save every sqrt(2 x save x time between failures))."""
    between_s = DEVICE_HOURS_PER_FAILURE * 3600 / num_devices
    stored = float(count_params(job.shape).total) * STATE_BYTES[job.optimizer]
    save_s = stored / (STORED_BYTES_PER_S * num_devices)
    every_s = math.sqrt(2 * save_s * between_s)
    lost = save_s / (every_s + save_s) + (RESTART_S + every_s / 2) / (between_s + RESTART_S + every_s / 2)
    return Goodput(
        share=max(1 - lost, 0.0),
        failure_every_s=between_s,
        checkpoint_bytes=stored,
        checkpoint_s=save_s,
        checkpoint_every_s=every_s,
        restart_s=RESTART_S,
    )
