"""The figures of ``advise`` as records, the sawtooth among them, and figures of any answer as PNG files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sartor.files import write_atomic
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.model.layer import AttentionMixer
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.report.charts import FILE, Frame, draw, to_png
from sartor.report.points import Gains, Pareto, Sawtooth, operator_times, roofline_points
from sartor.report.words import change_text, printable, short_change, speedup_text
from sartor.shapes.evaluate import Trained, sweep
from sartor.step.coefficients import InRun
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.answers.advice import Advice
    from sartor.rules.rule import Finding
    from sartor.shapes.search import Candidate, ShapeSearch

Integers = npt.NDArray[np.int64]

FINE = 96
"""Values on each side priced one by one around a ragged size."""
COARSE_SHARE = 0.2
"""Range on each side of a round size, as a share of it."""
WIDTHS = ("ffn_hidden_size", "expert_ffn_hidden_size", "hidden_size")
"""Fields that set the tile and wave quantization of the largest GEMMs."""
PREFERRED = ("num_heads", "ffn_hidden_size", "vocab_size", "expert_ffn_hidden_size", "hidden_size")
"""Order in which changed fields are considered: strongest quantization first."""


def _sawtooth_points(advice: Advice) -> tuple[Sawtooth | None, Sawtooth | None]:
    """Sweeps of the most important field and of the width that quantizes into waves; None if the model has no such
    field (or it is the first one)."""
    question, run = advice.base.question, advice.base.run
    ask = (question.workload, question.dims, question.gpu)
    field, after = _what_matters(advice)
    own = question.workload.shape.fields()
    width = next((name for name in WIDTHS if name in own and name != field), "")
    first = sweep_field(*ask, field, after=after, run=run, trained=question.trained) if field else None
    if field in WIDTHS or not width:
        return first, None
    return first, sweep_field(*ask, width, after=_new_value(advice, width), run=run, trained=question.trained)


def _what_matters(advice: Advice) -> tuple[str, int | None]:
    """The most expensive finding's field if the recommended change includes it, else another changed field, else the
    finding's field, else a width; and its new value."""
    own = advice.base.question.workload.shape.fields()
    first = advice.search.smallest_edit
    changed: JsonMap = {} if first is None else first.changed
    costly = sorted(advice.findings, key=lambda f: -(f.gain_fraction or 0.0))
    broken = [f for f in costly if f.field in PREFERRED and f.field in own]
    for field in (*(f.field for f in broken), *PREFERRED):
        if field in changed:
            return field, _new_value(advice, field)
    for finding in broken:
        return finding.field, finding.fix.get(finding.field)
    return next((field for field in WIDTHS if field in own), ""), None


def _new_value(advice: Advice, field: str) -> int | None:
    """The field's value in the recommended change; None if unchanged."""
    first = advice.search.smallest_edit
    return int(first.changed[field][1]) if first is not None and field in first.changed else None


def sweep_field(
    workload: Workload,
    dims: ParallelDims,
    gpu: Gpu,
    field: str,
    *,
    values: Iterable[int] | None = None,
    after: int | None = None,
    run: InRun | None = None,
    trained: Trained | None = None,
) -> Sawtooth | None:
    """Time of a microbatch (of ``run``, in training) or an inference pass for each of ``values`` of ``field`` (default:
    near the model's own), other fields unchanged.

    Derived sizes follow the field (``shapes.sweep``); ``trained`` says how the trainer pads a shape. Invalid values are
    left out; None if fewer than three remain. Raises ``InputError`` for an unknown field.
    """
    now = int(workload.shape.fields().get(field, 1))
    wanted = _values(workload.shape, field, now, after) if values is None else np.unique(np.asarray([*values]))
    known = {gpu.name: run.calibration} if run else None
    found = sweep(
        workload, [gpu], dims, field=field, values=wanted, calibrations=known,
        kernels=run.kernels if run else None, trained=trained,
    )  # fmt: skip
    time_s = found.time_s[gpu.name]
    runs = np.isfinite(time_s)
    if runs.sum() < 3:
        return None
    wanted, time_s = found.values[runs], time_s[runs]
    rate = found.matmul_flops[runs] / time_s
    return Sawtooth(
        title=_title(field, wanted, rate, found.baseline, after),
        field=field,
        values=wanted.astype(float),
        time_s=time_s,
        flops_per_s=rate,
        now=float(found.baseline),
        after=None if after is None or after not in wanted else float(after),
    )


