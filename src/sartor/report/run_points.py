"""A diagnosed run's figures: waterfall from the ideal to the measured step, slowest operators, timeline of a steady
step. First their records, then what draws them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from sartor.answers.diagnosis import LogDiagnosis, LogFacts, part_words
from sartor.json_types import JsonDict
from sartor.report.frame import FILE, Chart, Frame, Sheet, columns, falling, rows_height, time_unit, unique, when
from sartor.report.plan_words import step_parts
from sartor.report.words import printable
from sartor.units import format_seconds

if TYPE_CHECKING:
    from sartor.answers.diagnosis import RunPart, TraceDiagnosis
    from sartor.plans.result import PricedPlan
    from sartor.step.measured_run import PricedKernels, Stretch

Numbers = npt.NDArray[np.float64]

MOST_OPERATORS = 12
"""Most operators drawn, those that lose most first."""
LEAST = 0.001
"""Share of the step below which parts are combined."""
IDEAL = "at the peak rate"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFall:
    """A measured step as steps of a waterfall: what its FLOPs take at the peak rate, then what each part adds."""

    title: str
    parts: tuple[str, ...]
    what: tuple[str, ...]
    seconds: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowOperators:
    """Seconds per call of operators [n], measured and predicted with its 80% interval."""

    title: str
    names: tuple[str, ...]
    measured_s: Numbers
    predicted_s: Numbers
    low_s: Numbers
    high_s: Numbers


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTimeline:
    """One step as boxes on lanes; the predicted step is a lane of its own."""

    title: str
    lanes: tuple[str, ...]
    lane: tuple[str, ...]
    kind: tuple[str, ...]
    begin_s: Numbers
    end_s: Numbers
    kernels: tuple[str, ...]


def fall_points(step_s: float, parts: Sequence[RunPart], advice: str = "") -> RunFall:
    """The waterfall of the run's parts: each adds its points of MFU to the ideal step. Its title names the part that
    ``advice`` is first about, else the largest."""
    share = step_s / 100
    points = [100 * part.share if part.points_of_mfu is None else part.points_of_mfu for part in parts]
    lost = [
        (part_words(part.kind), _first(part.evidence), mfu * share) for part, mfu in zip(parts, points, strict=True)
    ]
    shown = [row for row in lost if abs(row[2]) >= LEAST * step_s]
    ideal = step_s - sum(seconds for *_, seconds in lost)
    rest = sum(seconds for *_, seconds in lost) - sum(seconds for *_, seconds in shown)
    rows = [(IDEAL, "the FLOPs of the step at the dense peak", ideal), *shown, ("smaller parts", "", rest)]
    rows = [row for row in rows if abs(row[2]) > 1e-6 * step_s]
    most = max(shown, key=lambda row: row[2], default=("nothing", "", 0.0))[0]
    worst = f"the first to mend is {part_words(advice)}" if advice else f"most {{}}is {most}"
    known = rows[0][0] == IDEAL
    return RunFall(
        title=f"From the ideal step ({format_seconds(ideal)}) to the measured one ({format_seconds(step_s)}): "
        f"{worst.format('beyond it ')}"
        if known
        else f"The measured step ({format_seconds(step_s)}) by its parts: {worst.format('')}",
        parts=tuple(row[0] for row in rows),
        what=tuple(printable(row[1]) for row in rows),
        seconds=np.array([row[2] for row in rows]),
    )


def _first(evidence: Sequence[str]) -> str:
    return evidence[0] if evidence else ""


def run_points(answer: LogDiagnosis | LogFacts | TraceDiagnosis) -> JsonDict:
    """Records by figure name; empty figures are left out."""
    if isinstance(answer, LogFacts):
        return {}
    if isinstance(answer, LogDiagnosis):
        return {"fall": fall_points(answer.measured.step_s, answer.run_parts)}
    points: JsonDict = {
        "fall": fall_points(answer.step_s, answer.run_parts, answer.losses[0].kind.value if answer.losses else ""),
        "operators": operator_points(answer.priced),
        "timeline": _timeline_points(answer.stretches, answer.predicted),
    }
    return {name: record for name, record in points.items() if record is not None}


def worst_first(priced: Sequence[PricedKernels]) -> list[PricedKernels]:
    """Sorted by measured minus predicted seconds, largest first."""
    return sorted(priced, key=lambda part: part.predicted_s - part.seconds)


def operator_points(priced: Sequence[PricedKernels]) -> SlowOperators | None:
    """The operators that lose most against their prediction; None if none has one."""
    from sartor.cost.cost import interval_80

    worst = worst_first(priced)[:MOST_OPERATORS]
    if not worst:
        return None
    counts = np.array([part.count for part in worst])
    predicted = np.array([part.predicted_s for part in worst]) / counts
    low, high = interval_80(predicted, np.array([part.log_sigma for part in worst]))
    return SlowOperators(
        title=f"Operators against their prediction, those that lose most first: {printable(worst[0].name)}",
        names=tuple(printable(part.name) for part in worst),
        measured_s=np.array([part.seconds for part in worst]) / counts,
        predicted_s=predicted,
        low_s=np.asarray(low),
        high_s=np.asarray(high),
    )


def _timeline_points(stretches: Sequence[Stretch], predicted: PricedPlan | None) -> RunTimeline | None:
    """A steady step as it ran, next to the predicted parts in sequence."""
    if not stretches:
        return None
    boxes = [
        (
            f"measured, {part.lane}",
            part.lane if part.kind == part.lane else part_words(part.kind),
            part.begin_s,
            part.end_s,
            printable(part.kernels),
        )
        for part in stretches
    ]
    at = 0.0
    for words, seconds in step_parts(predicted) if predicted else []:
        boxes.append(("predicted", words, at, at + seconds, ""))
        at += seconds
    return RunTimeline(
        title="The steady step nearest the mean, as it ran"
        + (", and the predicted step next to it" if predicted else ""),
        lanes=tuple(dict.fromkeys(box[0] for box in boxes)),
        lane=tuple(box[0] for box in boxes),
        kind=tuple(box[1] for box in boxes),
        begin_s=np.array([box[2] for box in boxes]),
        end_s=np.array([box[3] for box in boxes]),
        kernels=tuple(box[4] for box in boxes),
    )


# ---------------------------------------------------------------------------------------------------- drawing


def draw_run_fall(points: RunFall, frame: Frame = FILE) -> Chart:
    """A waterfall: each part starts where the previous ends; a run faster than predicted steps back."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.seconds.sum()))
    theme, labels = sheet.theme, unique(points.parts)
    levels = [_level(label, seconds, labels[0] == IDEAL) for label, seconds in zip(labels, points.seconds, strict=True)]
    rows = falling(part=labels, level=levels, what=[what or "" for what in points.what], size=points.seconds * scale)
    paint = {IDEAL: theme.blue, "taken": theme.blue, "lost": theme.vermillion, "gained": theme.green}
    used = [level for level in paint if level in levels]
    tips = sheet.hover("part:N", ("size:Q", f"time [{unit}]", ".3g"), ("share:Q", "share of step", ".1%"), "what:N")
    bar = sheet.bars(rows, "part", labels).encode(
        x=sheet.x("from:Q", f"step [{unit}]"),
        x2="to:Q",
        color=sheet.colour("level", used, [paint[level] for level in used]),
        tooltip=tips,
    )
    return sheet.finish(bar, points.title, height=rows_height(len(labels)))


