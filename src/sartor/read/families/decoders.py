"""Decoder-only families, one row each: what distinguishes the class from Llama's.

Facts from the published classes (transformers 5.23, Apache-2.0): which norms and biases there are, which layers have
experts. Families that need more than a row are in modules of their own.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from sartor.read.families import Reader
from sartor.read.families.decoder import Experts, Family, QkNorm, read_decoder
from sartor.read.families.parts import layer_norm
from sartor.read.families.patterns import (
    all_sparse,
    dense_first,
    sparse_steps,
    window_everywhere,
    window_pattern,
    window_where_used,
)

LLAMA = Family(q_bias="attention_bias", out_bias="attention_bias", mlp_bias="mlp_bias")
NO_BIAS = Family()
QWEN3 = Family(q_bias="attention_bias", out_bias="attention_bias", qk_norm=QkNorm.HEAD, spans=window_where_used)
GEMMA = Family(q_bias="attention_bias", out_bias="attention_bias")
OLMO2 = Family(q_bias="attention_bias", out_bias="attention_bias", qk_norm=QkNorm.WIDTH)
COHERE = Family(
    norm=layer_norm(bias=False),
    norms=1,
    parallel=True,
    q_bias="attention_bias",
    out_bias="attention_bias",
    qk_norm=QkNorm.PER_HEAD,
    qk_norm_if="use_qk_norm",
)

MIXTRAL_EXPERTS = Experts(sparse=all_sparse, width=("intermediate_size",))
DEEPSEEK_EXPERTS = Experts(sparse=dense_first(), shared_count=("n_shared_experts",))
DEEPSEEK = Family(latent=True, q_bias="attention_bias", experts=DEEPSEEK_EXPERTS)

_ROWS: dict[str, Family] = {
    "llama": LLAMA,
    "code_llama": LLAMA,
    "mistral": replace(NO_BIAS, spans=window_everywhere),
    "ministral": replace(NO_BIAS, spans=window_everywhere),
    "ministral3": replace(NO_BIAS, spans=window_everywhere),
    "mixtral": replace(NO_BIAS, spans=window_everywhere, experts=MIXTRAL_EXPERTS),
    "arcee": replace(LLAMA, gated=False),
    "cwm": NO_BIAS,
    "granite": LLAMA,
    "helium": replace(LLAMA, out_bias=False),
    "seed_oss": replace(LLAMA, out_bias="attention_out_bias"),
    "smollm3": replace(LLAMA, spans=window_where_used),
    "hyperclovax": replace(LLAMA, norms=4),
    "internlm3": replace(LLAMA, q_bias="qkv_bias", out_bias="bias", mlp_bias="bias"),
    "iquestcoder": LLAMA,
    "ernie4_5": Family(q_bias="use_bias", out_bias="use_bias", mlp_bias="use_bias"),
    "phi3": replace(NO_BIAS, spans=window_everywhere),
    "youtu": Family(latent=True, q_bias="attention_bias", mlp_bias="mlp_bias"),
    "minicpm3": Family(latent=True, q_bias="attention_bias", mlp_bias="mlp_bias"),
    # Qwen
    "qwen2": Family(q_bias=True, spans=window_where_used),
    "qwen2_moe": Family(
        q_bias="qkv_bias",
        spans=window_where_used,
        experts=Experts(sparse=sparse_steps, shared_width=("shared_expert_intermediate_size",), shared_gate=True),
    ),
    "qwen3": QWEN3,
    "qwen3_moe": replace(QWEN3, experts=Experts(sparse=sparse_steps)),
    # Gemma
    "gemma": GEMMA,
    "gemma2": replace(GEMMA, norms=4, spans=window_pattern(2)),
    "gemma3_text": replace(GEMMA, norms=4, qk_norm=QkNorm.HEAD, spans=window_pattern(6)),
    "vaultgemma": replace(GEMMA, spans=window_pattern(2)),
    # Cohere
    "cohere": COHERE,
    "cohere2": replace(COHERE, qk_norm=QkNorm.NONE, spans=window_pattern(4)),
    "cohere_compass_text": replace(COHERE, qk_norm=QkNorm.NONE),
    "cohere2_moe": replace(
        COHERE,
        qk_norm=QkNorm.NONE,
        spans=window_pattern(4),
        ffn=("prefix_dense_intermediate_size", "intermediate_size"),
        experts=Experts(sparse=dense_first(), width=("intermediate_size",), shared_count=("num_shared_experts",)),
    ),
    # OLMo
    "olmo": replace(LLAMA, mlp_bias=False, norm=layer_norm(weight=False, bias=False)),
    "olmo2": OLMO2,
    "olmo3": replace(OLMO2, spans=window_pattern(4)),
    "olmoe": replace(OLMO2, experts=MIXTRAL_EXPERTS),
    "flex_olmo": replace(OLMO2, experts=MIXTRAL_EXPERTS),
    # Granite
    "granitemoe": replace(LLAMA, mlp_bias=False, experts=MIXTRAL_EXPERTS),
    "granitemoeshared": replace(
        LLAMA,
        mlp_bias=False,
        experts=replace(MIXTRAL_EXPERTS, shared_width=("shared_intermediate_size",)),
    ),
    # DeepSeek and relatives
    "deepseek_v2": replace(DEEPSEEK, mlp_bias="mlp_bias"),
    "deepseek_v3": DEEPSEEK,
    "glm4_moe_lite": replace(DEEPSEEK, experts=replace(DEEPSEEK_EXPERTS, sparse=dense_first(otherwise=1))),
    "mistral4": DEEPSEEK,
    "dots1": Family(q_bias="attention_bias", out_bias="attention_bias", qk_norm=QkNorm.HEAD, experts=DEEPSEEK_EXPERTS),
    # GLM
    "glm": Family(q_bias="attention_bias"),
    "glm4": Family(q_bias="attention_bias", norms=4),
    "glm4_moe": Family(
        q_bias="attention_bias", qk_norm=QkNorm.HEAD, qk_norm_if="use_qk_norm", experts=DEEPSEEK_EXPERTS
    ),
    "solar_open": Family(q_bias="attention_bias", experts=DEEPSEEK_EXPERTS),
    # EXAONE
    "exaone4": Family(qk_norm=QkNorm.HEAD, spans=window_pattern(4)),
    "exaone_moe": Family(
        qk_norm=QkNorm.HEAD,
        spans=window_pattern(4),
        experts=Experts(sparse=dense_first(), shared_count=("num_shared_experts",)),
    ),
    # Experts on Llama-like layers
    "phimoe": Family(
        norm=layer_norm(),
        q_bias="attention_bias",
        out_bias="attention_bias",
        lm_head_bias="lm_head_bias",
        spans=window_everywhere,
        experts=MIXTRAL_EXPERTS,
    ),
    "minimax_m2": Family(qk_norm=QkNorm.WIDTH, experts=MIXTRAL_EXPERTS),
    "mellum": replace(QWEN3, experts=Experts(sparse=all_sparse)),
    "hy_v3": replace(
        LLAMA,
        qk_norm=QkNorm.HEAD,
        experts=Experts(sparse=dense_first(otherwise=1), shared_count=("num_shared_experts",)),
    ),
    "kolibri1": Family(
        norms=4,
        qk_norm=QkNorm.HEAD,
        experts=Experts(sparse=all_sparse, shared_width=("shared_expert_intermediate_size",)),
    ),
    "aria_text": replace(
        LLAMA,
        experts=Experts(sparse=all_sparse, width=("intermediate_size",), shared_count=("moe_num_shared_experts",)),
    ),
    # Layer norms
    "starcoder2": Family(
        norm=layer_norm(),
        q_bias="use_bias",
        out_bias="use_bias",
        mlp_bias="use_bias",
        gated=False,
        spans=window_everywhere,
    ),
    "nemotron": replace(LLAMA, norm=layer_norm(), gated=False),
    "nanochat": Family(
        norm=layer_norm(weight=False, bias=False), q_bias="attention_bias", out_bias="attention_bias", gated=False
    ),
}

FAMILIES: dict[str, Reader] = {name: partial(read_decoder, family=family) for name, family in _ROWS.items()}
