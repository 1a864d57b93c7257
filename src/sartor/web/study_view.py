"""A study of ``sartor design``: the front, how the search converged, and the winner, for the design view.

The winner is shown in detail: die area by part, steps by part, one layer's schedule.
"""

from __future__ import annotations

import dataclasses
import json
import types
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from sartor.answers.design import STEP_TIME
from sartor.answers.field import to_json
from sartor.cost.chip.ownership import faults
from sartor.designs.candidates import Ranked
from sartor.designs.detail import area_parts, model_detail, power_parts
from sartor.designs.point import Evaluation, ModelOutcome, Point
from sartor.designs.question import DesignQuestion, Mean, Objective
from sartor.engine.study import StudyPoint, StudyRecord, read_study
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator, Dataflow, Memory
from sartor.json_types import JsonDict, JsonMap, picked, plain, record
from sartor.model.traced import TracedModel
from sartor.model.workload import Phase
from sartor.pareto import is_pareto
from sartor.report.chip_points import AXES, Convergence, DesignCloud, cloud_title, proof_title
from sartor.report.design_points import layer_bars, pipeline_bars
from sartor.report.design_words import PHASE_UNITS, unit_text

Key = tuple[str, int, float]
_LAST: dict[Key, JsonDict] = {}
"""Cache of the last winner, since a watched study is requested repeatedly."""
MOST_MODELS = 3
"""Most models whose schedules are drawn."""


def winner_body(study: StudyRecord, best: StudyPoint) -> JsonDict | None:
    """Parts of the die and of power, steps by part, schedules and pipelines; None if the question cannot be
    reconstructed (a study of another version)."""
    key = (study.fingerprint, best.candidate, best.hbm_bytes)
    if key not in _LAST:
        try:
            detail = _detail(study, best)
        except (InputError, KeyError, TypeError, ValueError, AttributeError, AssertionError, IndexError):
            return None
        _LAST.clear()
        _LAST[key] = detail
    return _LAST[key]


def _detail(study: StudyRecord, best: StudyPoint) -> JsonDict:
    question = question_of(study.question)
    accelerator = _accelerator_of(best.architecture)
    point = Point(index=best.candidate, accelerator=accelerator, hbm_bytes=best.hbm_bytes, options=())
    evaluation = Evaluation(point=point, outcomes=best.outcomes, bounds=())
    figures = picked(best, "objective", "bound", "area_mm2", "power_w", "die_usd")
    ranked = Ranked(evaluation=evaluation, **figures)
    details = [d for m in range(len(question.models)) if (d := model_detail(question, evaluation, m)) is not None]
    return {
        "area": area_parts(question, accelerator),
        "power": power_parts(accelerator),
        "faults": list(faults(accelerator)),
        "models": [_model(detail) for detail in details],
        "schedules": [
            plain(record(bars)) for detail in details[:MOST_MODELS] for _, bars in layer_bars(question, ranked, detail)
        ],
        "pipelines": [plain(record(pipeline_bars(detail))) for detail in details[:MOST_MODELS]],
    }


def _model(detail: Any) -> JsonDict:
    outcome = detail.outcome
    return {
        **picked(outcome, "name", "step_s"),
        **picked(detail, "low_s", "high_s"),
        "source": "analytic",
        "mfu": detail.step.mfu,
        **picked(detail, "peak_bytes", "num_microbatches"),
        "time": to_json(detail.step, STEP_TIME),
    }


def _accelerator_of(table: JsonMap) -> Accelerator:
    """The accelerator stored in a study."""
    names = {field.name for field in dataclasses.fields(Accelerator)}
    fields: JsonDict = {name: value for name, value in table.items() if name in names}
    return Accelerator(**{**fields, "memory": Memory(table["memory"]), "dataflow": Dataflow(table["dataflow"])})


def question_of(table: JsonMap) -> DesignQuestion:
    """The question stored in a study (``engine.schema``). Raises ``ValueError`` if it is invalid."""
    names = {field.name for field in dataclasses.fields(DesignQuestion)}
    question = _revived(DesignQuestion, {name: value for name, value in table.items() if name in names or name == "is"})
    assert isinstance(question, DesignQuestion)
    return question


def _revived(kind: Any, value: Any) -> Any:
    """Convert a plain value to a field of type ``kind``; creates only types that the field names."""
    if get_origin(kind) in (Union, types.UnionType):
        return _one_of(get_args(kind), value)
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        kinds = [inner[0]] * len(value) if len(inner) == 2 and inner[1] is Ellipsis else inner
        return tuple(_revived(kind_of_item, item) for kind_of_item, item in zip(kinds, value, strict=True))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        if not isinstance(value, Mapping) or value.get("is") != kind.__name__:
            raise ValueError(f"no {kind.__name__}")
        hints = get_type_hints(kind, localns={"TracedModel": TracedModel})
        names = [kinds.name for kinds in dataclasses.fields(kind) if kinds.init and kinds.name in value]
        return kind(**{name: _revived(hints[name], value[name]) for name in names})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {member.name.lower(): member for member in kind}[value]
    return value


