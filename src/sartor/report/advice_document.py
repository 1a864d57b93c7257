"""``advise`` for people: verdict, where the time goes, findings, faster shapes, sensitivity."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from sartor.answers.advice import CANDIDATE, MIX, WANT
from sartor.answers.field import number, text
from sartor.cost.correction.calibration import load_calibration
from sartor.hardware.cluster import dated_price
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.report import document as d
from sartor.report.grid import (
    Cell,
    Grid,
    GridColumn,
    Markup,
    element,
    field_grid,
    grid_of,
    grid_table,
    join,
    words_column,
)
from sartor.report.lint_formats import FindingsText, findings_markup
from sartor.report.points import operator_times
from sartor.report.table_estimate import operators_grid, times_grid, totals_line
from sartor.report.verdict import advice_lines, verdict_parts, why_to_keep, worth_words
from sartor.report.words import EVIDENCE_WORDS, arrows, short_change, speedup_text, workload_text
from sartor.units import format_count, format_seconds, format_share

if TYPE_CHECKING:
    from rich.console import RenderableType

    from sartor.answers.advice import Advice
    from sartor.cost.uncertainty import Comparison
    from sartor.model.workload import ModelReading
    from sartor.shapes.mixes import Mix
    from sartor.shapes.quality import Quality, QualityCheck
    from sartor.shapes.search import Candidate, CoDesign, ShapeSearch

SHOWN_MIXES = 8
ROWS, MOST_FINDINGS, MOST_OPERATORS, SHARE_ON_SCREEN = 4, 2, 5, 0.03
"""Rows of a table of shapes, findings, operators, and the least share of a listed operator, on one screen."""
MIXES = "Equal total and active parameters, all else as it is; gains at equal work with their 80% intervals"
WORSE = "controlled studies found such a change worse"


def advice_view(advice: Advice, *, verbose: bool = False) -> RenderableType:
    """The answer in the terminal: on one screen unless ``verbose``."""
    return d.document_text(_blocks(advice), verbose=verbose)


def advice_page(advice: Advice, *, date: str = "") -> str:
    """The offline page (UTF-8, under 1.5 MB). ``date`` is printed as given. Raises ``MissingExtraError`` without the
    extra ``report``."""
    from sartor.report.figures import advice_points

    question = advice.base.question
    document = d.Document(
        title=f"{question.reading.shape.name or 'model'} on {question.gpu.name}",
        question=f"{workload_text(question.workload)}; {_params(question.reading)}",
        command="advise",
        blocks=_blocks(advice),
        records=advice_points(advice),
        glossary=True,
        after=(d.PageBlock(markup=lambda: _sources_section(advice), anchor="sources", link="Sources"),),
    )
    return d.document_page(document, date)


def _params(reading: ModelReading) -> str:
    total, active = float(reading.num_params), float(reading.num_active_params)
    if active == total:
        return f"{format_count(total)} parameters"
    return f"{format_count(total)} parameters, {format_count(active)} active"


def _blocks(advice: Advice) -> list[d.PageBlock]:
    """Of a served model the deployments; the rest, of its decoding step, in full answers only."""
    if not advice.served:
        return _of_one_pass(advice)
    from sartor.report.table_serving import served_blocks  # with the figures of deployments

    return [*served_blocks(advice), *d.in_full(_of_one_pass(advice))]


def _of_one_pass(advice: Advice) -> list[d.PageBlock]:
    base, search = advice.base, advice.search
    question, unread = base.question, base.question.reading.unread
    times = partial(operator_times, base.microbatch)
    most_findings = MOST_FINDINGS - bool(base.cannot_run)  # the first lines are longer by what would run
    return [
        d.opening(advice_lines(advice), bad=base.fits is False),
        d.PageBlock(
            markup=lambda: element("div", *(element("p", arrows(part)) for part in verdict_parts(advice)),
                                   class_="verdict")
        ),
        d.PageBlock(cards=_cards(advice), place=d.Place.PAGE),
        d.section("Where the time goes", "time", "Time"),
        d.figure_block("time_by_operator", "Bars: all executions of an operator in one step. Lines: 80% interval."),
        d.figure_block("roofline", "Discs: the current shape. Open diamonds: after the recommended change."),
        d.grid_block(times_grid(times(small=SHARE_ON_SCREEN, most=MOST_OPERATORS)), d.Place.SHORT),
        d.grid_block(times_grid(times(small=0.02)), d.Place.LONG),
        d.PageBlock(view=lambda: totals_line(base), place=d.Place.LONG),
        d.section("Findings, and what each costs", "findings", "Findings"),
        d.figure_block("findings"),
        d.PageBlock(view=lambda: FindingsText(advice.findings, unread, most_findings), place=d.Place.SHORT),
        d.PageBlock(view=lambda: FindingsText(advice.findings, unread), place=d.Place.LONG),
        d.PageBlock(markup=lambda: findings_markup(advice.findings, unread)),
        *_shapes(advice),
        d.section("Every operator", "operators", "Operators", d.Place.PAGE),
        d.grid_block(operators_grid(base.microbatch), d.Place.PAGE),
        *d.assumed_blocks(question.assumptions, search.assumptions),
    ]  # fmt: skip


def _cards(advice: Advice) -> list[tuple[str, str, str]]:
    """The four key figures."""
    base, search = advice.base, advice.search
    grades = [finding.grade.value for finding in advice.findings]
    counted = ", ".join(f"{grades.count(g)} {g}" for g in ("error", "warn", "info") if g in grades) or "none"
    step = f"80%: {format_seconds(float(base.low_s))} to {format_seconds(float(base.high_s))}"
    rate = f"{format_count(float(base.tokens_per_s_per_device))} tokens/s per device"
    shape = ("this one", f"no sure gain in {search.evaluated:,} compared")
    if search.candidates:
        best = search.candidates[0]
        low, high = speedup_text(best.efficiency_low), speedup_text(best.efficiency_high)
        shape = (speedup_text(best.efficiency_gain), f"at equal {search.equal.value}; 80%: {low} to {high}")
    return [
        ("Step time", format_seconds(float(base.time_s)), step),
        ("Share of dense peak (MFU)", format_share(float(base.mfu)), rate),
        ("Findings", str(len(grades)), counted),
        ("Best shape of this size", *shape),
    ]


def _shapes(advice: Advice) -> list[d.PageBlock]:
    """Candidates, mixtures, one field at a time, devices, one shape for all, other settings."""
    search = advice.search
    compared = f"Compared {search.evaluated:,} shapes of the same size out of a grid of {search.grid_size:,}."
    place = d.Place.BOTH if search.candidates else d.Place.REST
    blocks = [d.section(f"Shapes that gain at equal {search.equal.value}", "shapes", "Shapes", place)]
    blocks += [d.PageBlock(words=compared, place=d.Place.PAGE)]
    if search.candidates:
        note = "Strong colours: Pareto front of step time, decoding time, parameters and number of changed fields."
        blocks += [d.figure_block("candidates", note), *d.cut_blocks(_candidates_grid(search), ROWS)]
        blocks += [d.PageBlock(words=_legend(search), style="dim", place=d.Place.LONG)]
    else:
        blocks += [d.PageBlock(words=why_to_keep(advice), place=d.Place.REST)]
    if search.mixes:
        mixes = [d.section("Mixtures of experts of this size"), d.grid_block(_mixes_grid(search.mixes))]
        blocks += d.in_full([*mixes, d.PageBlock(words=f"{MIXES}; worse = {WORSE}", style="dim", place=d.Place.TEXT)])
    blocks += [
        d.section("One field at a time", place=d.Place.PAGE),
        d.figure_block("sawtooth", "Only this field changes, and the sizes derived from it."),
        d.figure_block("sawtooth_width", "Steps come from tiles, waves and alignment."),
    ]
    if len(advice.gpus) > 1 and search.candidates:
        blocks += [d.section("On each device"), *d.cut_blocks(_per_gpu_grid(advice), ROWS)]
    if advice.codesign is not None:
        blocks += [d.section("One shape for all"), *_codesign(advice.codesign)]
    blocks += [d.PageBlock(words=words) for words in worth_words(advice)]
    return [*blocks, d.bullets_block("For other settings", [str(line) for line in search.stability], d.Place.REST)]


def _candidates_grid(search: ShapeSearch) -> Grid:
    """Shapes of the same size, best first: gain at equal work with interval, confidence, change in parameters, and
    total speedup (a smaller model adds to the gain)."""
    edit = search.smallest_edit
    change = text("changed", "change", path=lambda candidate: _marked(candidate, edit, "smallest edit"), form=_as_it_is)
    shown = _with_candidate(search.candidates, edit)
    caption = "Candidates, best first; the smallest edit is marked"
    return field_grid(caption, (change, *CANDIDATE, LOSS, QUALITY), shown, marked=_position(shown, edit))


def _as_it_is(cell: Cell) -> Cell:
    return cell


CHANGE = text("changed", "change", path=lambda mix: _change(mix.changed), form=_as_it_is)
LOSS = number(
    "loss",
    "loss",
    path=lambda candidate: float(candidate.loss.nats),
    form="{:+z.3f}".format,
    help="expected change of the training loss at equal tokens [nats]",
)
QUALITY = text(
    "quality",
    "quality",
    path=lambda candidate: _quality(candidate.quality),
    form=_as_it_is,
    help=f"published evidence on model quality for such a change: {EVIDENCE_WORDS}; worse = {WORSE}",
)


def _mixes_grid(mixes: Sequence[Mix]) -> Grid:
    """Other mixtures of experts: gain in training and in decoding, and evidence on quality."""
    gains = (
        number(phase, phase, path=lambda mix, phase=phase: mix.gains[phase], form=_gain_text, help="gain at equal work")
        for phase in mixes[0].gains
    )
    return field_grid(MIXES, (CHANGE, *gains, *MIX, LOSS, QUALITY), _shown_mixes(mixes))


def _per_gpu_grid(advice: Advice) -> Grid:
    """Speedup of each candidate on each device; the one with least regret is marked."""
    search, names = advice.search, [gpu.name for gpu in advice.gpus]
    shown = _with_candidate(search.candidates, search.minimax)
    rows = [
        (
            _marked(candidate, search.minimax, "least regret"),
            *(speedup_text(candidate.per_gpu[name]) if name in candidate.per_gpu else "-" for name in names),
        )
        for candidate in shown
    ]
    loss = format_share(search.regret)
    caption = f"Speedup on each device; the least-regret shape is at most {loss} slower than each device's best"
    return grid_of(caption, ("change", *names), rows, marked=_position(shown, search.minimax))


def _codesign(design: CoDesign) -> list[d.PageBlock]:
    """The common shape, next to the best shape for each device and phase alone."""
    shape = short_change(design.changed) if design.changed else "keep this shape"
    words = f"{shape}: {design.rule.value} regret {format_share(design.regret)}"
    if design.changed:
        words += f", against {format_share(design.baseline_regret)} as it is"
    alone = text(
        "alone", "alone it would want", path=lambda want: short_change(want.alone) if want.alone else "this shape"
    )
    grid = field_grid("What each device and phase would want", (alone, *WANT), design.wants)
    return [d.PageBlock(words=words, style="bold"), *d.in_full([d.grid_block(grid)])]


def _legend(search: ShapeSearch) -> str:
    """The meaning of the columns."""
    worse = f", worse = {WORSE}" if any(candidate.quality.adverse for candidate in search.candidates) else ""
    return (
        "gain: speedup at equal parameters and FLOPs; sure: probability of a gain; speedup: with what a smaller model "
        f"adds; loss: expected change at equal tokens [nats]; quality: {EVIDENCE_WORDS}{worse}"
    )


def _gain_text(gain: Comparison) -> str:
    """``1.08x (0.98-1.19)``."""
    return f"{speedup_text(gain.speedup)} ({float(gain.low):.2f}-{float(gain.high):.2f})"


def quality_word(quality: Quality) -> str:
    """How much is known about a change's effect on quality."""
    return "worse" if quality.adverse else quality.evidence.value