def _level(label: str, seconds: float, known: bool) -> str:
    """The colour class of a part, relative to the ideal step if that is known."""
    if label == IDEAL:
        return IDEAL
    return "gained" if seconds < 0 else "lost" if known else "taken"


def draw_slow_operators(points: SlowOperators, frame: Frame = FILE) -> Chart:
    """Measured time as a bar, the prediction as a tick with its 80% interval."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.measured_s.max()))
    alt, theme = sheet.alt, sheet.theme
    labels = unique(points.names)
    rows = columns(
        operator=labels,
        measured=points.measured_s * scale,
        predicted=points.predicted_s * scale,
        low=points.low_s * scale,
        high=points.high_s * scale,
        ratio=points.measured_s / points.predicted_s,
    )
    y = sheet.names("operator", labels)
    tips = sheet.hover(
        "operator:N",
        ("measured:Q", f"measured [{unit}]", ".3g"),
        ("predicted:Q", f"predicted [{unit}]", ".3g"),
        ("ratio:Q", "measured / predicted", ".2f"),
    )
    words = ("measured", "predicted, with its 80% interval")
    colour = sheet.colour("what", words, [theme.blue, theme.vermillion])
    bars, ticks = ([row | {"what": what} for row in rows] for what in words)
    bar = sheet.bars(bars, "operator", labels)
    bar = bar.encode(x=sheet.x("measured:Q", f"one call [{unit}]"), color=colour, tooltip=tips)
    tick = sheet.rows(ticks).mark_tick(thickness=3, height=14)
    tick = tick.encode(y=y, x="predicted:Q", color=colour, tooltip=tips)
    chart = alt.layer(bar, sheet.interval(rows, y, tips), tick)
    return sheet.finish(chart, points.title, height=rows_height(len(labels)))


def draw_run_timeline(points: RunTimeline, frame: Frame = FILE) -> Chart:
    """One row per lane, one box per activity."""
    sheet, unit, scale = Sheet.of(frame), *time_unit(float(points.end_s.max()))
    start, end = points.begin_s * scale, points.end_s * scale
    rows = columns(line=points.lane, what=points.kind, start=start, end=end, took=end - start)
    tips = sheet.hover("line:N", "what:N", *when(unit))
    colour = sheet.colour("what", list(dict.fromkeys(points.kind)))
    x = sheet.x("start:Q", f"time since the step began [{unit}]", 8)
    boxes = sheet.spans(rows, points.lanes, x, colour, tips, height=30)
    return sheet.finish(boxes, points.title, height=44 * len(points.lanes))
