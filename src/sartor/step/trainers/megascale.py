"""ByteDance's MegaScale on Megatron-LM: the collectives of tensor parallelism run in pieces beside their GEMMs.

Jiang et al. 2024 (arXiv 2402.15627), sec. 3.2: all-gather and reduce-scatter of tensor and sequence parallelism are
fused with the GEMMs next to them and cut into chunks. Its parallel blocks are the model's, LAMB the job's (sec. 3.1).
"""

from __future__ import annotations

from dataclasses import replace

from sartor.step.trainers.megatron import MEGATRON

MEGASCALE = replace(
    MEGATRON,
    aliases=(),
    words=("megascale", "vescale"),
    tp_overlap=True,
    launchable=False,
    releases=(),
    usual_zero_stage=2,
    source="arXiv 2402.15627, sec. 3.2 and table 3",
)
