"""What rules find in a shape: as tables and articles, text, JSON, SARIF 2.1.0 and GitHub annotations.

SARIF: OASIS Standard "Static Analysis Results Interchange Format 2.1.0" (2020-03). GitHub annotations: "Workflow
commands for GitHub Actions" (escapes as in actions/toolkit, ``packages/core/src/command.ts``).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING
from urllib.parse import quote

from sartor import __version__
from sartor.answers.advice import FINDING
from sartor.answers.field import to_json
from sartor.json_types import JsonDict
from sartor.model.editing import CONFIG_KEYS
from sartor.report.grid import Markup, element, join, markdown
from sartor.report.words import printable
from sartor.rules.lint import LEAST_GAIN
from sartor.rules.rule import Finding, Grade, Rule
from sartor.rules.shape import find_rule
from sartor.units import format_share

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions
    from rich.text import Text

WIDTH = 98
"""Columns of the text format."""

GRADE_STYLES = {"error": "bold red", "warn": "yellow", "info": "cyan"}
_LEVELS = {Grade.ERROR: "error", Grade.WARN: "warning", Grade.INFO: "note"}
_ANNOTATIONS = {Grade.ERROR: "error", Grade.WARN: "warning", Grade.INFO: "notice"}


@dataclass(frozen=True, slots=True)
class FindingsText:
    """Findings for the terminal, coloured. ``unread``: what the config says and was not read, without which there is no
    verdict. ``most``: the first faults alone, without further reasons."""

    findings: Sequence[Finding]
    unread: str = ""
    most: int | None = None

    def __rich_console__(self, _console: Console, options: ConsoleOptions) -> Iterator[Text]:
        from rich.text import Text

        for line, style in self.lines(min(options.max_width - 2, WIDTH)):
            yield Text(line, style=style)

    def __str__(self) -> str:
        return "\n".join(line for line, _ in self.lines(WIDTH))

    def lines(self, width: int) -> Iterator[tuple[str, str]]:
        """Findings and their counts, then remarks under their own heading; each line with its colour."""
        faults, remarks = _split_remarks(self.findings)
        for fault in faults[: self.most]:
            yield from _finding_lines(fault if self.most is None else replace(fault, others=()), width)
        yield from ((line, "") for line in wrap(_tally(faults, self.unread), width))
        if remarks and self.most is None:
            yield from (("", ""), (f"{REMARKS}:", "bold"))
            yield from (line for remark in remarks for line in _finding_lines(remark, width))


REMARKS = "Remarks on the architecture, to be chosen before training"


def _split_remarks(findings: Iterable[Finding]) -> tuple[list[Finding], list[Finding]]:
    """Findings of waste in the shape, and remarks on its architecture."""
    all_findings = list(findings)
    return [finding for finding in all_findings if not finding.remark], [
        finding for finding in all_findings if finding.remark
    ]


def _finding_lines(finding: Finding, width: int) -> Iterator[tuple[str, str]]:
    yield (
        f"{finding.grade.value:5}  {finding.code:3} {finding.rule:24} {_gain_text(finding)}",
        GRADE_STYLES[finding.grade.value],
    )
    yield from ((line, "") for line in wrap(printable(finding.message), width, **_INDENT))
    for reason in _also(finding):
        yield from ((line, "") for line in wrap(printable(reason), width, **_INDENT))
    if finding.fix:
        word, style = ("it would be", "") if finding.doubt else ("fix", "green")
        yield from ((line, style) for line in wrap(f"{word}: {_fix(finding)}", width, **_INDENT))


def _also(finding: Finding) -> list[str]:
    """Further reasons for the same change: ``also R14 flash_misfit: head_dim=80 is padded ...``; and against it."""
    return [f"not worth it: {finding.doubt}"] * bool(finding.doubt) + [
        f"also {finding_beside.code} {finding_beside.rule}: {finding_beside.message}"
        for finding_beside in finding.others
    ]


LEAST_SHOWN = 5e-5
"""Least share of the step that does not round to 0.0%."""
LEAST_CHANGE = 5e-4
"""Least change of the parameters that is told: one that does not round to 0.0%."""
_INDENT: JsonDict = {"initial_indent": " " * 7, "subsequent_indent": " " * 7, "break_on_hyphens": False}


def _gain_text(finding: Finding) -> str:
    """What the fix is worth: a share of the step, fewer device-seconds in inference, or that the model cannot run."""
    if finding.gain_s is None:
        return "cannot run"
    if finding.device_seconds_spared:
        return f"{format_share(finding.device_seconds_spared)} fewer device-seconds"
    if (finding.gain_fraction or 0.0) < LEAST_SHOWN:
        return "no gain predicted"
    return f"{format_share(finding.gain_fraction or 0.0)} of the step"


def _fix(finding: Finding) -> str:
    fields = ", ".join(f"{name}={value}" for name, value in finding.fix.items())
    change = finding.params_change
    return fields if abs(change) < LEAST_CHANGE else f"{fields} ({'+' * (change > 0)}{format_share(change)} parameters)"


def _tally(findings: Sequence[Finding], unread: str) -> str:
    """The number of findings of each grade; the verdict if there are none."""
    if not findings:
        return _verdict_without_findings(unread)
    counts = {grade: sum(finding.grade is grade for finding in findings) for grade in Grade}
    tally = ", ".join(f"{n} {_LEVELS[grade]}{'s' if n != 1 else ''}" for grade, n in counts.items() if n)
    cheap = all(
        finding.gain_s is not None and finding.grade is not Grade.ERROR and (finding.gain_fraction or 0.0) < LEAST_GAIN
        for finding in findings
    )
    tally += f"; none costs {format_share(LEAST_GAIN)} of the step" if cheap else ""
    return f"{tally}. {unread}" if unread else tally


NO_WASTE = "No rule finds waste in this shape."


def _verdict_without_findings(unread: str) -> str:
    """The verdict of a lint without findings: no waste, unless the config has sizes that were not read."""
    return f"No verdict: no rule finds waste in the sizes that were read, but {unread}." if unread else NO_WASTE


def sarif(findings: Sequence[Finding], *, path: str | Path) -> str:
    """A SARIF 2.1.0 log with one run: the violated rules with their pages, and a result per finding.

    ``path`` is the model as given. A result points to the line of the field in its config.json; a model that is not a
    file (a zoo name) becomes a logical location.
    """
    violated = [find_rule(code) for code in dict.fromkeys(finding.code for finding in findings)]
    index = {rule.code: i for i, rule in enumerate(violated)}
    source = _Source.of(path)
    run = {
        "tool": {
            "driver": {
                "name": "sartor",
                "semanticVersion": __version__,
                "rules": [_sarif_rule(rule) for rule in violated],
            }
        },
        "columnKind": "unicodeCodePoints",
        "results": [_sarif_result(finding, index[finding.code], source) for finding in findings],
    }
    log = {"$schema": SARIF_SCHEMA, "version": "2.1.0", "runs": [run]}
    return json.dumps(log, indent=2, allow_nan=False)


SARIF_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def _sarif_rule(rule: Rule) -> JsonDict:
    page = rule.page.strip()
    return {
        "id": rule.name,
        "name": "".join(word.capitalize() for word in rule.name.split("_")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": " ".join(page.partition("## Why it costs")[2].partition("##")[0].split())},
        "help": {"text": page, "markdown": page},
        "defaultConfiguration": {"level": _LEVELS[rule.worst]},
        "properties": {"code": rule.code, "page": f"docs/rules/{rule.name}.md"},
    }


def _sarif_result(finding: Finding, rule_index: int, source: _Source) -> JsonDict:
    message = "; ".join([finding.message, *_also(finding)]) + (
        f"; fix: {_fix(finding)} saves {_gain_text(finding)}" if finding.fix else ""
    )
    return {
        "ruleId": finding.rule,
        "ruleIndex": rule_index,
        "level": _LEVELS[finding.grade],
        "message": {"text": printable(message)},
        "locations": [_location(finding, source)],
        "partialFingerprints": {"sartor/1": f"{finding.rule}/{finding.field}"},
        "properties": to_json(finding, FINDING),
    }


def _location(finding: Finding, source: _Source) -> JsonDict:
    if source.uri is None:
        return {"logicalLocations": [{"name": source.name, "fullyQualifiedName": f"{source.name}.{finding.field}"}]}
    physical: JsonDict = {"artifactLocation": {"uri": source.uri}}
    line = source.line_of(finding.field)
    return {"physicalLocation": physical | ({"region": {"startLine": line}} if line else {})}


def github(findings: Iterable[Finding], *, path: str | Path) -> str:
    """One GitHub workflow command per finding: ``::error file=...,line=...,title=...::message``."""
    source = _Source.of(path)
    return "\n".join(_annotation(finding, source) for finding in findings)


def _annotation(finding: Finding, source: _Source) -> str:
    line = source.line_of(finding.field)
    properties = {
        "file": source.path,
        "line": str(line) if line else None,
        "title": f"{finding.code} {finding.rule}: {_gain_text(finding)}",
    }
    shown = ",".join(f"{name}={_property(value)}" for name, value in properties.items() if value)
    fix = f"\nfix: {_fix(finding)}" if finding.fix else ""
    return f"::{_ANNOTATIONS[finding.grade]} {shown}::{_data(chr(10).join([finding.message, *_also(finding)]) + fix)}"


def _data(value: str) -> str:
    return value.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(value: str) -> str:
    return _data(value).replace(":", "%3A").replace(",", "%2C")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The source of a model: a file with its lines, or only a name."""

    name: str
    path: str | None = None
    text: str = ""

    @classmethod
    def of(cls, name: str | Path) -> _Source:
        path = Path(name)
        path = path / "config.json" if path.is_dir() else path
        if not path.is_file():
            return cls(name=printable(str(name)))
        return cls(name=printable(path.name), path=path.as_posix(), text=path.read_text("utf-8", errors="replace"))

    @property
    def uri(self) -> str | None:
        if self.path is None:
            return None
        return Path(self.path).as_uri() if Path(self.path).is_absolute() else quote(self.path)

    def line_of(self, field: str) -> int | None:
        """The line (from 1) with the field, or with a key it is derived from; None if absent."""
        for key in CONFIG_KEYS.get(field, ()):
            match = re.search(rf'"{re.escape(key)}"\s*:', self.text)
            if match:
                return self.text.count("\n", 0, match.start()) + 1
        return None


def _fix_text(finding: Finding) -> str:
    return printable(", ".join(f"{name}={value}" for name, value in finding.fix.items()))


def findings_markup(findings: Iterable[Finding], unread: str) -> Markup:
    """Articles of faults with their price and why each costs time, then remarks under their own heading."""
    faults, remarks = _split_remarks(findings)
    parts = [] if faults else [element("p", _verdict_without_findings(unread))]
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
        element("span", _gain_text(finding), class_="gain"),
    )
    parts = [head, element("p", finding.message), *(element("p", reason) for reason in _also(finding))]
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
