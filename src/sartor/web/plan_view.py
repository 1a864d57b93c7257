"""A plan over HTTP: the search (cached), figure data, launch files."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

from sartor import api
from sartor.answers.plan import PlanAnswer
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap, plain, record
from sartor.units import parse_count
from sartor.web.asked import cluster_of, model_of, question_of
from sartor.web.uploads import question_key

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
        cluster_of(body),
        fix=fixed_axes(body["fix"]),
        top=body["top"],
        tokens=parse_count("tokens", str(body["tokens"])),
        **{name: value for name, value in question_of(body).items() if name != "cluster"},
    )


def fixed_axes(axes: JsonMap | None, field: str = "fix") -> JsonDict:
    """Fixed axes as words, as on the command line. Raises ``InputError``."""
    out = {}
    for name, value in (axes or {}).items():
        if isinstance(value, (dict, list)) or value is None:
            raise InputError(field, name, "must be a number or a word", "tp=8,pp=4")
        out[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return out


def figures_body(answer: PlanAnswer) -> JsonDict:
    """The figures' records by name; empty if no plan fits."""
    from sartor.report.plan_points import PlanCloud, plan_points
    from sartor.report.plan_words import headline, plan_words

    points = plan_points(answer, MOST_TASKS)
    figures = {
        name: record(_fewer(figure) if isinstance(figure, PlanCloud) else figure) for name, figure in points.items()
    }
    words = {} if answer.best is None else {"headline": headline(answer), "best": plan_words(answer.best.plan)}
    return {"status": answer.search.status.value, **words, "figures": plain(figures)}


def _fewer(cloud: Any) -> Any:
    """At most ``MOST_POINTS`` of a cloud's plans: the fastest, and the best."""
    from dataclasses import replace

    import numpy as np

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

    beside = beside_best(answer.search, fixed_axes(request, "why_not"), answer.calibration)
    if beside is None:
        raise InputError("why_not", "given", "nothing fits at all, so there is no best plan to compare with")
    return dict(to_json(beside, WHY_NOT))


def trace_of(answer: PlanAnswer) -> bytes:
    """The best plan's step for Perfetto. Raises ``InputError`` if no plan fits."""
    from sartor.report.plan_trace import plan_trace

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
