"""A plan, a run beside its prediction, and shapes compared, over HTTP."""

from __future__ import annotations

import base64
import binascii
import json
import tempfile
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sartor import api
from sartor.answers.diagnosis import LogDiagnosis, LogFacts, TraceDiagnosis, part_words
from sartor.answers.estimate import TOTALS, ModelEstimate
from sartor.answers.field import to_json
from sartor.answers.plan import PlanAnswer
from sartor.api.words import device_of as warned_device
from sartor.bounded import parse_toml, unpacked
from sartor.cost.uncertainty import compare
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import cluster_from_table, load_cluster
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap, plain, record
from sartor.report.frame import time_unit
from sartor.report.points import Published
from sartor.report.words import printable
from sartor.traces.read import REPORTS
from sartor.units import format_seconds, parse_count
from sartor.web.arguments import (
    device_of,
    model_of,
    plain_name,
    question_key,
    question_of,
    stated_device,
    stated_devices,
)

if TYPE_CHECKING:
    from sartor.report.plan_points import PlanCloud

MOST_TOP = 100
REMEMBERED = 4
"""Plans a worker caches, so that figures and launch files need no new search."""
MOST_TASKS = 20_000
"""Most tasks of the timeline, which the page can zoom into."""
MOST_POINTS = 2000
"""Most plans in the scatter figure; slower ones are left out."""


def planned(body: JsonMap) -> PlanAnswer:
    """The answer of ``api.plan`` to a request. Raises ``InputError``."""
    fields = {name: value for name, value in body.items() if name not in ("trainer", "why_not")}
    key = json.dumps(question_key(fields), sort_keys=True)
    if key not in _REMEMBERED:
        _REMEMBERED[key] = _plan(fields)
        while len(_REMEMBERED) > REMEMBERED:
            _REMEMBERED.popitem(last=False)
    _REMEMBERED.move_to_end(key)
    return _REMEMBERED[key]


_REMEMBERED: OrderedDict[str, PlanAnswer] = OrderedDict()


def _plan(body: JsonMap) -> PlanAnswer:
    if isinstance(body["top"], int) and body["top"] > MOST_TOP:
        raise InputError("top", body["top"], f"must be at most {MOST_TOP} over HTTP", str(MOST_TOP))
    return api.plan(
        model_of(body),
        _cluster_of(body),
        top=body["top"],
        tokens=parse_count("tokens", str(body["tokens"])),
        **{name: value for name, value in question_of(body).items() if name != "cluster"},
    )


def _own_cluster(text: str) -> Cluster:
    """The cluster of a TOML text. Raises ``InputError``."""
    table = parse_toml(text, "cluster_toml", "the text sent")
    pools = table.get("others", [])
    for pool in (table, *(pools if isinstance(pools, list) else [])):
        if isinstance(pool, dict) and isinstance(pool.get("gpu"), str):
            plain_name("gpu", pool["gpu"])
    return cluster_from_table(table, "own")


def _cluster_of(body: JsonMap) -> Cluster | None:
    """The cluster of ``cluster_toml`` (a file's text) or ``cluster`` (a catalogue name), if any. Raises
    ``InputError``."""
    text, name = body.get("cluster_toml"), body.get("cluster")
    if text is None:
        return None if name is None else load_cluster(plain_name("cluster", name))
    cluster = _own_cluster(text)
    warned_device(cluster.gpu)
    return cluster


def figures_body(answer: PlanAnswer) -> JsonDict:
    """The figures by name, drawn or (where one looks into it) as a record; empty if no plan fits."""
    from sartor.report.charts import drawn
    from sartor.report.plan_points import PlanCloud, plan_points
    from sartor.report.plan_words import plan_lines, plan_words

    points = plan_points(answer, MOST_TASKS)
    figures = {
        name: record(figure)
        if name in ("pipeline", "pipeline_memory")
        else drawn(_fewer(figure) if isinstance(figure, PlanCloud) else figure)
        for name, figure in points.items()
    }
    best = answer.best
    words = {} if best is None else {"headline": " ".join(plan_lines(answer)), "best": plan_words(best.plan)}
    return {"status": answer.search.status.value, **words, "figures": figures}


def _fewer(cloud: PlanCloud) -> PlanCloud:
    """At most ``MOST_POINTS`` of a cloud's plans: the fastest, and the best."""
    if len(cloud.step_s) <= MOST_POINTS:
        return cloud
    keep = np.union1d(np.argsort(cloud.step_s, kind="stable")[: MOST_POINTS - 1], [cloud.best])
    return replace(
        cloud,
        labels=tuple(cloud.labels[i] for i in keep),
        step_s=cloud.step_s[keep],
        device_bytes=cloud.device_bytes[keep],
        tp=cloud.tp[keep],
        on_front=cloud.on_front[keep],
        best=int(np.searchsorted(keep, cloud.best)),
    )


