"""The data of one update of the shape view: totals, operators, findings, and a sawtooth per field."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sartor import api
from sartor.answers.advice import FINDING
from sartor.answers.estimate import MODEL, OPERATOR, TOTALS, TOTALS_WITHOUT_REMEDIES, WORKLOAD, ModelEstimate, Question
from sartor.answers.field import ListOf, to_json
from sartor.api.questions import completed_question
from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap, plain
from sartor.model.editing import LARGEST
from sartor.model.plan import UNEVEN_CHUNKS
from sartor.report.fit_words import memory_words
from sartor.report.plan_words import turn_lines
from sartor.report.points import roofline_points
from sartor.report.verdict import takes
from sartor.rules.rule import largest_split
from sartor.shapes.evaluate import WORKLOAD_FIELDS, Laid, Sweep, lay, price_sweeps
from sartor.step.coefficients import InRun
from sartor.units import largest_power_of_two_dividing
from sartor.web.arguments import device_of, model_of, question_key, question_of

Integers = npt.NDArray[np.int64]

MOST_VALUES = 1000
"""Most values in one sweep of the page."""
MOST_STEPS = 400
"""Most steps of its grid, as many as a picture can show."""
REMEMBERED = 16
FINE = 80
"""Range around an off-grid value in which every value is priced, to show the effect of alignment."""
NEAR = 0.2
"""Largest distance, as a share, for a nearby value; heads have few values and may double or halve."""
REACH = 0.35
"""Range of the sweep on each side, as a share of the value."""
FEW = ("num_heads", "num_kv_heads", "head_dim", "num_experts", "experts_per_token", "num_shared_experts")
"""Fields with few values, for which distance is measured as a ratio."""
WORTH = 0.005
"""Least saving at equal work for a value to count as better."""
NEARLY = 0.8
"""The nearest value with this share of the best saving on its side is offered."""


def shape_body(body: JsonMap) -> JsonDict:
    """The answer of POST /api/shape: see ``routes``. Raises ``InputError``."""
    gpu, question = device_of(body), _question(body)
    split = largest_split(question.trained_shape, question.dims)
    runs = split == question.dims
    checked = None if body["moving"] and runs else api.lint_question(question)
    answer = replace(api.answer_question(question), question=question) if checked is None else checked.base
    own = _own(body) if body["set"] else None
    return {
        "model": to_json(answer.question, MODEL),
        "workload": to_json(answer, WORKLOAD),
        "says": _says(answer, own),
        "totals": to_json(answer, TOTALS_WITHOUT_REMEDIES if body["moving"] else TOTALS),
        "baseline": _unchanged(own) if own else _unchanged(answer) if runs and not body["set"] else None,
        "runs": runs,
        "split": {"tp": int(split.tp), "ep": int(split.ep)},
        "operators": to_json(answer.pairs, ListOf(OPERATOR)),
        "findings": [] if checked is None else to_json(checked.findings, ListOf(FINDING)),
        "sweeps": [] if body["moving"] else _sweeps_of(question, body["around"] or {}, answer.run),
        "gpu": {"name": gpu.name, "num_sms": gpu.num_sms, "hbm_bytes": plain(gpu.hbm_bytes)},
    }


def roofline_figure(body: JsonMap) -> JsonDict:
    """The answer of POST /api/shape/roofline: the operators of the same question, drawn. Raises ``InputError``."""
    from sartor.report.charts import drawn

    return drawn(roofline_points(api.answer_question(_question(body)).microbatch))


def _says(answer: ModelEstimate, own: ModelEstimate | None) -> JsonDict:
    """The answer in words; ``turns``: what another value of something that was not stated would change, which was asked
    of the model as it is (``own``) where its sizes were changed."""
    question, held = answer.question, answer.question.held
    turns = [*turn_lines((own or answer).question.depends_on)]
    if own:
        turns = [memory_words(own)] * any(turn.of_memory for turn in own.question.depends_on) + turns
        turns = [f"Of the model's own sizes: {line[0].lower()}{line[1:]}" for line in turns]
        answer = replace(answer, question=replace(question, depends_on=()))
    trainer = None if held is None else held.job.trainer.name
    return {"takes": takes(answer), "memory": memory_words(answer), "trainer": trainer, "turns": turns}


_COMPLETED: OrderedDict[str, Question] = OrderedDict()
"""Cache of recent questions about models as they are: a drag sends the same model many times."""


def _question(body: JsonMap) -> Question:
    """The question about the model with its changed sizes, under the plan of the model as it is: a page that changes
    sizes compares shapes, not plans."""
    if not body["set"]:
        return _as_it_is(body)
    reading = api.read(model_of(body), body["set"])
    try:
        changed = replace(_as_it_is(body).with_shape(reading.shape), reading=reading)
        if changed.held is not None:
            changed.held.price(changed.calibration)
    except InputError:  # the model itself cannot run, or the changed one not under its plan
        return completed_question(reading, device_of(body), question_of(body), splits=True)
    return changed


def _as_it_is(body: JsonMap) -> Question:
    key = json.dumps({**question_key(body), "set": None, "around": None, "moving": None}, sort_keys=True)
    if key not in _COMPLETED:
        words = {**question_of(body), "set": None}
        _COMPLETED[key] = completed_question(model_of(body), device_of(body), words, splits=True)
        if len(_COMPLETED) > REMEMBERED:
            _COMPLETED.popitem(last=False)
    return _COMPLETED[key]


def _own(body: JsonMap) -> ModelEstimate | None:
    """The answer about the model before its sizes were changed; None if it does not split over the devices."""
    try:
        return api.answer_question(_as_it_is(body))
    except InputError:
        return None


def _unchanged(answer: ModelEstimate) -> JsonDict:
    return {**to_json(answer, TOTALS), **_sizes(answer)}


def _sizes(answer: Any) -> JsonDict:
    reading = answer.question.reading
    return {
        "num_params": plain(reading.num_params),
        "num_active_params": plain(reading.num_active_params),
        "fields": {name: plain(value) for name, value in reading.shape.fields().items()},
    }


def _sweeps_of(question: Question, around: JsonMap, run: InRun | None = None) -> list[JsonDict]:
    """A sweep of every field that can be swept, in the shape's order, priced in one pass. In training the seconds are
    those of a microbatch in ``run``."""
    fields = question.workload.shape.fields()
    for name, value in around.items():
        if name not in fields or not isinstance(value, int) or isinstance(value, bool):
            raise InputError(f"around.{name}"[:60], value, "must be a size of this model and a whole number")
    laid = [laid_field for field in fields if (laid_field := _laid(question, field, around.get(field), run))]
    return [
        _sweep_body(question, sweep_grid) for sweep_grid in price_sweeps(laid, [question.gpu], _known(question, run))
    ]


def _laid(question: Question, field: str, around: object, run: InRun | None) -> Laid | None:
    try:
        return _placed(question, field, _values(question, field, around), run)
    except (InputError, OverflowError):
        return None  # fixed by the model's structure (head dimension of latent attention), or too large: no slider


def _placed(question: Question, field: str, values: Integers, run: InRun | None) -> Laid:
    """A sweep under the question's plan, whose chunks need a layer each, and equally many if they are many."""
    kernels, held = run.kernels if run else question.kernels, question.held
    asked, dims = question.workload, question.dims
    laid = lay(asked, dims, field=field, values=values, kernels=kernels, trained=question.trained)
    if held is None or field != "num_layers":
        return laid
    chunks = held.axes["pp"] * held.axes["virtual_stages"]
    placed = (held.axes["virtual_stages"] <= UNEVEN_CHUNKS) | (laid.values % chunks == 0)
    return replace(laid, possible=laid.possible & placed & (laid.values >= chunks))


