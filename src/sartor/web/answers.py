"""One function per route, from the request's fields to a ``Reply``, using only the API and the JSON reports."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from sartor import api
from sartor.answers.field import to_json
from sartor.answers.measured import PLACEMENT, SCHEDULE
from sartor.api.models import catalog_entries
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.units import parse_count
from sartor.web.arguments import device_of, model_of, plain_name, question_of, stated_device, stated_devices
from sartor.web.guard import Reply, answered, compact
from sartor.web.routes import GROUPS

Body = JsonMap

MOST_CANDIDATES = 200
"""Largest ``top`` over HTTP: a page of a few hundred kB."""


def estimate(body: Body) -> Reply:
    answer = api.estimate(model_of(body), stated_device(body), **question_of(body))
    return answered("estimate", answer.to_dict())


def serving(body: Body) -> Reply:
    load = {name: body[name] for name in GROUPS["load"]}
    return answered("serving", api.serving(model_of(body), stated_device(body), **load, **question_of(body)).to_dict())


def deploy(body: Body) -> Reply:
    from sartor.report.charts import drawn
    from sartor.report.table_serving import deploy_lines, front_points, layouts_title

    names = [name.rpartition(".")[2] for name in GROUPS["requests"]]
    words = {name: body[name] for name in names if body.get(name) is not None}
    if "traffic" in words:  # a text, never a path
        words["traffic"] += "\n"
    answer = api.deploy(model_of(body), stated_devices(body) or None, **words, **question_of(body))
    if not body["says"]:
        return answered("deploy", answer.to_dict())
    start = [*answer.best.commands, *answer.best.notes()] if answer.best else []
    says = {"lines": deploy_lines(answer), "layouts": layouts_title(answer), "start": "\n".join(start).strip()}
    figure = drawn(front_points(answer)) if len(answer.front) > 1 else None
    return answered("deploy", {**answer.to_dict(), "says": says, "figure": figure})


def gemm(body: Body) -> Reply:
    words = {name: body[name] for name in ("batch", "dtype", "layout", "kernels", "clock", "calibration")}
    answer = api.gemm(body["m"], body["n"], body["k"], device_of(body), **words)
    return answered("gemm", answer.to_dict())


def lint(body: Body) -> Reply:
    allow = _names_of("allow", body["allow"])
    answer = api.lint(model_of(body), stated_device(body), allow=allow, **question_of(body))
    return answered("lint", answer.to_dict())


def shape(body: Body) -> Reply:
    from sartor.web.shape_view import shape_body

    return compact("shape", shape_body(body))


def roofline(body: Body) -> Reply:
    from sartor.web.shape_view import roofline_figure

    return compact("roofline", roofline_figure(body))


def sweep(body: Body) -> Reply:
    from sartor.web.shape_view import sweep_answer

    return compact("sweep", sweep_answer(body))


def compare(body: Body) -> Reply:
    from sartor.web.plan_view import compare_body

    return compact("compare", compare_body(body))


def advise(body: Body) -> Reply:
    return answered("advise", _advice(body).to_dict())


def report(body: Body) -> Reply:
    from sartor.report.advice_document import advice_page

    return Reply(body=advice_page(_advice(body)).encode(), media="text/html; charset=utf-8")


def _advice(body: Body) -> Any:
    return api.advise(
        model_of(body),
        stated_devices(body) or None,
        objective=body["objective"],
        equal=body["equal"],
        params_tolerance=body["params_tolerance"],
        tokens=None if body["tokens"] is None else parse_count("tokens", str(body["tokens"])),
        freeze=_names_of("freeze", body["freeze"]),
        free=_names_of("free", body["free"]),
        top=_bounded("top", body["top"], MOST_CANDIDATES),
        evidence=body["evidence"],
        **question_of(body),
    )


def _names_of(field: str, values: Sequence[object] | None) -> tuple[str, ...]:
    """A list of words as a tuple; empty if not given."""
    return tuple(str(value) for value in values or ())


def config(body: Body) -> Reply:
    return Reply(body=written_config(body))


def written_config(body: JsonMap) -> bytes:
    """The bytes of a config.json with the requested shape. Raises ``InputError`` if no such file exists."""
    from sartor.model.editing import edit_fields
    from sartor.read.config_text import parse_config
    from sartor.read.zoo_config import config_with

    reading, changes, file = model_of(body), body["set"] or {}, body["config"]
    edited, _ = edit_fields(reading.shape, changes) if changes else (reading.shape, ())
    parsed = parse_config(file.encode()) if isinstance(file, str) else file
    written = config_with(parsed, str(body["model"]), reading.shape, edited, changes)
    return (json.dumps(written, indent=2, ensure_ascii=True) + "\n").encode()


def plan(body: Body) -> Reply:
    from sartor.web.plan_view import planned

    return answered("plan", planned(body).to_dict())


def plan_figures(body: Body) -> Reply:
    from sartor.web.plan_view import figures_body, planned

    return compact("plan_figures", figures_body(planned(body)))


def plan_why(body: Body) -> Reply:
    from sartor.web.plan_view import planned, why_body

    return compact("plan_why", why_body(planned(body), body["why_not"]))


def plan_trace(body: Body) -> Reply:
    from sartor.web.plan_view import planned, trace_of

    return Reply(body=trace_of(planned(body)))


def plan_launch(body: Body) -> Reply:
    from sartor.web.plan_view import launch_body, planned

    made = launch_body(planned(body), body["trainer"])
    with suppress(InputError):  # a model that no config.json describes
        made["files"].append({"name": "config.json", "text": written_config(body).decode()})
    return answered("plan_launch", made)


def diagnose(body: Body) -> Reply:
    from sartor.web.plan_view import run_body

    return compact("diagnose", run_body(body))


def study_example(body: Body) -> Reply:
    from sartor.web.study_view import example_body

    return answered("study", example_body())


def place(body: Body) -> Reply:
    from sartor.placement.place import place as solve
    from sartor.read.problems_json import parse_placement

    return answered("place", to_json(solve(parse_placement(dict(body["instance"])), None), PLACEMENT))


def schedule(body: Body) -> Reply:
    from sartor.read.problems_json import schedule_problem
    from sartor.schedules.problem import Solver
    from sartor.schedules.solve import solve

    if body["solver"] not in ("cp_sat", "greedy"):
        raise InputError("solver", body["solver"], "must be one of cp_sat, greedy", "cp_sat")
    seconds = body["time_limit"]
    if not 0 <= seconds <= 20:
        raise InputError("time_limit", seconds, "must be from 0 to 20 seconds over HTTP", "5")
    return answered(
        "schedule", to_json(solve(schedule_problem(body["instance"]), seconds, Solver(body["solver"])), SCHEDULE)
    )


def catalog(body: Body) -> Reply:
    return answered("catalog", {"catalog": body["what"], "entries": catalog_entries(body["what"])})


def catalog_entry(body: Body) -> Reply:
    entries = catalog_entries(body["what"], plain_name("name", body["entry"]))
    return answered("catalog", {"catalog": body["what"], "entries": entries})


def catalog_toml(body: Body) -> Reply:
    from sartor.hardware.catalog import ACCELERATORS, GPUS
    from sartor.hardware.cluster_catalog import CLUSTERS

    files = {catalogue.shelf: catalogue for catalogue in (GPUS, CLUSTERS, ACCELERATORS)}
    if body["what"] not in files:
        raise InputError("catalog", body["what"], f"must be one whose entries are files: {', '.join(files)}", "gpus")
    text = files[body["what"]].text(plain_name("name", body["entry"]))
    return Reply(body=text.encode(), media="text/plain; charset=utf-8")


def _bounded(field: str, value: object, largest: int) -> Any:
    """A count limited to ``most`` over HTTP; other checks are made where it is used."""
    if isinstance(value, int) and value > largest:
        raise InputError(field, value, f"must be at most {largest} over HTTP", str(largest))
    return value