def _one_of(kinds: tuple[Any, ...], value: object) -> Any:
    """The first of several types that accepts a value."""
    if value is None and type(None) in kinds:
        return None
    for kind in kinds:
        fits = isinstance(value, Mapping) == (isinstance(kind, type) and dataclasses.is_dataclass(kind))
        if kind is type(None) or not fits or (isinstance(value, Mapping) and value.get("is") != kind.__name__):
            continue
        if isinstance(kind, type) and issubclass(kind, Enum) and not isinstance(value, str):
            continue
        return _revived(kind, value)
    raise ValueError("no such value")


LOG_MAGIC = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
MOST_POINTS = 3000
MOST_STEPS = 600
"""Most points and steps drawn: the best points, and evenly spaced steps."""


def uploaded_body(path: Path) -> JsonDict:
    """The contents of a study file, which may be followed by its write-ahead log (``-wal``).

    Raises ``InputError`` if it is not a study. The file belongs to this request: its log is moved to a file next to it.
    """
    try:
        _cut_log(path)
        return page_body(read_study(path))
    except InputError as error:
        must = error.must.partition(";")[0]
        if ("another program" in must or "empty" in must) and _is_logged(path):
            must += ", or a study that is being written: then send its -wal file too"
        raise InputError("study", "the file sent", must) from None
    except (KeyError, TypeError, ValueError, RecursionError) as slip:
        raise InputError("study", "the file sent", f"is not a valid study ({type(slip).__name__})") from None


def _cut_log(path: Path) -> None:
    """Move a write-ahead log that follows the database into its own file.

    A log begins with its magic number (sqlite.org/fileformat2.html, 4.1) at a page boundary. No page begins like that:
    its first byte is its type, or part of a page number too large for a file of 64 MiB.
    """
    size = path.stat().st_size
    with path.open("r+b") as file:
        page = int.from_bytes(file.read(18)[16:18], "big") or 1
        page = 65536 if page == 1 else page
        for offset in range(page, size, page) if page >= 512 else ():
            file.seek(offset)
            if file.read(4) in LOG_MAGIC:
                file.seek(offset)
                path.with_name(path.name + "-wal").write_bytes(file.read())
                file.truncate(offset)
                return


def _is_logged(path: Path) -> bool:
    """Whether the header of an SQLite file says that it uses a write-ahead log."""
    return path.read_bytes()[18:20] == b"\x02\x02"


def watched_body(path: str | None) -> JsonDict:
    """The current contents of the study named on the command line. Raises ``InputError``."""
    if path is None:
        raise InputError("study", "none", "no study to show: start with `sartor page --study FILE`, or load a file")
    return page_body(read_study(path))


def page_body(study: StudyRecord) -> JsonDict:
    """The answer of ``/api/study``: see ``routes``."""
    return _drawn(study_body(study))


def study_body(study: StudyRecord) -> JsonDict:
    """A study's question, best point, proof and what it found, without figures."""
    points = sorted((p for p in study.points if p.objective > 0), key=lambda p: -p.objective)[:MOST_POINTS]
    best = study.incumbent
    last = study.history[-1] if study.history else None
    return {
        "status": study.sessions[-1].ending if study.sessions else "empty",
        "question": _question(study.question),
        "evaluated": last.evaluated if last else len(study.points),
        "waiting": last.waiting if last else None,
        "pruned": last.pruned if last else None,
        "left_s": plain(last.left_s) if last else None,
        "upper_bound": plain(study.bound),
        "objective": None if best is None else best.objective,
        "gap": _gap(study.bound, best),
        "sessions": [plain({name: getattr(s, name) for name in s.__slots__}) for s in study.sessions],
        "pareto": _points(points),
        "convergence": _convergence(study),
        "best": None if best is None else _best(study, best),
    }


def example_body() -> JsonDict:
    """A search of our own, recorded with what it had proved at each step."""
    text = (resources.files("sartor.web") / "example-study.json").read_text(encoding="utf-8")
    return _drawn(json.loads(text))


