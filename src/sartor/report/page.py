"""One offline HTML page of an answer of ``advise``: verdict, figures, findings, shapes, notes, provenance.

Everything the page needs is in it (the Vega libraries once, for all figures); a content security policy forbids the
browser to fetch anything. The same answer gives the same bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

from sartor.cost.estimate import Estimate
from sartor.errors import MissingExtraError
from sartor.hardware.calibration import load_calibration
from sartor.hardware.gpu import Gpu
from sartor.operators import kind_name
from sartor.report.charts import PAGE, draw
from sartor.report.figures import advice_points
from sartor.report.html import Column, Markup, element, join, json_block, markdown, table
from sartor.report.palette import DARK, LIGHT, css_variables
from sartor.report.table import PASS_WORDS, fix_text, position, stability_lines, with_candidate
from sartor.report.verdict import verdict_parts
from sartor.report.words import (
    efficiency,
    interval_text,
    short_change,
    short_name,
    signed_share,
    size_text,
    speedup_text,
    sure_text,
    tile_text,
    workload_text,
)
from sartor.units import format_count, format_seconds, format_share

if TYPE_CHECKING:
    from sartor.answers import Advice
    from sartor.rules.rule import Finding
    from sartor.search.quality import Quality

POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'"
)
"""The browser may run and style what is in the file, and fetch nothing."""


def advice_page(advice: Advice, *, date: str = "") -> str:
    """The whole page as a string (UTF-8, under 1.5 MB). ``date`` is printed as given; the page knows no clock.

    Raises ``MissingExtraError`` without the extra ``report``.
    """
    records = advice_points(advice)
    specs = {f"figure-{name}": draw(points, PAGE).to_dict() for name, points in records.items()}
    question = advice.base.question
    title = f"{question.reading.shape.name or 'model'} on {question.gpu.name}"
    body = join(
        [
            _header(advice, title),
            element("main", *_sections(advice, records)),
            _footer(advice, date),
            json_block("figures", specs),
            _script(_bundle()),
            _script(_asset("page.js")),
        ],
        Markup("\n"),
    )
    head = join(
        [
            Markup('<meta charset="utf-8">'),
            Markup(f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'),
            Markup('<meta name="viewport" content="width=device-width,initial-scale=1">'),
            Markup('<meta name="color-scheme" content="light dark">'),
            element("title", f"{title}: sartor advise"),
            Markup(f"<style>{_style()}</style>"),
        ],
        Markup("\n"),
    )
    return f'<!doctype html>\n<html lang="en">\n<head>\n{head}\n</head>\n<body>\n{body}\n</body>\n</html>\n'


def _style() -> str:
    light = css_variables(LIGHT) + "--orange-text:#9a6700;"
    dark = css_variables(DARK) + f"--orange-text:{DARK.orange};"
    return (
        f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}\n"
        f"@media print{{:root{{color-scheme:light}}}}\n{_asset('page.css')}"
    )


def _asset(name: str) -> str:
    return (resources.files("sartor.report") / "assets" / name).read_text(encoding="utf-8")


def _script(source: str) -> Markup:
    """JavaScript in place; its text must not end the element early."""
    return Markup("<script>" + source.replace("</script", "<\\/script").replace("<!--", "<\\!--") + "</script>")


@cache
def _bundle() -> str:
    """Vega, Vega-Lite and vega-embed (BSD-3-Clause) as one script."""
    try:
        import vl_convert
    except ImportError as error:
        raise MissingExtraError("page (vl-convert-python)", "report") from error
    return str(vl_convert.javascript_bundle("window.vegaEmbed=vegaEmbed;"))


def _header(advice: Advice, title: str) -> Markup:
    question = advice.base.question
    links = [("time", "Time"), ("findings", "Findings"), ("shapes", "Shapes"), ("operators", "Operators")]
    links += [("reading", "How to read this"), ("sources", "Sources")]
    return element(
        "header",
        element("h1", title),
        element("p", f"{workload_text(question.workload)}; {_params(question.reading)}", class_="question"),
        element("nav", *(element("a", word, href=f"#{anchor}") for anchor, word in links), aria_label="Sections"),
    )


def _params(reading: Any) -> str:
    total, active = float(reading.num_params), float(reading.num_active_params)
    if active == total:
        return f"{format_count(total)} parameters"
    return f"{format_count(total)} parameters, {format_count(active)} active"


def _sections(advice: Advice, records: Mapping[str, Any]) -> list[Markup]:
    return [
        element("div", *(element("p", arrows(part)) for part in verdict_parts(advice)), class_="verdict"),
        _numbers(advice),
        element("h2", "Where the time goes", id="time"),
        _figure(records, "time_by_operator", "Bars: all executions of an operator in one step. Rules: 80% interval."),
        _figure(records, "roofline", "Discs: as it is. Open diamonds: after the change named first."),
        _findings(advice, records),
        _shapes(advice, records),
        element("h2", "Every operator", id="operators"),
        operators(advice.base.estimate),
        _list("Assumed", [*advice.base.question.assumptions, *advice.search.assumptions]),
        _how_to_read(),
        _sources(advice),
    ]


def _numbers(advice: Advice) -> Markup:
    """The four figures to take away."""
    estimate, search = advice.base.estimate, advice.search
    grades = [finding.grade.value for finding in advice.findings]
    counted = ", ".join(f"{grades.count(g)} {g}" for g in ("error", "warn", "info") if g in grades) or "none"
    step = f"80%: {format_seconds(float(estimate.low_s))} to {format_seconds(float(estimate.high_s))}"
    cards = [
        ("Time of a step", format_seconds(float(estimate.time_s)), step),
        (
            "Share of dense peak",
            format_share(float(estimate.mfu)),
            f"{format_count(float(estimate.tokens_per_s))} tokens per second",
        ),
        ("Findings", str(len(grades)), counted),
    ]
    if search.candidates:
        best = search.candidates[0]
        low, high = speedup_text(best.speedup_low), speedup_text(best.speedup_high)
        cards.append(("Best shape of this size", speedup_text(best.speedup), f"80%: {low} to {high}"))
    else:
        cards.append(("Best shape of this size", "this one", f"{search.evaluated:,} compared"))
    items = (element("div", element("dt", n), element("dd", v, element("small", d))) for n, v, d in cards)
    return element("dl", *items, class_="numbers")


def _figure(records: Mapping[str, Any], name: str, note: str = "") -> Markup:
    if name not in records:
        return Markup("")
    caption = element("figcaption", arrows(records[name].title), element("small", note) if note else "")
    fallback = element("noscript", element("p", "Figures need scripts; the tables hold their numbers.", class_="note"))
    return element("figure", caption, element("div", id=f"figure-{name}", class_="plot"), fallback)


def _findings(advice: Advice, records: Mapping[str, Any]) -> Markup:
    heading = element("h2", "What is broken, and what it costs", id="findings")
    if not advice.findings:
        return join([heading, element("p", "No rule is broken on this device.")])
    pages = _rule_pages()
    items = (_finding(finding, pages.get(finding.rule, "")) for finding in advice.findings)
    return join([heading, _figure(records, "findings"), *items])


@cache
def _rule_pages() -> Mapping[str, str]:
    from sartor.rules.catalog import RULES

    return {rule.name: rule.page for rule in RULES}


def _finding(finding: Finding, page: str) -> Markup:
    gain = "cannot run" if finding.gain_fraction is None else f"{format_share(finding.gain_fraction)} of the step"
    head = element(
        "h3",
        element("span", finding.grade.value, class_=f"grade {finding.grade.value}"),
        element("span", finding.rule),
        element("span", finding.code, class_="note"),
        element("span", gain, class_="gain"),
    )
    parts = [head, element("p", finding.message)]
    parts += [element("p", "Fix: ", element("code", fix_text(finding)), _saves(finding))] if finding.fix else []
    if page:
        title, _, rest = page.strip().partition("\n")
        why = element("div", element("p", element("strong", title)), markdown(rest))
        parts.append(element("details", element("summary", "Why, and when it matters"), why))
    return element("article", *parts, class_="finding")


def _saves(finding: Finding) -> str:
    if finding.gain_s is None:
        return ""
    interval = ""
    if finding.gain_low_s is not None and finding.gain_high_s is not None:
        interval = f" (80%: {format_seconds(finding.gain_low_s)} to {format_seconds(finding.gain_high_s)})"
    return f" saves {format_seconds(finding.gain_s)}{interval} at equal work; {finding.source.value}"


def _shapes(advice: Advice, records: Mapping[str, Any]) -> Markup:
    search = advice.search
    parts = [element("h2", "Faster shapes of the same size", id="shapes")]
    parts.append(
        element(
            "p",
            f"{search.evaluated:,} shapes of the same size were compared, out of a grid of {search.grid_size:,}.",
            class_="note",
        )
    )
    if search.candidates:
        note = "Strong colours are on the Pareto front of time, decoding time, parameters and number of fields changed."
        parts += [_figure(records, "candidates", note), _candidates(advice)]
    else:
        parts.append(element("p", "None is predicted to be faster: keep this one."))
    parts.append(element("h3", "One field at a time"))
    parts.append(_figure(records, "sawtooth", "Only this field moves, and what follows from it."))
    parts.append(_figure(records, "sawtooth_width", "Steps are tiles, waves and alignment gained or lost."))
    if len(advice.gpus) > 1 and search.candidates:
        parts += [element("h3", "On each device"), _per_gpu(advice)]
    parts.append(_list("How stable this is", stability_lines(search.stability)))
    return join(parts)


def _candidates(advice: Advice) -> Markup:
    columns = [
        Column(head="change", number=False),
        Column(head="speedup", explains="time of the baseline over time of this shape"),
        Column(head="80% interval", explains="errors common to both shapes cancel"),
        Column(head="sure", explains="probability that it is faster at all"),
        Column(head="parameters"),
        Column(head="FLOPs"),
        Column(head="time"),
        Column(head="quality", explains="what the quality guard knows about such a change", number=False),
    ]
    edit = advice.search.smallest_edit
    shown = with_candidate(advice.search.candidates, edit)
    at = position(shown, edit)
    rows = [
        (
            join([arrows(short_change(c.changed)), _tag("smallest edit") if i == at else ""]),
            speedup_text(c.speedup),
            f"{float(c.speedup_low):.2f} to {float(c.speedup_high):.2f}",
            sure_text(float(c.confidence)),
            signed_share(float(c.params_change), 2),
            signed_share(float(c.flops_change)),
            format_seconds(float(c.time_s)),
            _quality(c.quality),
        )
        for i, c in enumerate(shown)
    ]
    return table(columns, rows, caption="Candidates, best first; the smallest edit is marked", highlight=at)


def arrows(words: str) -> str:
    """``32 -> 20`` with an arrow that no line break can tear."""
    return words.replace(" -> ", " \u2192 ")


def _tag(words: str) -> Markup:
    return element("span", words, class_="tag")


def _quality(quality: Quality) -> Markup:
    """What moved that a model's loss may depend on, with the range that evidence covers and its source."""
    word = "within published evidence" if quality.within_evidence else "outside published evidence"
    checks = [
        f"{check.name} {check.baseline:.4g} \u2192 {check.value:.4g} (range {check.low:.4g} to {check.high:.4g}; "
        f"{check.source})"
        for check in quality.checks
    ]
    lines = [*checks, *quality.notes]
    if not lines:
        return element("span", word)
    items = element("ul", *(element("li", line) for line in lines))
    return element("details", element("summary", word), element("div", items))


