"""ByteDance's MegaScale on Megatron-LM: tensor-parallel collectives run in pieces beside their GEMMs.

Jiang et al. 2024 (arXiv 2402.15627), sec. 3.2: all-gather and reduce-scatter of tensor and sequence parallelism are
fused with the GEMMs next to them and cut into chunks. Parallel blocks are set in the model, LAMB in the job (sec. 3.1).
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
    fuses_sharded=True,
    source="arXiv 2402.15627, sec. 3.2 and table 3",
)
