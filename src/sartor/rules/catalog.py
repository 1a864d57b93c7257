"""All rules on shapes, found in their folder, in the order of their codes."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType

import sartor.rules.shape
from sartor.json_types import JsonDict
from sartor.rules.rule import Rule, rule_named


def rules_in(package: ModuleType) -> tuple[Rule, ...]:
    """The ``RULE`` of every file in a folder, by code; a file without one is no rule."""
    names = (f"{package.__name__}.{module.name}" for module in iter_modules(package.__path__))
    rules = [module.RULE for module in map(import_module, names) if hasattr(module, "RULE")]
    codes = [rule.code for rule in rules]
    assert len(set(codes)) == len(codes), f"two rules have one code: {sorted(codes)}"
    return tuple(sorted(rules, key=lambda rule: int(rule.code[1:])))


RULES: tuple[Rule, ...] = rules_in(sartor.rules.shape)
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
