"""Sections of the page: figures, findings with their reasons, shapes, operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING

from sartor.cost.price import Estimate
from sartor.json_types import JsonMap
from sartor.operators import kind_name
from sartor.report.grid import GridColumn
from sartor.report.html import Markup, element, join, markdown, table
from sartor.report.lint_formats import REMARKS, also, gain_text, split_remarks, verdict_without_findings
from sartor.report.table_advice import (
    MIXES,
    WORSE,
    fix_text,
    gain_in,
    position,
    quality_word,
    shown_mixes,
    with_candidate,
)
from sartor.report.table_estimate import PASS_WORDS
from sartor.report.verdict import why_to_keep
from sartor.report.words import (
    EVIDENCE_WORDS,
    efficiency,
    interval_text,
    short_change,
    short_name,
    signed_share,
    size_text,
    speedup_text,
    sure_text,
    tile_text,
)
from sartor.units import format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import Advice
    from sartor.rules.rule import Finding
    from sartor.shapes.mixes import Mix
    from sartor.shapes.quality import Quality, QualityCheck


def figure(records: JsonMap, name: str, note: str = "") -> Markup:
    if name not in records:
        return Markup("")
    caption = element("figcaption", arrows(records[name].title), element("small", note) if note else "")
    words = "The figures need JavaScript; the tables show the same numbers."
    fallback = element("noscript", element("p", words, class_="note"))
    return element("figure", caption, element("div", id=f"figure-{name}", class_="plot"), fallback)


def findings_section(advice: Advice, records: JsonMap) -> Markup:
    heading = element("h2", "Findings, and what each costs", id="findings")
    faults, remarks = split_remarks(advice.findings)
    unread = advice.base.question.reading.unread
    verdict = element("p", verdict_without_findings(unread))
    parts = [heading, figure(records, "findings") if faults else verdict]
    pages = _rule_pages()
    parts += [_finding(finding, pages.get(finding.rule, "")) for finding in faults]
    if remarks:
        parts.append(element("h3", REMARKS))
        parts += [_finding(finding, pages.get(finding.rule, "")) for finding in remarks]
    return join(parts)


@cache
def _rule_pages() -> Mapping[str, str]:
    from sartor.rules.catalog import RULES

    return {rule.name: rule.page for rule in RULES}


def _finding(finding: Finding, page: str) -> Markup:
    head = element(
        "h3",
        element("span", finding.grade.value, class_=f"grade {finding.grade.value}"),
        element("span", finding.rule),
        element("span", finding.code, class_="note"),
        element("span", gain_text(finding), class_="gain"),
    )
    parts = [head, element("p", finding.message), *(element("p", reason) for reason in also(finding))]
    parts += [element("p", "Fix: ", element("code", fix_text(finding)), _saves(finding))] if finding.fix else []
    if page:
        title, _, rest = page.strip().partition("\n")
        why = element("div", element("p", element("strong", title)), markdown(rest))
        parts.append(element("details", element("summary", "Why this costs time"), why))
    return element("article", *parts, class_="finding")


def _saves(finding: Finding) -> str:
    if not finding.gain_s:
        return ""
    interval = ""
    if finding.gain_low_s is not None and finding.gain_high_s is not None:
        step_s = finding.gain_s / (finding.gain_fraction or 1.0)
        low, high = (format_share(each / step_s) for each in (finding.gain_low_s, finding.gain_high_s))
        interval = f" (80%: {low} to {high})"
    share = format_share(finding.gain_fraction or 0.0)
    return f" saves {share} of the step{interval} at equal work; {finding.source.value}"


def shapes_section(advice: Advice, records: JsonMap) -> Markup:
    search = advice.search
    parts = [element("h2", "Shapes that gain at equal work", id="shapes")]
    parts.append(
        element(
            "p",
            f"Compared {search.evaluated:,} shapes of the same size out of a grid of {search.grid_size:,}.",
            class_="note",
        )
    )
    if search.candidates:
        note = "Strong colours: Pareto front of step time, decoding time, parameters and number of changed fields."
        parts += [figure(records, "candidates", note), _candidates(advice)]
    else:
        parts.append(element("p", arrows(why_to_keep(search))))
    if search.mixes:
        parts += [element("h3", "Mixtures of experts of this size"), _mixes(search.mixes)]
    parts.append(element("h3", "One field at a time"))
    parts.append(figure(records, "sawtooth", "Only this field changes, and the sizes derived from it."))
    parts.append(figure(records, "sawtooth_width", "Steps come from tiles, waves and alignment."))
    if len(advice.gpus) > 1 and search.candidates:
        parts += [element("h3", "On each device"), _per_gpu(advice)]
    parts.append(bullets("For other settings", [str(line) for line in search.stability]))
    return join(parts)


def _candidates(advice: Advice) -> Markup:
    columns = [
        GridColumn(head="change", number=False),
        GridColumn(head="gain", explains="speedup at equal parameters and equal FLOPs"),
        GridColumn(head="80% interval", explains="of the gain; errors that both shapes share cancel"),
        GridColumn(head="sure", explains="probability of a gain"),
        GridColumn(head="parameters"),
        GridColumn(head="FLOPs"),
        GridColumn(head="speedup", explains="with what a smaller model adds: time of the baseline over time of this"),
        GridColumn(head="time"),
        GridColumn(
            head="quality",
            explains=f"published evidence on model quality for such a change: {EVIDENCE_WORDS}",
            number=False,
        ),
    ]
    edit = advice.search.smallest_edit
    shown = with_candidate(advice.search.candidates, edit)
    at = position(shown, edit)
    rows = [
        (
            join([arrows(short_change(c.changed)), _tag("smallest edit") if i == at else ""]),
            speedup_text(c.efficiency_gain),
            f"{float(c.efficiency_low):.2f} to {float(c.efficiency_high):.2f}",
            sure_text(float(c.confidence)),
            signed_share(float(c.params_change), 2),
            signed_share(float(c.flops_change)),
            speedup_text(c.speedup),
            format_seconds(float(c.time_s)),
            _quality(c.quality),
        )
        for i, c in enumerate(shown)
    ]
    return table(columns, rows, caption="Candidates, best first; the smallest edit is marked", highlight=at)


def _mixes(mixes: Sequence[Mix]) -> Markup:
    phases = list(mixes[0].gains)
    columns = [
        GridColumn(head="change", number=False),
        *(GridColumn(head=phase, explains="gain at equal work, and its 80% interval") for phase in phases),
        GridColumn(head="parameters"),
        GridColumn(head="active"),
        GridColumn(head="quality", explains=f"worse = {WORSE}; {EVIDENCE_WORDS}", number=False),
    ]
    rows = [
        (
            arrows(short_change(mix.changed)),
            *(gain_in(mix, phase) for phase in phases),
            signed_share(mix.params_change, 2),
            signed_share(mix.active_change, 2),
            _quality(mix.quality),
        )
        for mix in shown_mixes(mixes)
    ]
    return table(columns, rows, caption=MIXES)


def arrows(words: str) -> str:
    """``32 -> 20`` with an arrow character, so that lines do not break at it."""
    return words.replace(" -> ", " \u2192 ")


def _tag(words: str) -> Markup:
    return element("span", words, class_="tag")


def _quality(quality: Quality) -> Markup:
    """Every quantity with evidence on the loss, changed ones first: its values, studied range and source."""
    order = sorted(quality.checks, key=lambda check: not check.moved)
    checks = [
        f"{check.name} {_moves(check)} (range {check.low:.3g} to {check.high:.3g}; {check.source})" for check in order
    ]
    items = element("ul", *(element("li", line) for line in [*quality.notes, *checks]))
    return element("details", element("summary", quality_word(quality)), element("div", items))


def _moves(check: QualityCheck) -> str:
    return f"{check.baseline:.4g} \u2192 {check.value:.4g}" if check.moved else f"stays {check.value:.4g}"


def _per_gpu(advice: Advice) -> Markup:
    search = advice.search
    columns = [GridColumn(head="change", number=False), *(GridColumn(head=gpu.name) for gpu in advice.gpus)]
    shown = with_candidate(search.candidates, search.minimax)
    at = position(shown, search.minimax)
    loss = format_share(search.regret)
    caption = f"Speedup on each device; the least-regret shape is at most {loss} slower than each device's best"
    rows = [
        (
            join([arrows(short_change(c.changed)), _tag("least regret") if i == at else ""]),
            *(speedup_text(c.per_gpu[gpu.name]) if gpu.name in c.per_gpu else "" for gpu in advice.gpus),
        )
        for i, c in enumerate(shown)
    ]
    return table(
        columns,
        rows,
        caption=caption,
        highlight=at,
    )


def operators(estimate: Estimate) -> Markup:
    """All operators with their terms, longest first."""
    columns = [
        GridColumn(head="operator", number=False),
        GridColumn(head="kind", number=False),
        GridColumn(head="pass", number=False),
        GridColumn(head="count"),
        GridColumn(head="size", explains="(batch x) m x n x k of C[m,n] = A[m,k] B[k,n]"),
        GridColumn(head="time", explains="all executions of one step"),
        GridColumn(head="80% low"),
        GridColumn(head="80% high"),
        GridColumn(head="share", explains="of the step"),
        GridColumn(head="bound by", number=False, explains="the largest term"),
        GridColumn(head="tile", number=False, explains="output tile / split of k"),
        GridColumn(head="waves", explains="ceil(tiles / SMs, or / tensor cores of an accelerator)"),
        GridColumn(head="efficiency", explains="tile efficiency x wave efficiency"),
    ]
    pairs = sorted(
        zip(estimate.graph.operators, estimate.costs, strict=True),
        key=lambda pair: -float(pair[0].count) * float(pair[1].time_s),
    )
    rows = []
    for op, cost in pairs:
        count, useful = float(op.count), efficiency(op, cost)
        waves = cost.details.get("waves")
        rows.append(
            (
                short_name(op),
                kind_name(op),
                PASS_WORDS[op.pass_],
                f"{count:.0f}",
                size_text(op),
                format_seconds(count * float(cost.time_s)),
                format_seconds(count * float(cost.low_s)),
                format_seconds(count * float(cost.high_s)),
                format_share(count * float(cost.time_s) / float(estimate.time_s)),
                cost.bound_by.value,
                tile_text(cost),
                "" if waves is None else f"{float(waves):.0f}",
                "" if useful is None else format_share(useful),
            )
        )
    step = interval_text(float(estimate.time_s), float(estimate.low_s), float(estimate.high_s))
    return table(columns, rows, caption=f"One microbatch, or one pass of inference: {step}; {estimate.source.value}")


def bullets(title: str, lines: Sequence[str]) -> Markup:
    if not lines:
        return Markup("")
    return join([element("h3", title), element("ul", *(element("li", line) for line in dict.fromkeys(lines)))])
