"""Run the rules on one context, and list them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from sartor.json_types import JsonDict
from sartor.rules.catalog import RULES, UNKNOWN, find_rule
from sartor.rules.pricing import price
from sartor.rules.rule import Context, Finding, Rule, without


def run_rules(context: Context, *, allow: Iterable[str] = ()) -> tuple[Finding, ...]:
    """All findings, most severe and most expensive first.

    ``allow`` switches rules off by name or code; an unknown one is an ``InputError`` with the nearest names.

    Examples
    --------
    >>> run_rules(Context.of(Workload(shape=load_model("gpt2")), load_gpu("a100")))[0].rule    # doctest: +SKIP
    'ragged_vocab'
    """
    suspicions = [(rule, each) for rule in without(RULES, allow, UNKNOWN) for each in rule.check(context)]
    findings = price(context, suspicions)
    return tuple(sorted(findings, key=lambda f: (-f.grade.severity, -(f.gain_s or 0.0), int(f.code[1:]))))


def added_up(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Findings whose gains add up: those that change the same field are one finding, the worst and most expensive, with
    the others as further reasons. Remarks come last."""
    kept: list[Finding] = []
    for each in findings:
        same = next((i for i, other in enumerate(kept) if _alike(other, each)), None)
        if same is None:
            kept.append(each)
        else:
            kept[same] = replace(kept[same], others=(*kept[same].others, each))
    return tuple(sorted(kept, key=lambda finding: finding.remark))


def _alike(one: Finding, other: Finding) -> bool:
    """Whether one change fixes both. A finding that cannot run has no gain to share, and remarks need other changes."""
    both_run = (one.gain_s is None) == (other.gain_s is None)
    return both_run and one.remark == other.remark and bool(one.fix.keys() & other.fix.keys())


def rule_entries(name: str | None = None) -> list[JsonDict]:
    """The rows of ``sartor catalog rules``: every rule, or one rule with its page."""
    if name is not None:
        rule = find_rule(name)
        return [{**_entry(rule), "page": rule.page.strip()}]
    return [_entry(rule) for rule in RULES]


def _entry(rule: Rule) -> JsonDict:
    return {"code": rule.code, "name": rule.name, "worst": rule.worst.value, "title": rule.title, "source": rule.source}
