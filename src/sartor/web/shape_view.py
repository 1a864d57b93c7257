"""All a drag of the shape view shows: totals, operators, findings, roofline, and every field's sawtooth."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor import api
from sartor.answers import Lint, ModelEstimate, Question
from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.edit import LARGEST
from sartor.model.reading import ModelReading
from sartor.report import contract
from sartor.report.contract import plain, record
from sartor.report.points import roofline_points
from sartor.rules.lint import run_rules
from sartor.rules.rule import Context
from sartor.shapes.sweep import WORKLOAD_FIELDS, Laid, Sweep, lay, price_sweeps, sweep
from sartor.units import largest_power_of_two_dividing
from sartor.web.asked import device_of, model_of, question_of
from sartor.web.uploads import question_key

Integers = npt.NDArray[np.int64]

MOST_VALUES = 1000
"""Values of one sweep of the page."""
MOST_STEPS = 400
"""Steps of its grid: as many as a picture has room for."""
REMEMBERED = 16
FINE = 80
"""How far on each side of a value that is on no grid every single one is looked at: alignment shows there."""
NEAR = 0.2
"""How far, as a share, a value may be to be called near; heads come in few values and may double or halve."""
REACH = 0.35
"""How far on each side the sweep goes, as a share of the value."""
WORTH = 0.005
"""Least saving at equal work for which another value is called better."""
NEARLY = 0.8
"""The nearest value that has this share of the best saving on its side is the one offered."""


def shape_body(body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of POST /api/shape: see ``routes``. Raises ``InputError``."""
    reading, gpu, words = model_of(body), device_of(body), question_of(body)
    asked = api.ask(reading, gpu, **words)
    context = Context.of(
        asked.workload, asked.gpu, asked.dims, asked.calibration, sigma_factor=asked.reading.interval_factor
    )
    checked = Lint(base=_answer(asked, context), findings=run_rules(context))
    found, runs = checked.base, context.runs_at == asked.dims
    return {
        "model": contract.model_body(found),
        "workload": contract.workload_body(found),
        "totals": contract.totals_body(found),
        "baseline": _baseline(body, reading, gpu, words) if body["set"] else _unchanged(found) if runs else None,
        "runs": runs,
        "operators": contract.estimate_body(found)["operators"],
        "findings": contract.lint_body(checked)["findings"],
        "sweeps": sweeps_of(asked, body["around"] or {}),
        "roofline": record(roofline_points(found.estimate)),
        "gpu": {"name": gpu.name, "num_sms": gpu.num_sms, "hbm_bytes": plain(gpu.hbm_bytes)},
    }


def _answer(asked: Question, context: Context) -> ModelEstimate:
    return ModelEstimate(question=asked, graph=context.baseline.graph, estimate=context.baseline)


_BASELINES: OrderedDict[str, dict[str, Any]] = OrderedDict()
"""Of the last questions: a drag asks about one model again and again."""


def _baseline(body: Mapping[str, Any], reading: ModelReading, gpu: Gpu, words: dict[str, Any]) -> dict[str, Any] | None:
    """The model as it was before its sizes were changed; None where that does not split over so many devices."""
    key = json.dumps({**question_key(body), "set": None, "around": None}, sort_keys=True)
    if key not in _BASELINES:
        try:
            _BASELINES[key] = _unchanged(api.answer_question(api.ask(reading, gpu, **{**words, "set": None})))
        except InputError:
            return None
        if len(_BASELINES) > REMEMBERED:
            _BASELINES.popitem(last=False)
    return _BASELINES[key]


def _unchanged(answer: ModelEstimate) -> dict[str, Any]:
    return {**contract.totals_body(answer), **_sizes(answer)}


def _sizes(answer: Any) -> dict[str, Any]:
    reading = answer.question.reading
    return {
        "num_params": plain(reading.num_params),
        "num_active_params": plain(reading.num_active_params),
        "fields": {name: plain(value) for name, value in reading.shape.fields().items()},
    }


def sweeps_of(asked: Question, around: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A sweep of every field of the shape that can be swept, in the shape's order: priced in one pass."""
    fields = asked.workload.shape.fields()
    for name, value in around.items():
        if name not in fields or not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"around.{name}"[:60], value, "must be a size of this model and a whole number")
    laid = [one for field in fields if (one := _laid(asked, field, around.get(field)))]
    return [_sweep_body(asked, each) for each in price_sweeps(laid, [asked.gpu], _known(asked))]


def _laid(asked: Question, field: str, around: Any) -> Laid | None:
    try:
        return lay(asked.workload, asked.dims, field=field, values=_values(asked, field, around))
    except (InputError, OverflowError):
        return None  # held by the model's structure (head dimension of latent attention), or beyond counting: no slider


