"""Rules on shapes: each file in this folder is a rule; here is the table of all, in the order of their codes."""

from __future__ import annotations

import sys

from sartor.json_types import JsonDict
from sartor.rules.rule import Rule, rule_named, rules_in

RULES: tuple[Rule, ...] = rules_in(sys.modules[__name__], Rule)
UNKNOWN = "is not a rule; `sartor catalog rules` lists them"


def find_rule(word: str) -> Rule:
    """The rule with a name (``ragged_vocab``) or code (``R1``); else ``InputError``."""
    return rule_named(word, RULES, UNKNOWN)


def rule_entries(name: str | None = None) -> list[JsonDict]:
    """The rows of ``sartor catalog rules``: every rule, or one rule with its page."""
    if name is not None:
        rule = find_rule(name)
        return [{**_entry(rule), "page": rule.page.strip()}]
    return [_entry(rule) for rule in RULES]


def _entry(rule: Rule) -> JsonDict:
    return {"code": rule.code, "name": rule.name, "worst": rule.worst.value, "title": rule.title, "source": rule.source}
