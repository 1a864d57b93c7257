"""Trainers for fine-tuning on PyTorch: torchtune, LitGPT and NeMo AutoModel. They load the weights in 16 bits and train
them so, without fp32 copies.

Read and recalled, 2026-11-29. torchtune: recipes set ``dtype: bf16`` for weights and AdamW alike, the model puts out
logits in eight chunks, ``CEWithChunkedOutputLoss`` widens one at a time (torchtune/modules/loss), and backward frees a
chunk's logits as it writes their gradient. LitGPT: its fine-tuning recipes set ``precision: bf16-true`` (pretraining
defaults to bf16-mixed), the head runs in chunks of 128 tokens whose cross-entropy is not widened, microbatches before
the last do not reduce gradients (``fabric.no_backward_sync``: FSDP's flat gradients of whole blocks stay;
litgpt/finetune/lora.py), all recipes drop 5% of adapters' inputs, and 4-bit runs use bitsandbytes 0.41 or 0.42
without quantized scales (``bnb.nf4``). NeMo AutoModel: ``torch_dtype`` of the
checkpoint, FSDP2, Transformer Engine's or Liger's kernels.
"""

from __future__ import annotations

from dataclasses import replace

from sartor.model.training import Release
from sartor.model.workload import Loss
from sartor.operators import DType
from sartor.step.trainers.fsdp import FSDP, HABITS
from sartor.step.trainers.nemo import NEMO

PURE = replace(HABITS, casts_weights=False, wide_table_moments=False)

TORCHTUNE = replace(
    FSDP,
    key="torchtune",
    title="",
    precedence=5,
    aliases=(),
    words=("torchtune",),
    main_dtype=DType.BF16,
    fused_loss=Loss.CHUNKED,
    memory=replace(PURE, chunked_logit_bytes=2.5),
    launchable=False,
    in_files={},
    source="its recipes of full and LoRA fine-tuning, 0.6 (recalled, 2026-11-29)",
)

HELD = replace(
    PURE,
    chunked_logit_bytes=4.5,
    whole_grads=True,
    saved_4_bit_inputs=2.0,
    frozen_4_bits=4.5,
    drops_adapter_inputs=True,
)

LITGPT = replace(
    FSDP,
    key="litgpt",
    title="LitGPT",
    precedence=5,
    aliases=("lit-gpt",),
    words=("litgpt", "lit-gpt"),
    main_dtype=DType.BF16,
    fused_loss=Loss.CHUNKED,
    memory=HELD,
    releases=(
        Release(
            last=(2023,),
            changes={"memory": replace(HELD, saved_4_bit_inputs=1.0)},
            source="its loop of 2023 ran the longest sample first, when no graph is held (get_batch, finetune/lora.py)",
        ),
    ),
    launchable=False,
    in_files={},
    source="litgpt/finetune/lora.py (read 2026-11-29), config_hub",
)

AUTOMODEL = replace(
    NEMO,
    key="automodel",
    title="NeMo AutoModel",
    precedence=5,
    words=("automodel",),
    main_dtype=DType.BF16,
    varies=("main_dtype",),
    memory=replace(PURE, logit_bytes=12.0),
    losses=tuple(Loss),
    vocab_multiple=0,
    ragged_rounds=False,
    usual_zero_stage=3,
    launchable=False,
    in_files={},
    source="its recipes of 2025 and 2026 (recalled, 2026-11-29)",
)
