"""All rules, in the order of their codes."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from sartor.errors import InputError
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
from sartor.rules.rule import Rule

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


def find_rule(word: str) -> Rule:
    """The rule of a name (``ragged_vocab``; ``-`` for ``_`` will do) or code (``R1``); else ``InputError``."""
    wanted = word.strip().lower().replace("-", "_")
    for rule in RULES:
        if wanted in (rule.name, rule.code.lower()):
            return rule
    known = [rule.name for rule in RULES] + [rule.code.lower() for rule in RULES]
    near = [rule for rule in RULES for each in get_close_matches(wanted, known, n=2) if each in _names(rule)]
    nearest = ", ".join(dict.fromkeys(f"{rule.name} ({rule.code})" for rule in near))
    raise InputError("allow", word, "is no rule's name or code", nearest or "R1 to R22, see `sartor catalog rules`")


def _names(rule: Rule) -> tuple[str, str]:
    return rule.name, rule.code.lower()


def without(rules: Iterable[Rule], allow: Iterable[str]) -> tuple[Rule, ...]:
    """The rules that are not allowed to be broken."""
    allowed = {find_rule(word).code for word in allow}
    return tuple(rule for rule in rules if rule.code not in allowed)