def _shown_mixes(mixes: Sequence[Mix]) -> list[Mix]:
    """The first few, which gain most in the objective's phase, and the best of every other phase."""
    best = [max(mixes, key=lambda mix: mix.gains[phase].speedup) for phase in mixes[0].gains]
    chosen = [*mixes[: SHOWN_MIXES - 1], *best]
    return [mix for mix in mixes if any(mix is choice for choice in chosen)]


def _with_candidate(candidates: Sequence[Candidate], special: Candidate | None) -> list[Candidate]:
    """The candidates, and the special one if it is not among them."""
    return [*candidates] if special is None or _position(candidates, special) >= 0 else [*candidates, special]


def _position(candidates: Sequence[Candidate], special: Candidate | None) -> int:
    """Position of a candidate in the list, -1 if absent."""
    return next((i for i, c in enumerate(candidates) if special is not None and c.changed == special.changed), -1)


def _marked(candidate: Candidate, special: Candidate | None, words: str) -> Cell:
    """A candidate's change, with a mark on the special one."""
    change = short_change(candidate.changed)
    if special is None or candidate.changed != special.changed:
        return Cell(change, arrows(change))
    return Cell(f"{change}  <- {words}", join([arrows(change), element("span", words, class_="tag")]))


def _change(changed: Mapping[str, tuple[object, object]]) -> Cell:
    change = short_change(changed)
    return Cell(change, arrows(change))


