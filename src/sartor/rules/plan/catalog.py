"""All rules about plans, in the order of their codes."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from sartor.errors import InputError
from sartor.rules.plan import (
    does_not_fit,
    long_bubble,
    short_microbatch,
    slower_than_best,
    tensor_parallel_beyond_links,
    unbalanced_stages,
    unhidden_reduction,
    unneeded_recompute,
    unsharded_optimizer,
    unsplit_sequence,
)
from sartor.rules.plan.rule import PlanRule

PLAN_RULES: tuple[PlanRule, ...] = (
    does_not_fit.RULE,
    tensor_parallel_beyond_links.RULE,
    unneeded_recompute.RULE,
    unsplit_sequence.RULE,
    unsharded_optimizer.RULE,
    short_microbatch.RULE,
    long_bubble.RULE,
    unhidden_reduction.RULE,
    unbalanced_stages.RULE,
    slower_than_best.RULE,
)


def without(allow: Iterable[str]) -> tuple[PlanRule, ...]:
    """The rules that may not be broken. Raises ``InputError`` for a word that is no rule's name or code."""
    allowed = {_code(word) for word in allow}
    return tuple(rule for rule in PLAN_RULES if rule.code not in allowed)


def _code(word: str) -> str:
    wanted = word.strip().lower().replace("-", "_")
    for rule in PLAN_RULES:
        if wanted in (rule.name, rule.code.lower()):
            return rule.code
    near = get_close_matches(wanted, [rule.name for rule in PLAN_RULES], n=1, cutoff=0.3)
    raise InputError("allow", word, "is no rule of plans", "".join(near) or "P1 to P10")
