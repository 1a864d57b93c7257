"""Compare shapes on several devices, with the probability that one is faster than another."""

from __future__ import annotations

from sartor import api
from sartor.answers.estimate import TOTALS, ModelEstimate
from sartor.answers.field import to_json
from sartor.cost.uncertainty import compare
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap, plain
from sartor.web.asked import devices_of, model_of, question_of


def compare_body(body: JsonMap) -> JsonDict:
    """Times [gpu][shape] with intervals, and ``beats`` [shape][shape]: the probability that the row is faster.

    Errors of operator families are shared by all shapes, so the comparison of two shapes is more certain than either
    time (``cost.compare.compare``). A calibration applies to the first device. Raises ``InputError``.
    """
    shapes = [_named(entry, index) for index, entry in enumerate(body["shapes"])]
    gpus = devices_of(body)
    return {
        "gpus": [gpu.name for gpu in gpus],
        "shapes": [{"name": name, "set": sets, **_sizes(body, sets)} for name, sets in shapes],
        "times": [_on(body if i == 0 else {**body, "calibration": None}, gpu, shapes) for i, gpu in enumerate(gpus)],
    }


def _named(entry: JsonMap, index: int) -> tuple[str, JsonDict]:
    for key in entry:
        if key not in ("name", "set"):
            raise InputError(f"shapes[{index}].{key}"[:60], entry[key], "is not a field of a shape", "name, set")
    name, sets = entry.get("name", f"shape {index}"), entry.get("set") or {}
    if not isinstance(name, str) or not isinstance(sets, dict):
        raise InputError(f"shapes[{index}]", dict(entry), "must be {name: a word, set: {field: whole number}}")
    return name[:80], sets


def _sizes(body: JsonMap, sets: JsonDict) -> JsonDict:
    reading = api.read(model_of(body), sets)
    return {
        "num_params": plain(reading.num_params),
        "fields": {name: plain(value) for name, value in reading.shape.fields().items()},
    }


def _on(body: JsonMap, gpu: Gpu, shapes: list[tuple[str, JsonDict]]) -> JsonDict:
    """One device: totals of every shape, and all pairs."""
    words = question_of(body)
    answers = [_estimated(body, gpu, {**words, "set": sets}) for _, sets in shapes]
    first = answers[0]
    return {
        "gpu": gpu.name,
        "dtype": answers[0].question.workload.dtype.value,
        "totals": [{**to_json(answer, TOTALS), **_against(first, answer)} for answer in answers],
        "beats": [[_beats(row, column) for column in answers] for row in answers],
    }


def _estimated(body: JsonMap, gpu: Gpu, words: JsonDict) -> ModelEstimate:
    return api.estimate(model_of(body), gpu, **words)


def _against(before: ModelEstimate, after: ModelEstimate) -> JsonDict:
    """Speedup of the step or pass; its relative interval is that of the operators' speedup."""
    gain = compare(before.microbatch, after.microbatch)
    speedup = before.time_s / after.time_s
    return {
        "speedup": plain(speedup),
        "speedup_low": plain(speedup * gain.low / gain.speedup),
        "speedup_high": plain(speedup * gain.high / gain.speedup),
    }


def _beats(row: ModelEstimate, column: ModelEstimate) -> float | None:
    """Probability that ``row`` is faster than ``column``; None for a shape against itself."""
    if row is column:
        return None
    chance = float(compare(column.microbatch, row.microbatch).probability)
    return float(f"{chance:.6g}")