def _quality(quality: Quality) -> Cell:
    """A word; on the page also every quantity with evidence on the loss, changed ones first: its values, studied range
    and source."""
    return Cell(quality_word(quality), _evidence(quality))


def _evidence(quality: Quality) -> Markup:
    order: Iterable[QualityCheck] = sorted(quality.checks, key=lambda check: not check.moved)
    checks = [
        f"{check.name} {_moves(check)} (range {check.low:.3g} to {check.high:.3g}; {check.source})" for check in order
    ]
    items = element("ul", *(element("li", line) for line in [*quality.notes, *checks]))
    return element("details", element("summary", quality_word(quality)), element("div", items))


def _moves(check: QualityCheck) -> str:
    return f"{check.baseline:.4g} \u2192 {check.value:.4g}" if check.moved else f"stays {check.value:.4g}"


def _sources_section(advice: Advice) -> Markup:
    """Per device: its datasheet field by field, and which measurements its calibration is fitted to."""
    parts = [element("h2", "Sources", id="sources")]
    for gpu in advice.gpus:
        parts += [element("h3", gpu.name), _datasheet(gpu), _calibration(gpu)]
        parts += [element("p", line, class_="note") for line in _gpu_lines(gpu)]
    return join(parts)


def _datasheet(gpu: Gpu) -> Markup:
    fields: dict[str, list[str]] = {}
    for name, document in gpu.sources.items():
        fields.setdefault(str(document), []).append("everything else" if name == "all" else str(name))
    columns = [words_column("field"), words_column("document")]
    rows = [(", ".join(sorted(names)), document) for document, names in fields.items()]
    return grid_table(grid_of(f"Datasheet of {gpu.name}", columns, rows))


