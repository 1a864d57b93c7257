"""The sawtooth figure of ``advise``: which field and values to sweep; ``shapes.sweep`` prices them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonMap
from sartor.model.layer import AttentionMixer
from sartor.model.shape import TransformerShape
from sartor.model.workload import ParallelDims, Workload
from sartor.report.points import Sawtooth
from sartor.shapes.sweep import sweep
from sartor.step.running import InRun
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.answers.advice import Advice

Integers = npt.NDArray[np.int64]

FINE = 96
"""Values on each side priced one by one around a ragged size."""
COARSE_SHARE = 0.2
"""Range on each side of a round size, as a share of it."""
WIDTHS = ("ffn_hidden_size", "expert_ffn_hidden_size", "hidden_size")
"""Fields that set the tile and wave quantization of the largest GEMMs."""
PREFERRED = ("num_heads", "ffn_hidden_size", "vocab_size", "expert_ffn_hidden_size", "hidden_size")
"""Order in which changed fields are considered: strongest quantization first."""


def sawtooth_points(advice: Advice) -> tuple[Sawtooth | None, Sawtooth | None]:
    """Sweeps of the most important field and of the width that quantizes into waves; None if the model has no such
    field (or it is the first one)."""
    question = advice.base.question
    ask = (question.workload, question.dims, question.gpu)
    field, after = _what_matters(advice)
    own = question.workload.shape.fields()
    width = next((name for name in WIDTHS if name in own and name != field), "")
    first = sweep_field(*ask, field, after=after, run=advice.base.run) if field else None
    if field in WIDTHS or not width:
        return first, None
    return first, sweep_field(*ask, width, after=_new_value(advice, width), run=advice.base.run)


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
) -> Sawtooth | None:
    """Time of a microbatch (of ``run``, in training) or an inference pass for each of ``values`` of ``field`` (default:
    near the model's own), other fields unchanged.

    Derived sizes follow the field (``shapes.sweep``). Invalid values are left out; None if fewer than three remain.
    Raises ``InputError`` for an unknown field.
    """
    now = int(workload.shape.fields().get(field, 1))
    wanted = _values(workload.shape, field, now, after) if values is None else np.unique(np.asarray([*values]))
    known = {gpu.name: run.calibration} if run else None
    kernels = run.kernels if run else None
    found = sweep(workload, [gpu], dims, field=field, values=wanted, calibrations=known, kernels=kernels)
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
