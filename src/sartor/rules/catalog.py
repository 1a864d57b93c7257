"""All rules, in the order of their codes."""

from __future__ import annotations

from sartor.rules import (
    deep_narrow_decode,
    flash_misfit,
    head_dim_64,
    narrow_heads,
    ragged_decoupled_heads,
    ragged_experts,
    ragged_ffn,
    ragged_head_dim,
    ragged_hidden,
    ragged_scale_blocks,
    ragged_tokens,
    ragged_vocab,
    replicated_kv_heads,
    sequential_layers,
    six_gpu_nodes,
    small_microbatch,
    tail_wave,
    uneven_pipeline,
    unfused_positions,
    unsplit_heads,
    untuned_swiglu,
    wide_tensor_parallel,
)
from sartor.rules.rule import Rule, rule_named

RULES: tuple[Rule, ...] = (
    ragged_vocab.RULE,
    small_microbatch.RULE,
    ragged_tokens.RULE,
    ragged_head_dim.RULE,
    ragged_hidden.RULE,
    ragged_ffn.RULE,
    unsplit_heads.RULE,
    wide_tensor_parallel.RULE,
    narrow_heads.RULE,
    head_dim_64.RULE,
    uneven_pipeline.RULE,
    untuned_swiglu.RULE,
    six_gpu_nodes.RULE,
    flash_misfit.RULE,
    tail_wave.RULE,
    deep_narrow_decode.RULE,
    sequential_layers.RULE,
    unfused_positions.RULE,
    replicated_kv_heads.RULE,
    ragged_experts.RULE,
    ragged_scale_blocks.RULE,
    ragged_decoupled_heads.RULE,
)
UNKNOWN = "is not a rule; `sartor catalog rules` lists them"


def find_rule(word: str) -> Rule:
    """The rule with a name (``ragged_vocab``) or code (``R1``); else ``InputError``."""
    return rule_named(word, RULES, UNKNOWN)