def _calibration(gpu: Gpu) -> Markup:
    """Fitted parts, one row per source: measurements, rows, and errors on held-out rows."""
    fits: dict[str, tuple[list[str], JsonMap]] = {}
    known, with_units = load_calibration(gpu), {f"gemm.{dtype.value}" for dtype in gpu.peak_flops_per_s}
    for section, entry in sorted(known.provenance.items()):
        if entry and (section in with_units | known.calibrated or not section.startswith("gemm.")):
            fits.setdefault(str(entry.get("source", section)), ([], entry))[0].append(section)
    if not fits:
        return Markup("")
    columns = [
        words_column("part"),
        GridColumn(head="mean error", explains="mean relative error on held-out rows"),
        GridColumn(head="median", explains="median relative error on held-out rows"),
        GridColumn(head="p90", explains="90th percentile of the relative error on held-out rows"),
        GridColumn(head="rows", explains="held-out rows"),
        GridColumn(head="date"),
        words_column("measurements"),
    ]
    rows = [_fit_row(", ".join(names), entry) for names, entry in fits.values()]
    return grid_table(grid_of(f"Calibration of {gpu.name}, with errors on rows the fit never saw", columns, rows))


def _fit_row(names: str, entry: JsonMap) -> tuple[str, ...]:
    nested = {key: value for key, value in entry.items() if isinstance(value, Mapping)}
    errors = nested.get("held_out", next(iter(nested.values()), {}))
    shares = (format_share(errors[key]) if key in errors else "" for key in ("mape", "median", "p90"))
    rows = f"{errors['rows']:,.0f}" if "rows" in errors else ""
    words = (str(entry[key]) for key in ("source", "lender", "note") if key in entry)
    return names, *shares, rows, str(entry.get("date", "")), "; ".join(words)


def _gpu_lines(gpu: Gpu) -> list[str]:
    """Where the calibration and the price come from."""
    lines, known = [], load_calibration(gpu)
    if any(entry.get("lender") == "joint" for name, entry in known.provenance.items() if name.startswith("gemm")):
        lines.append("GEMM calibration: joint fit of several generations, applied to this device's datasheet")
    elif known.relative:
        lines.append(f"GEMM calibration borrowed from {known.relative}")
    if not known.provenance:
        lines.append(f"not calibrated: typical efficiencies of the {gpu.generation} generation")
    if gpu.price_usd_per_hour is not None:
        lines.append(f"price {gpu.price_usd_per_hour} USD per hour: {dated_price(gpu.price_source, gpu.price_date)}")
    return lines