def why_body(answer: PlanAnswer, request: JsonMap) -> JsonDict:
    """Another plan compared with the best one of an answer. Raises ``InputError``."""
    from sartor.answers.field import to_json
    from sartor.answers.plan import WHY_NOT
    from sartor.api.plans import beside_best

    beside = beside_best(answer.search, request, answer.calibration)
    if beside is None:
        raise InputError("why_not", "given", "nothing fits at all, so there is no best plan to compare with")
    return dict(to_json(beside, WHY_NOT))


def trace_of(answer: PlanAnswer) -> bytes:
    """The best plan's step for Perfetto. Raises ``InputError`` if no plan fits."""
    from sartor.report.trace import plan_trace

    if answer.best is None:
        raise InputError("plan", "none", "nothing fits, so there is no step to draw")
    return plan_trace(answer)


def launch_body(answer: PlanAnswer, trainer: str) -> JsonDict:
    """The launch files of the best plan for a trainer. Raises ``InputError``."""
    written = api.launch(answer, trainer)
    return {
        "trainer": written.kind.value,
        "files": [{"name": file.name, "text": file.text} for file in written.files],
        "notes": list(written.notes),
    }


SAID = (
    "number", "num_devices", "price", "global_batch_size", "seq_len", "dtype", "framework", "fix", "set", "calibration",
)  # fmt: skip
"""Fields passed to ``api.diagnose`` unchanged."""


def run_body(body: JsonMap) -> JsonDict:
    """The answer of ``api.diagnose`` to a request, as text and figures too. Raises ``InputError``."""
    from sartor.report.charts import drawn
    from sartor.report.diagnose_words import diagnose_answer
    from sartor.report.run_points import run_points

    answer = _diagnosed(body)
    title, lines = diagnose_answer(answer)
    names = {part.kind: part_words(part.kind) for part in answer.run_parts}
    says = {"title": title, "lines": [printable(line) for line in lines], "parts": names}
    figures = {
        name: record(points) if name == "timeline" else drawn(points) for name, points in run_points(answer).items()
    }
    return {**answer.to_dict(), "says": says, "figures": figures}


def _diagnosed(body: JsonMap) -> LogDiagnosis | LogFacts | TraceDiagnosis:
    name = Path(str(body["file"] or "the file sent")).name[:100]
    request = _asked(body)
    with tempfile.TemporaryDirectory(prefix="sartor-run-") as folder:
        path = Path(folder) / f"run{''.join(end for end in REPORTS if name.endswith(end))}"
        path.write_bytes(unpacked(_decoded(body["run"]), "run", name, limit=MOST_UNPACKED))
        try:
            return replace(api.diagnose(path, **request), path=name)
        except InputError as error:
            value = name if str(error.value) == str(path) else error.value
            raise InputError(error.field, value, error.must.replace(str(path), name), error.nearest) from None


MOST_UNPACKED = 100_000_000
"""Largest run that is read over HTTP [bytes, unpacked]: its events fill a worker's memory, and take 10 s to read."""


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("run", f"{text[:20]}...", "must be the bytes of a log or a trace in base64") from None


def _asked(body: JsonMap) -> JsonDict:
    """The request's arguments; without a device unless it names one, since a trace names its own."""
    cluster = body["cluster"]
    return {
        **{name: body[name] for name in SAID},
        "model": None if body["model"] is None and body["config"] is None else model_of(body),
        "cluster": None if cluster is None else plain_name("cluster", cluster),
        "gpu": stated_device(body),
    }


def compare_body(body: JsonMap) -> JsonDict:
    """Times [gpu][shape] with intervals, and ``beats`` [shape][shape]: the probability that the row is faster.

    Errors of operator families are shared by all shapes, so the comparison of two shapes is more certain than either
    time (``cost.compare.compare``). A calibration applies to the first device. Raises ``InputError``.
    """
    shapes = [_named(entry, index) for index, entry in enumerate(body["shapes"])]
    gpus = stated_devices(body) or [device_of({})]
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
    from sartor.report.charts import drawn

    answers = [_estimated(body, gpu, {**words, "set": sets}) for _, sets in shapes]
    first = answers[0]
    return {
        "gpu": gpu.name,
        "figure": drawn(_times(gpu, [name for name, _ in shapes], answers)),
        "dtype": answers[0].question.workload.dtype.value,
        "totals": [{**to_json(answer, TOTALS), **_against(first, answer)} for answer in answers],
        "beats": [[_beats(row, column) for column in answers] for row in answers],
    }


def _times(gpu: Gpu, names: Sequence[str], answers: Sequence[ModelEstimate]) -> Published:
    """The figure of one device: every shape's time with its interval."""
    times = np.array([(float(a.time_s), float(a.low_s), float(a.high_s)) for a in answers])
    unit, scale = time_unit(times.max())
    predicted, low, high = scale * times.T
    shortest = names[int(predicted.argmin())]
    return Published(
        title=f"Shortest on {printable(gpu.name)}: {shortest}, {format_seconds(times.min(axis=0)[0])}",
        unit=f"predicted time [{unit}], with its 80% interval",
        cases=tuple(names),
        predicted=predicted,
        low=low,
        high=high,
        published=np.full(len(names), np.nan),
    )


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