def sweep_answer(body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of POST /api/sweep. Raises ``InputError``."""
    asked = api.ask(model_of(body), device_of(body), **question_of(body))
    field, values = body["field"], body["values"]
    wanted = _values(asked, field, None) if values is None else _given(field, values)
    found = sweep(asked.workload, [asked.gpu], asked.dims, field=field, values=wanted, calibrations=_known(asked))
    return _sweep_body(asked, found)


def _known(asked: Question) -> dict[str, Calibration]:
    return {asked.gpu.name: asked.calibration} if asked.calibration else {}


def _sweep_body(asked: Question, found: Sweep) -> dict[str, Any]:
    """One field's sweep: arrays by value, None where a value cannot be, and the nearest better values."""
    time_s = found.time_s[asked.gpu.name]
    return {
        "field": found.field,
        "asked": found.asked,
        "values": found.values.tolist(),
        "time_s": rounded(time_s),
        "num_params": np.asarray(found.num_params).tolist(),
        "flops": rounded(found.matmul_flops),
        "better": better_values(found, time_s),
    }


def rounded(values: Any, digits: int = 7) -> list[float | None]:
    """Floats to seven digits, which is what a picture needs; infinities as None."""
    numbers = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        places = digits - 1 - np.floor(np.log10(np.abs(numbers)))
        up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
        short = np.where(numbers == 0, 0.0, np.rint(numbers * up / down) / up * down)
    return [value if is_finite else None for value, is_finite in zip(short.tolist(), np.isfinite(numbers), strict=True)]


def _given(field: str, values: Sequence[int]) -> Integers:
    most = LARGEST.get(field, 2**24)
    for value in values:
        if not 1 <= value <= most:
            raise InputError(field, value, f"must be an integer from 1 to {most}")
    return np.asarray(values, dtype=np.int64)


def _values(asked: Question, field: str, around: Any) -> Integers:
    """Values around the model's: on a grid to both sides, and one by one close by."""
    own = {**asked.workload.shape.fields(), **{name: getattr(asked.workload, name) for name in WORKLOAD_FIELDS}}
    if field not in own:
        raise InputError("field", field, "this model has no such size", ", ".join(own))
    now = max(int(own[field]), 1)
    centre = around if isinstance(around, int) and 1 <= around <= LARGEST.get(field, 2**24) else now
    low, high = _span(field, centre)
    low, high = _within(field, own, low, high)
    step = _step(high - low)
    grid = np.arange(-(-low // step) * step, high + 1, step)
    fine = np.arange(max(1, now - FINE), now + FINE + 1) if now % step else np.array([now])
    return np.unique(np.concatenate([grid, fine, [centre]]))[:MOST_VALUES].astype(np.int64)


def _span(field: str, centre: int) -> tuple[int, int]:
    """From where to where to look: heads and experts widely, since they come in few values."""
    if field in ("num_heads", "num_kv_heads", "num_experts", "experts_per_token", "microbatch_size"):
        return 1, max(2 * centre, 8)
    if field in ("head_dim", "num_layers"):
        return max(1, centre // 2), max(2 * centre, 8)
    return max(1, int(centre * (1 - REACH))), int(centre * (1 + REACH)) + 8


def _within(field: str, own: Mapping[str, Any], low: int, high: int) -> tuple[int, int]:
    """No more experts per token than experts."""
    if field == "num_experts":
        return max(low, int(own["experts_per_token"])), high
    return low, min(high, int(own["num_experts"])) if field == "experts_per_token" else high


def _step(width: int) -> int:
    """The power of two with which a span has at most ``MOST_STEPS`` values."""
    step = 1
    while width / step > MOST_STEPS:
        step *= 2
    return step


def better_values(found: Sweep, time_s: npt.NDArray[np.float64]) -> list[dict[str, Any]]:
    """The nearest value below and above that is faster at equal work, with its own time.

    Work is the product FLOPs or the parameters, whichever changes the comparison less: a smaller model is not called
    better for being smaller, nor one that is bound by memory for computing more meanwhile.
    """
    now = np.flatnonzero(found.values == found.asked)
    if not len(now) or not np.isfinite(time_s[now[0]]):
        return []
    here = int(now[0])
    with np.errstate(invalid="ignore"):
        work = np.minimum(found.matmul_flops / found.matmul_flops[here], found.num_params / found.num_params[here])
        saving = 1 - time_s / time_s[here] / work
    few = found.field in ("num_heads", "num_kv_heads", "head_dim", "num_experts", "experts_per_token")
    away = np.abs(np.log(found.values / found.asked))
    saving = np.where(np.isfinite(saving) & (away <= (np.log(2) if few else NEAR)), saving, -np.inf)
    sides = (np.arange(len(saving)) < here, np.arange(len(saving)) > here)
    far = np.abs(found.values - found.asked) / _roundness(found)
    return [_offer(found, time_s, saving, int(at), here) for side in sides if (at := _nearest(saving, side, far)) >= 0]


def _roundness(found: Sweep) -> Integers:
    """How round values are where round ones are preferred, widths: the power of two in them, 64 at most."""
    if found.field.endswith(("_size", "_dim")):
        return np.asarray(np.minimum(largest_power_of_two_dividing(found.values), 64))
    return np.ones_like(found.values)


def _nearest(saving: npt.NDArray[np.float64], side: npt.NDArray[np.bool_], far: npt.NDArray[np.float64]) -> int:
    """Position of the nearest good value on one side, rounder ones counting as nearer; -1 where none is worth it."""
    best = float(np.max(saving[side], initial=-np.inf))
    if best < WORTH:
        return -1
    good = np.flatnonzero(side & (saving >= max(NEARLY * best, WORTH)))
    return int(good[np.argmin(far[good])])


def _offer(found: Sweep, time_s: Any, saving: Any, at: int, here: int) -> dict[str, Any]:
    return {
        "value": int(found.values[at]),
        "saving": float(f"{saving[at]:.6g}"),
        "time_change": float(f"{time_s[at] / time_s[here] - 1:.6g}"),
        "params_change": float(f"{float(found.num_params[at]) / float(found.num_params[here]) - 1:.6g}"),
    }