def _per_gpu(advice: Advice) -> Markup:
    search = advice.search
    columns = [Column(head="change", number=False), *(Column(head=gpu.name) for gpu in advice.gpus)]
    shown = with_candidate(search.candidates, search.minimax)
    at = position(shown, search.minimax)
    loss = format_share(search.regret)
    caption = f"Speedup on each device; the shape of least regret is at most {loss} slower than a device's own best"
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
    """Every operator with its terms, longest first."""
    columns = [
        Column(head="operator", number=False),
        Column(head="kind", number=False),
        Column(head="pass", number=False),
        Column(head="count"),
        Column(head="size", explains="(batch x) m x n x k of C[m,n] = A[m,k] B[k,n]"),
        Column(head="time", explains="all executions of one step"),
        Column(head="80% low"),
        Column(head="80% high"),
        Column(head="share", explains="of the step"),
        Column(head="bound by", number=False, explains="the largest term"),
        Column(head="tile", number=False, explains="output tile / split of k"),
        Column(head="waves", explains="ceil(blocks / SMs)"),
        Column(head="efficiency", explains="tile efficiency x wave efficiency"),
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
    return table(columns, rows, caption=f"One step: {step}; {estimate.source.value}")


def _list(title: str, lines: list[str]) -> Markup:
    if not lines:
        return Markup("")
    return join([element("h3", title), element("ul", *(element("li", line) for line in dict.fromkeys(lines)))])


READING = (
    ("80% interval", "Eight of ten measurements are expected inside. Speedups have narrower ones than times, because "
     "errors that both shapes share cancel."),
    ("measured, calibrated, analytic", "A time looked up; a formula fitted on this device; a formula with the "
     "datasheet's rates and the generation's typical shares."),
    ("time of a GEMM", "max(waves x time of a tile, bytes / bandwidth) + launch: tiles are dealt to SMs in waves, "
     "memory traffic runs beside them."),
    ("tile efficiency", "m n / (ceil(m / tile_m) tile_m x ceil(n / tile_n) tile_n): what is left when the matrix is "
     "covered with whole tiles."),
    ("wave efficiency", "blocks / (waves x SMs): the last wave may leave SMs idle. 109 blocks on 108 SMs take as long "
     "as 216."),
    ("alignment", "Operands whose contiguous length is no multiple of 16 bytes leave the fast path; longer powers of "
     "two help up to the device's preference."),
    ("roofline", "min(peak, intensity x bandwidth). Left of the ridge a kernel waits for memory, right of it for "
     "arithmetic."),
    ("mfu", "FLOPs of products per second over the dense peak."),
    ("same size", "Parameters within the tolerance; the change in FLOPs is shown beside the speedup."),
    ("smallest edit", "The candidate with the fewest changed fields that still gets most of the best one's gain."),
)  # fmt: skip


def _how_to_read() -> Markup:
    items = [item for term, words in READING for item in (element("dt", term), element("dd", words))]
    return join([element("h2", "How to read this", id="reading"), element("dl", *items, class_="reading")])


def _sources(advice: Advice) -> Markup:
    parts = [element("h2", "Sources", id="sources")]
    for gpu in advice.gpus:
        lines = _gpu_lines(gpu)
        parts += [element("h3", gpu.name), element("ul", *(element("li", line) for line in lines))]
    return join(parts)


def _gpu_lines(gpu: Gpu) -> list[str]:
    """Datasheet and calibration of one device, each with its source."""
    fields: dict[str, list[str]] = {}
    for name, document in gpu.sources.items():
        fields.setdefault(str(document), []).append(str(name))
    lines = [f"{', '.join(sorted(names))}: {document}" for document, names in fields.items()]
    known = load_calibration(gpu)
    for section, entry in sorted(known.provenance.items()):
        lines.append(f"calibration of {section}: {_fit_words(entry)}")
    if known.kin:
        lines.append(f"GEMM coefficients borrowed from {known.kin}")
    if not known.provenance:
        lines.append(f"not calibrated on this device: typical shares of the {gpu.generation} generation")
    if gpu.price_usd_per_hour is not None:
        lines.append(f"price {gpu.price_usd_per_hour} USD per hour: {gpu.price_source} ({gpu.price_date})")
    return lines


FIT_KEYS = ("rows", "mape", "median", "p90", "bias")
"""What is shown of a fit's errors: rows they were taken over, mean, median and 90th percentile, and bias."""


def _fit_words(entry: Mapping[str, Any]) -> str:
    """A calibration's source, date and held-out errors in words."""
    plain = [f"{key} {value}" for key, value in entry.items() if not isinstance(value, Mapping)]
    fits = {key: value for key, value in entry.items() if isinstance(value, Mapping)}
    errors = fits.get("held_out", next(iter(fits.values()), {}))
    shown = [f"{key} {errors[key]:,.4g}" for key in FIT_KEYS if key in errors]
    return "; ".join([*plain, *([f"held-out errors: {', '.join(shown)}"] if shown else [])])


def _footer(advice: Advice, date: str) -> Markup:
    from sartor import __version__

    made = f"sartor {__version__}" + (f", {date}" if date else "")
    return element(
        "footer",
        element("p", f"Made by {made}. Predictions, not measurements, unless a source says so."),
        element("p", "Figures are drawn by Vega, Vega-Lite and vega-embed (BSD-3-Clause), contained in this file."),
    )
