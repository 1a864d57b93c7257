"""A study of ``sartor design``: the front, how the search converged, and the winner, for the design view."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from sartor.designs.point import ModelOutcome
from sartor.engine.study import StudyPoint, StudyRecord, read_study
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.pareto import is_pareto
from sartor.report.contract import plain

MOST_POINTS = 3000
MOST_STEPS = 600
"""Most points and steps drawn: the best points, and evenly spaced steps."""


def uploaded_body(data: bytes) -> JsonDict:
    """The contents of a study file's bytes. Raises ``InputError`` if they are not a study.

    They are written to a temporary folder while they are read.
    """
    with tempfile.TemporaryDirectory(prefix="sartor-study-") as folder:
        path = Path(folder) / "study.db"
        path.write_bytes(data)
        try:
            return study_body(read_study(path))
        except InputError as error:
            raise InputError("study", "the file sent", error.must.partition(";")[0]) from None
        except (KeyError, TypeError, ValueError, RecursionError) as slip:
            raise InputError("study", "the file sent", f"is not a valid study ({type(slip).__name__})") from None


def watched_body(path: str | None) -> JsonDict:
    """The current contents of the study named on the command line. Raises ``InputError``."""
    if path is None:
        raise InputError("study", "none", "no study to show: start with `sartor serve --study FILE`, or load a file")
    return study_body(read_study(path))


def study_body(study: StudyRecord) -> JsonDict:
    """The answer of ``/api/study``: see ``routes``."""
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


def _gap(bound: float | None, best: StudyPoint | None) -> float | None:
    return None if best is None or bound is None else max(bound / best.objective - 1.0, 0.0)


def _question(asked: JsonMap) -> JsonDict:
    """The question, in one line."""
    models = [{"name": str(m.get("name")), "seq_len": m.get("seq_len")} for m in asked.get("models", ())]
    names = ("num_devices", "global_batch_size", "objective", "mean", "budgets", "tolerance")
    space = asked.get("space") or {}
    return {
        "models": models,
        "space": space.get("name"),
        "num_points": space.get("num_points"),
        **{name: plain(asked.get(name)) for name in names},
    }


def _points(points: Sequence[StudyPoint]) -> JsonDict:
    """Evaluated points column by column, best first, with those on the front of objective, area and power."""
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
    every = max(-(-len(steps) // MOST_STEPS), 1)
    chosen = [step for i, step in enumerate(steps) if i % every == 0 or i == len(steps) - 1]
    names = ("seconds", "bound", "incumbent", "evaluated")
    return {name: [plain(getattr(step, name)) for step in chosen] for name in names}


def _best(study: StudyRecord, best: StudyPoint) -> JsonDict:
    """The winner's sizes, and its parts, plans and schedules if the study's question can be read back."""
    from sartor.web.study_winner import winner_body

    found = {
        "architecture": plain(dict(best.architecture)),
        "label": _label(best.architecture),
        "area_mm2": best.area_mm2,
        "power_w": best.power_w,
        "die_usd": plain(best.die_usd),
        "objective": best.objective,
        "models": [None if o is None else _outcome(o) for o in best.outcomes],
    }
    return {**found, "detail": winner_body(study, best)}


def _outcome(outcome: ModelOutcome) -> JsonDict:
    plan = outcome.plan
    return {
        "name": outcome.name,
        "step_s": outcome.step_s,
        "tokens_per_s": outcome.tokens_per_s,
        "sequences_per_s": outcome.sequences_per_s,
        "recompute": outcome.option.recompute.name.lower(),
        "tp": plan.tensor_parallel,
        "dp": plan.data_parallel,
        "pp": len(plan.stages),
        "layers": [plain(asdict(layer)) for layer in outcome.layers],
    }
