"""A study of ``sartor design``: the front, how the search converged, and the winner, for the design view."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from sartor.designs.point import ModelOutcome
from sartor.engine.study import StudyPoint, StudyRecord, read_study
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap, picked, plain
from sartor.model.workload import Phase
from sartor.pareto import is_pareto

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
        return study_body(read_study(path))
    except InputError as error:
        must = error.must.partition(";")[0]
        if "another program" in must and _is_logged(path):
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


def _question(request: JsonMap) -> JsonDict:
    """The question in short."""
    keys = ("phase", "seq_len", "context_len")
    models = [{"name": str(m.get("name")), **{key: m.get(key) for key in keys}} for m in request.get("models", ())]
    trains = any(model["phase"] in (None, Phase.TRAIN.value) for model in models)
    names = ("num_devices", "objective", "mean", "budgets", "tolerance")
    space = request.get("space") or {}
    return {
        "models": models,
        "global_batch_size": request.get("global_batch_size") if trains else None,
        "space": space.get("name"),
        "num_points": space.get("num_points"),
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
    from sartor.web.study_winner import winner_body

    record = {
        "architecture": plain(dict(best.architecture)),
        "label": _label(best.architecture),
        **picked(best, "area_mm2", "power_w", "die_usd", "objective"),
        "models": [None if o is None else _outcome(o) for o in best.outcomes],
    }
    return {**record, "detail": winner_body(study, best)}


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