def _values(shape: TransformerShape, field: str, now: int, after: int | None) -> Integers:
    """Values to sweep: one by one around a ragged size, in regular steps around a round one."""
    marked = [now] if after is None else [now, after]
    if field in ("num_heads", "num_kv_heads"):
        heads = np.arange(max(1, now // 4), 4 * now + 1)
        return heads[_allowed_heads(shape, heads) | np.isin(heads, marked)]
    low, high = min(marked), max(marked)
    if now % 64 and high - low <= 4 * FINE:
        return np.arange(max(1, low - FINE), high + FINE + 1)
    step = 64 if now % 64 == 0 else 8
    reach = max(int(COARSE_SHARE * now) // step, 8) * step
    start = max(step, (low - reach) // step * step)
    return np.unique([*range(start, high + reach + 1, step), *marked]).astype(np.int64)


def _allowed_heads(shape: TransformerShape, heads: Integers) -> npt.NDArray[np.bool_]:
    """Valid head counts: divisors of hidden size if heads x head_dim equals it, and multiples of the KV heads."""
    mixer = shape.attention
    if not isinstance(mixer, AttentionMixer):
        return np.asarray(heads % 2 == 0)
    hidden, kv = int(shape.hidden_size), int(mixer.num_kv_heads)
    whole: npt.NDArray[np.bool_] = heads > 0
    if int(mixer.num_heads) * int(mixer.head_dim) == hidden:
        whole &= (hidden % heads == 0) & (hidden // heads >= 32) & (hidden // heads <= 256)
    return whole if kv == int(mixer.num_heads) else np.asarray(whole & (heads % kv == 0))


def _title(field: str, values: Integers, rate: Any, now: int, after: int | None) -> str:
    here, best = float(rate[values == now][0]) if now in values else 0.0, float(rate.max())
    if not here:
        return f"{field}: FLOP rate of the step"
    if after is not None and after in values:
        gain = float(rate[values == after][0]) / here - 1
        if gain >= 0.0005:
            return f"{field} {now} -> {after} alone raises the FLOP rate by {format_share(gain)}"
    below = 1 - here / best
    if below < 0.005:
        return f"{field}={now} already has the best FLOP rate nearby"
    return f"{field}={now} runs {format_share(below)} below the best nearby FLOP rate, at {int(values[rate.argmax()])}"


def advice_points(advice: Advice) -> JsonDict:
    """Records by figure name; empty figures are left out."""
    after = None if advice.after is None else advice.after.microbatch
    matters, width = _sawtooth_points(advice)
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
        title=_search_title(candidates[0], edit, f"equal {search.equal.value}"),
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


def _search_title(best: Candidate, edit: Candidate | None, equal: str) -> str:
    if edit is None or edit.changed == best.changed:
        return f"{change_text(best.changed)} is {speedup_text(best.efficiency_gain)} as fast at {equal}"
    return (
        f"The smallest edit, {change_text(edit.changed)}, is {speedup_text(edit.efficiency_gain)} as fast at "
        f"{equal}; the best shape found {speedup_text(best.efficiency_gain)}"
    )


def _column(candidates: Sequence[Any], name: str) -> Any:
    return np.asarray([float(getattr(c, name)) for c in candidates])


def export_pngs(records: JsonMap, folder: str | Path, frame: Frame = FILE) -> tuple[Path, ...]:
    """Every record as ``folder/NAME.png``, drawn without a browser; files are written atomically.

    Raises ``MissingExtraError`` without the extra ``report``, ``InputError`` if the folder cannot be written.
    """
    drawn = {name: to_png(draw(points, frame)) for name, points in records.items()}
    return tuple(write_atomic(Path(folder) / f"{name}.png", data) for name, data in drawn.items())