def sweep_answer(body: JsonMap) -> JsonDict:
    """The answer of POST /api/sweep. Raises ``InputError``."""
    question = _question(body)
    field, values = body["field"], body["values"]
    chosen = _values(question, field, None) if values is None else _given(field, values)
    run = api.answer_question(question).run
    (result,) = price_sweeps([_placed(question, field, chosen, run)], [question.gpu], _known(question, run))
    return _sweep_body(question, result)


def _known(question: Question, run: InRun | None) -> dict[str, Calibration]:
    calibration = run.calibration if run else question.calibration
    return {question.gpu.name: calibration} if calibration else {}


def _sweep_body(question: Question, result: Sweep) -> JsonDict:
    """One field's sweep: arrays by value, None for invalid values, and the nearest better values."""
    time_s = result.time_s[question.gpu.name]
    return {
        "field": result.field,
        "asked": result.baseline,
        "values": result.values.tolist(),
        "time_s": _rounded(time_s),
        "num_params": np.asarray(result.num_params).tolist(),
        "flops": _rounded(result.matmul_flops),
        "better": _better_values(result, time_s),
    }


def _rounded(values: object, digits: int = 7) -> list[float | None]:
    """Floats rounded to seven digits, enough for a figure; infinities as None."""
    numbers = np.asarray(values, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        places = digits - 1 - np.floor(np.log10(np.abs(numbers)))
        up, down = 10.0 ** np.maximum(places, 0), 10.0 ** np.maximum(-places, 0)
        short = np.where(numbers == 0, 0.0, np.rint(numbers * up / down) / up * down)
    return [value if is_finite else None for value, is_finite in zip(short.tolist(), np.isfinite(numbers), strict=True)]


def _given(field: str, values: Sequence[int]) -> Integers:
    largest = LARGEST.get(field, 2**24)
    for value in values:
        if not 1 <= value <= largest:
            raise InputError(field, value, f"must be an integer from 1 to {largest}")
    return np.asarray(values, dtype=np.int64)


def _values(question: Question, field: str, around: object) -> Integers:
    """Values to sweep: a grid on both sides of the model's own, and every value close by."""
    current = {
        **question.workload.shape.fields(),
        **{name: getattr(question.workload, name) for name in WORKLOAD_FIELDS},
    }
    if field not in current:
        raise InputError("field", field, "is not a size of this model", ", ".join(current))
    now = max(int(current[field]), 1)
    centre = around if isinstance(around, int) and 1 <= around <= LARGEST.get(field, 2**24) else now
    low, high = _span(field, centre)
    low, high = _within(field, current, low, high)
    step = _step(high - low)
    grid = np.arange(-(-low // step) * step, high + 1, step)
    fine = np.arange(max(1, now - FINE), now + FINE + 1) if now % step else np.array([now])
    return np.unique(np.concatenate([grid, fine, [centre]]))[:MOST_VALUES].astype(np.int64)


def _span(field: str, centre: int) -> tuple[int, int]:
    """The range of a sweep; wide for heads and experts, since they have few values."""
    if field in (*FEW, "microbatch_size") and field != "head_dim":
        return 1, max(2 * centre, 8)
    if field in ("head_dim", "num_layers"):
        return max(1, centre // 2), max(2 * centre, 8)
    return max(1, int(centre * (1 - REACH))), int(centre * (1 + REACH)) + 8


def _within(field: str, current: JsonMap, low: int, high: int) -> tuple[int, int]:
    """Limit the range so that there are no more experts per token than experts."""
    if field == "num_experts":
        return max(low, int(current["experts_per_token"])), high
    return low, min(high, int(current["num_experts"])) if field == "experts_per_token" else high


def _step(width: int) -> int:
    """The step (a power of two) that gives a span at most ``MOST_STEPS`` values."""
    step = 1
    while width / step > MOST_STEPS:
        step *= 2
    return step


def _better_values(result: Sweep, time_s: npt.NDArray[np.float64]) -> list[JsonDict]:
    """The nearest value below and above that is faster at equal work, with its time.

    Work is the GEMM FLOPs or the parameters, whichever changes less: a smaller model is not better just for being
    smaller, nor a memory-bound one for computing more.
    """
    now = np.flatnonzero(result.values == result.baseline)
    if not len(now) or not np.isfinite(time_s[now[0]]):
        return []
    index = int(now[0])
    with np.errstate(invalid="ignore"):
        work = np.minimum(
            result.matmul_flops / result.matmul_flops[index], result.num_params / result.num_params[index]
        )
        saving = np.asarray(1 - time_s / time_s[index] / work, dtype=np.float64)  # sizes beyond 2^63 are objects
    few = result.field in FEW
    away = np.abs(np.log(result.values / result.baseline))
    saving = np.where(np.isfinite(saving) & (away <= (np.log(2) if few else NEAR)), saving, -np.inf)
    sides = (np.arange(len(saving)) < index, np.arange(len(saving)) > index)
    far = np.abs(result.values - result.baseline) / _roundness(result)
    return [
        _offer(result, time_s, saving, int(place), index)
        for side in sides
        if (place := _nearest(saving, side, far)) >= 0
    ]


def _roundness(result: Sweep) -> Integers:
    """Alignment of widths: the power of two in the value, at most 64."""
    if result.field.endswith(("_size", "_dim")):
        return np.asarray(np.minimum(largest_power_of_two_dividing(result.values), 64))
    return np.ones_like(result.values)


def _nearest(saving: npt.NDArray[np.float64], side: npt.NDArray[np.bool_], far: npt.NDArray[np.float64]) -> int:
    """Position of the nearest good value on one side (aligned values count as nearer); -1 if there is none."""
    best = float(np.max(saving[side], initial=-np.inf))
    if best < WORTH:
        return -1
    good = np.flatnonzero(side & (saving >= max(NEARLY * best, WORTH)))
    return int(good[np.argmin(far[good])])


def _offer(result: Sweep, time_s: Any, saving: Any, place: int, index: int) -> JsonDict:
    return {
        "value": int(result.values[place]),
        "saving": float(f"{saving[place]:.6g}"),
        "time_change": float(f"{time_s[place] / time_s[index] - 1:.6g}"),
        "params_change": float(f"{float(result.num_params[place]) / float(result.num_params[index]) - 1:.6g}"),
    }
