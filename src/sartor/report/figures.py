"""The figures of ``advise`` as records, and figures of any answer as PNG files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.files import write_atomic
from sartor.json_types import JsonDict, JsonMap
from sartor.report.charts import FILE, Frame, draw, to_png
from sartor.report.points import Gains, Pareto, operator_times, roofline_points
from sartor.report.sweep import sawtooth_points
from sartor.report.words import change_text, printable, short_change, speedup_text
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.answers.advice import Advice
    from sartor.rules.rule import Finding
    from sartor.shapes.search import Candidate, ShapeSearch


def advice_points(advice: Advice) -> JsonDict:
    """Records by figure name; empty figures are left out."""
    after = None if advice.after is None else advice.after.microbatch
    matters, width = sawtooth_points(advice)
    found: JsonDict = {
        "time_by_operator": operator_times(advice.base.microbatch),
        "roofline": roofline_points(advice.base.microbatch, after),
        "findings": gains_points(advice.findings),
        "candidates": pareto_points(advice.search),
        "sawtooth": matters,
        "sawtooth_width": width,
    }
    return {name: points for name, points in found.items() if points is not None}


def gains_points(findings: Iterable[Finding]) -> Gains | None:
    """Findings whose fix saves time, most expensive first; None if there are none."""
    gaining = (f for f in findings if (f.gain_fraction or 0.0) > 0 and not f.remark)
    costly = sorted(gaining, key=lambda f: -(f.gain_fraction or 0.0))
    if not costly:
        return None
    first = costly[0]
    title = f"{first.rule} costs most; its fix saves {format_share(first.gain_fraction or 0.0)} of the step"
    return Gains(
        title=title,
        rules=tuple(f.rule for f in costly),
        grades=tuple(f.grade.value for f in costly),
        messages=tuple(printable(f.message) for f in costly),
        gain_fraction=np.asarray([f.gain_fraction or 0.0 for f in costly]),
    )


def pareto_points(search: ShapeSearch) -> Pareto | None:
    """The candidates and the Pareto front, the recommended one first and highest; None if nothing surely gains.

    Points of the front that are not candidates have no interval (NaN); those above the recommended one, whose extra
    gain is within noise or not sure, are left out.
    """
    candidates = list(search.candidates)
    edit = search.smallest_edit
    if edit is not None and all(c.changed != edit.changed for c in candidates):
        candidates.append(edit)
    if not candidates:
        return None
    on_front = [dict(point.changed) for point in search.front]
    listed = [dict(c.changed) for c in candidates]
    best_gain = max(c.efficiency_gain for c in candidates)
    below = [point for point in search.front if point.changed and point.efficiency_gain <= best_gain]
    others = [point for point in below if dict(point.changed) not in listed]
    nothing = np.full(len(others), np.nan)
    everything: list[Any] = [*candidates, *others]
    index = next((i for i, c in enumerate(candidates) if edit is not None and c.changed == edit.changed), -1)
    return Pareto(
        title=_search_title(candidates[0], edit),
        labels=tuple(short_change(c.changed) for c in everything),
        gain=_column(everything, "efficiency_gain"),
        low=np.concatenate([_column(candidates, "efficiency_low"), nothing]),
        high=np.concatenate([_column(candidates, "efficiency_high"), nothing]),
        params_change=_column(everything, "params_change"),
        num_changed=np.asarray([c.num_fields for c in everything], dtype=np.int64),
        on_front=np.asarray([dict(c.changed) in on_front for c in everything]),
        best=0,
        smallest_edit=index,
    )


def _search_title(best: Candidate, edit: Candidate | None) -> str:
    if edit is None or edit.changed == best.changed:
        return f"{change_text(best.changed)} is {speedup_text(best.efficiency_gain)} as fast at equal work"
    return (
        f"The smallest edit, {change_text(edit.changed)}, is {speedup_text(edit.efficiency_gain)} as fast at equal "
        f"work; the best shape of the same size {speedup_text(best.efficiency_gain)}"
    )


def _column(candidates: Sequence[Any], name: str) -> Any:
    return np.asarray([float(getattr(c, name)) for c in candidates])


def export_pngs(records: JsonMap, folder: str | Path, frame: Frame = FILE) -> tuple[Path, ...]:
    """Every record as ``folder/NAME.png``, drawn without a browser; files are written atomically.

    Raises ``MissingExtraError`` without the extra ``report``, ``InputError`` if the folder cannot be written.
    """
    drawn = {name: to_png(draw(points, frame)) for name, points in records.items()}
    return tuple(write_atomic(Path(folder) / f"{name}.png", data) for name, data in drawn.items())
