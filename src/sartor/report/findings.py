"""What rules find in a shape, as articles of the page with their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING

from sartor.report.html import Markup, element, join, markdown
from sartor.report.lint_formats import REMARKS, also, gain_text, split_remarks, verdict_without_findings
from sartor.report.words import printable
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.rules.rule import Finding


def _fix_text(finding: Finding) -> str:
    return printable(", ".join(f"{name}={value}" for name, value in finding.fix.items()))


def findings_markup(findings: Iterable[Finding], unread: str) -> Markup:
    """Articles of faults with their price and why each costs time, then remarks under their own heading."""
    faults, remarks = split_remarks(findings)
    parts = [] if faults else [element("p", verdict_without_findings(unread))]
    parts += [_article(finding) for finding in faults]
    parts += [element("h3", REMARKS), *(_article(finding) for finding in remarks)] if remarks else []
    return join(parts)


def _article(finding: Finding) -> Markup:
    page = _rule_pages().get(finding.rule, "")
    head = element(
        "h3",
        element("span", finding.grade.value, class_=f"grade {finding.grade.value}"),
        element("span", finding.rule),
        element("span", finding.code, class_="note"),
        element("span", gain_text(finding), class_="gain"),
    )
    parts = [head, element("p", finding.message), *(element("p", reason) for reason in also(finding))]
    parts += [element("p", "Fix: ", element("code", _fix_text(finding)), _saves(finding))] if finding.fix else []
    if page:
        title, _, rest = page.strip().partition("\n")
        why = element("div", element("p", element("strong", title)), markdown(rest))
        parts.append(element("details", element("summary", "Why this costs time"), why))
    return element("article", *parts, class_="finding")


@cache
def _rule_pages() -> Mapping[str, str]:
    from sartor.rules.shape import RULES

    return {rule.name: rule.page for rule in RULES}


def _saves(finding: Finding) -> str:
    if not finding.gain_s:
        return ""
    interval = ""
    if finding.gain_low_s is not None and finding.gain_high_s is not None:
        step_s = finding.gain_s / (finding.gain_fraction or 1.0)
        low, high = (format_share(gain_s / step_s) for gain_s in (finding.gain_low_s, finding.gain_high_s))
        interval = f" (80%: {low} to {high})"
    share = format_share(finding.gain_fraction or 0.0)
    return f" saves {share} of the step{interval} at equal work; {finding.source.value}"