def _drawn(body: JsonDict) -> JsonDict:
    """The answer with its unit, and its figures as the report draws them in place of their numbers."""
    from sartor.report.charts import drawn

    steps = body.pop("convergence")
    asked, points = body["question"], body["pareto"]
    phases = [Phase(model["phase"] or Phase.TRAIN) for model in asked["models"]]
    units = list(dict.fromkeys(PHASE_UNITS[phase] for phase in phases))
    unit = unit_text(Objective(asked["objective"]), Mean(asked["mean"]), units)
    area, front = np.array(points["area_mm2"]), points["on_front"]
    records: dict[str, object] = {}
    if len(steps["seconds"]) > 1 and body["gap"] is not None:
        columns = {name: np.array(steps[name], dtype=float) for name in ("seconds", "bound", "incumbent")}
        title = proof_title(steps["seconds"][-1], body["gap"], body["evaluated"], body["pruned"] or 0)
        evaluated = np.array(steps["evaluated"])
        records["convergence"] = Convergence(title=title, unit=unit, **columns, evaluated=evaluated)
    if len(area) > 1:
        records["cloud"] = DesignCloud(
            title=cloud_title(points["objective"][0], area[0]),
            unit=unit,
            labels=tuple(points["labels"]),
            area_mm2=area,
            power_w=np.array(points["power_w"]),
            objective=np.array(points["objective"]),
            kind=("best", *("front" if ahead else "evaluated" for ahead in front[1:])),
            axes=(AXES["area_mm2"][0],),
            across=area,
            shade=area,
        )
    return {**body, "unit": unit, "figures": {name: drawn(points) for name, points in records.items()}}


def _gap(bound: float | None, best: StudyPoint | None) -> float | None:
    return None if best is None or bound is None else max(bound / best.objective - 1.0, 0.0)


def _question(request: JsonMap) -> JsonDict:
    """The question in short."""
    keys = ("phase", "seq_len", "context_len")
    models = [{"name": str(m.get("name")), **{key: m.get(key) for key in keys}} for m in request.get("models", ())]
    trains = any(model["phase"] in (None, Phase.TRAIN.value) for model in models)
    names = ("num_devices", "mean", "budgets", "tolerance")
    space = request.get("space") or {}
    return {
        "models": models,
        "global_batch_size": request.get("global_batch_size") if trains else None,
        "space": space.get("name"),
        "num_points": space.get("num_points"),
        "objective": Objective[str(request["objective"]).upper()].value,
        **{name: plain(request.get(name)) for name in names},
    }


def _points(points: Sequence[StudyPoint]) -> JsonDict:
    """Evaluated points as columns, best first, with a mask of the front of objective, area and power."""
    table = np.array([[-p.objective, p.area_mm2, p.power_w] for p in points]).reshape(-1, 3)
    front = is_pareto(table) if len(points) else np.zeros(0, dtype=bool)
    return {
        "labels": [_label(p.architecture) for p in points],
        "objective": [p.objective for p in points],
        "area_mm2": [p.area_mm2 for p in points],
        "power_w": [p.power_w for p in points],
        "hbm_bytes": [p.hbm_bytes for p in points],
        "on_front": front.tolist(),
    }


def _label(a: JsonMap) -> str:
    """``8 x 256x128, 128 x 128 lanes, 32 MiB``."""
    cores = f"{a.get('num_tensor_cores')} x {a.get('array_rows')}x{a.get('array_cols')}"
    buffer = float(a.get("global_buffer_bytes") or 0) / 2**20
    return f"{cores}, {a.get('num_vector_cores')} x {a.get('vector_lanes')} lanes, {buffer:g} MiB"


def _convergence(study: StudyRecord) -> JsonDict:
    """Bound and incumbent over time; None while a bound is unknown."""
    steps = study.history
    stride = max(-(-len(steps) // MOST_STEPS), 1)
    chosen = [step for i, step in enumerate(steps) if i % stride == 0 or i == len(steps) - 1]
    names = ("seconds", "bound", "incumbent", "evaluated")
    return {name: [plain(getattr(step, name)) for step in chosen] for name in names}


def _best(study: StudyRecord, best: StudyPoint) -> JsonDict:
    """The winner's sizes, with its parts, plans and schedules if the study's question can be reconstructed."""
    record = {
        "architecture": plain(dict(best.architecture)),
        "label": _label(best.architecture),
        **picked(best, "area_mm2", "power_w", "die_usd", "objective"),
        "models": [None if o is None else _outcome(o) for o in best.outcomes],
    }
    detail = winner_body(study, best)
    for fault in detail["faults"] if detail else ():
        warnings.warn(f"the best chip of this study cannot be built: {fault}", stacklevel=2)
    return {**record, "detail": detail}


def _outcome(outcome: ModelOutcome) -> JsonDict:
    plan = outcome.plan
    return {
        **picked(outcome, "name", "step_s", "tokens_per_s", "sequences_per_s"),
        "recompute": outcome.recompute.name.lower(),
        "tp": plan.tensor_parallel,
        "dp": plan.data_parallel,
        "pp": plan.num_stages,
        "cp": plan.context_parallel,
        "virtual_stages": plan.virtual_stages,
        "zero_stage": plan.zero_stage,
        "layers": [plain(asdict(layer)) for layer in outcome.layers],
    }
