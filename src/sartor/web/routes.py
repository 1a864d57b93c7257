"""The one table of routes: paths, what they take, which lane does the work. Server, checks and OpenAPI read it."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.web.fields import Field, listed, number, table, whole, word
from sartor.web.parameters import (
    ADVISE,
    ALLOW,
    ASKED,
    CALIBRATION,
    DTYPE,
    EP,
    GPU,
    GPU_TOML,
    GPUS,
    PLAN,
    PP,
    QUESTION,
    SET,
)

QUICK, SLOW = "quick", "slow"
"""Lanes of workers: answers in milliseconds, and searches, which must not keep those waiting."""

SHELVES = ("gpus", "models", "clusters", "rules", "accelerators", "spaces")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A question that can be asked over HTTP. ``name`` is the function of ``web.answers`` that answers it."""

    name: str
    path: str
    summary: str
    about: str = ""
    method: str = "POST"
    fields: tuple[Field, ...] = ()
    lane: str = QUICK
    media: str = "application/json"
    takes: str = "application/json"
    schema: str = ""
    """The ``schema`` key of the answer: ``sartor/<schema>/1``; empty where the answer is no JSON."""
    keys: tuple[str, ...] = ()
    """Keys every answer has beside ``schema`` and ``version``."""


INSTANCE = table("instance", "The instance, as in the file of the command.", required=True)

LINT_KEYS = ("model", "workload", "findings", "worst_grade")
PLAN_KEYS = ("status", "model", "cluster", "job", "best", "top", "evaluated", "rejected", "tightest")

ROUTES = (
    Route(
        name="estimate",
        path="/api/estimate",
        summary="Where does the time go: every operator of one device's share, with its interval.",
        fields=(*QUESTION, PP, EP),
        schema="estimate",
        keys=("model", "workload", "operators", "totals"),
    ),
    Route(
        name="gemm",
        path="/api/gemm",
        summary="One product C[m,n] = A[m,k] B[k,n]: its time, and every tile considered.",
        fields=(
            whole("m", "Rows of A and C.", required=True, least=1, example=4096),
            whole("n", "Columns of B and C.", required=True, least=1, example=4096),
            whole("k", "The contracted dimension.", required=True, least=1, example=4096),
            GPU,
            GPU_TOML,
            CALIBRATION,
            whole("batch", "Products of this size.", default=1, least=1),
            DTYPE,
            word("layout", "TN forward, NN dgrad, NT wgrad.", default="TN", words=("TN", "NN", "NT")),
            word("clock", "boost: a short run, as benchmarks time it.", default="boost", words=("boost", "sustained")),
        ),
        schema="gemm",
        keys=("gpu", "dtype", "layout", "name", "time_s", "low_s", "high_s", "tiles"),
    ),
    Route(
        name="lint",
        path="/api/lint",
        summary="Is anything wasteful: rules broken, and the time each costs.",
        fields=(*QUESTION, PP, EP, ALLOW),
        schema="lint",
        keys=LINT_KEYS,
    ),
    Route(
        name="shape",
        path="/api/shape",
        summary="All a drag shows at once: totals, operators, findings, roofline and a sweep of every field.",
        about="Sweeps have at most 1,000 values each; all of them are one vectorised evaluation.",
        fields=(
            *QUESTION,
            table("around", "Field to the value its sweep is laid around. Not given: the model's own."),
        ),
        schema="shape",
        keys=("model", "workload", "totals", "baseline", "operators", "findings", "sweeps", "roofline"),
    ),
    Route(
        name="sweep",
        path="/api/sweep",
        summary="One field at up to 4,096 values, the others as they are: the sawtooth, in one vectorised call.",
        fields=(
            *QUESTION,
            word(
                "field",
                "A field of the shape, or seq_len, microbatch_size, context_len.",
                required=True,
                example="ffn_hidden_size",
            ),
            listed(
                "integer",
                "values",
                "Values to try. Not given: up to 1,000 around the model's own.",
                most=4096,
                example=[11008, 11264],
            ),
        ),
        schema="sweep",
        keys=("field", "asked", "values", "time_s", "num_params", "flops", "better"),
    ),
    Route(
        name="compare",
        path="/api/compare",
        summary="Shapes beside each other on several devices, with the probability that one beats the other.",
        fields=(
            *(field for field in QUESTION if field.name != "gpu"),
            GPUS,
            listed(
                "object",
                "shapes",
                "Up to 12 shapes: each {name, set {field: value}}. The first is compared with.",
                most=12,
                required=True,
                example=[{"name": "as it is", "set": {}}],
            ),
        ),
        schema="compare",
        keys=("shapes", "gpus", "times"),
    ),
    Route(
        name="advise",
        path="/api/advise",
        summary="What would be faster at the same size, best first, and the smallest edit that pays.",
        fields=ADVISE,
        lane=SLOW,
        schema="advise",
        keys=(*LINT_KEYS, "baseline", "candidates", "evaluated"),
    ),
    Route(
        name="report",
        path="/api/report",
        summary="The page of `sartor advise --html`: one offline document with figures.",
        fields=ADVISE,
        lane=SLOW,
        media="text/html; charset=utf-8",
    ),
    Route(
        name="config",
        path="/api/config",
        summary="The config.json with the changes of `set` written into it.",
        about="Read back and compared before it is answered: its sizes are those asked for.",
        fields=(*ASKED, SET),
    ),
    Route(
        name="plan",
        path="/api/plan",
        summary="The parallel plan with the shortest predicted step that fits, out of every legal one.",
        fields=PLAN,
        lane=SLOW,
        schema="plan",
        keys=PLAN_KEYS,
    ),
    Route(
        name="plan_figures",
        path="/api/plan/figures",
        summary="The numbers behind a plan's figures: plans as points, the pipeline in time, memory over the step.",
        fields=PLAN,
        lane=SLOW,
        schema="plan_figures",
        keys=("status", "figures"),
    ),
    Route(
        name="plan_launch",
        path="/api/plan/launch",
        summary="Launch files of the best plan.",
        fields=(
            *PLAN,
            word(
                "trainer",
                "Whose files.",
                default="megatron",
                words=("megatron", "torchtitan", "deepspeed", "accelerate"),
            ),
        ),
        lane=SLOW,
        schema="plan_launch",
        keys=("trainer", "files", "notes"),
    ),
    Route(
        name="place",
        path="/api/place",
        summary="The fastest placement of a given instance, proved.",
        fields=(INSTANCE,),
        lane=SLOW,
        schema="place",
        keys=("status", "time_per_batch_s", "stages"),
    ),
    Route(
        name="schedule",
        path="/api/schedule",
        summary="The shortest schedule of one layer's operators, with what is proved about it.",
        fields=(
            INSTANCE,
            number("time_limit", "Seconds, at most 20.", default=5.0, least=0),
            word("solver", "greedy answers at once.", default="cp_sat", words=("cp_sat", "greedy")),
        ),
        lane=SLOW,
        schema="schedule",
        keys=("status", "makespan", "lower_bound", "operators"),
    ),
    Route(
        name="study",
        path="/api/study",
        summary="What a study file of `sartor design` holds: the front, the convergence, the winner.",
        about="The body is the file itself (SQLite).",
        lane=SLOW,
        takes="application/octet-stream",
        schema="study",
        keys=("status", "evaluated", "pareto", "convergence"),
    ),
    Route(
        name="watched",
        path="/api/study",
        method="GET",
        summary="The study named on the command line (`sartor serve --study FILE`), as it is now.",
        lane=SLOW,
        schema="study",
        keys=("status", "evaluated", "pareto", "convergence"),
    ),
    Route(
        name="catalog",
        path="/api/catalog/{what}",
        method="GET",
        summary="What is known, and from where: gpus, models, clusters, rules, accelerators, spaces.",
        schema="catalog",
        keys=("catalog", "entries"),
    ),
    Route(
        name="catalog_entry",
        path="/api/catalog/{what}/{entry}",
        method="GET",
        summary="One entry whole, with its sources.",
        schema="catalog",
        keys=("catalog", "entries"),
    ),
    Route(
        name="catalog_toml",
        path="/api/catalog/{what}/{entry}/toml",
        method="GET",
        summary="The file of a device or a cluster, to be changed and sent back as `gpu_toml` or `cluster_toml`.",
        media="text/plain; charset=utf-8",
    ),
)
"""Every question; ``/health``, ``/openapi.json`` and the page itself are beside it in ``web.pages``."""


def route_named(name: str) -> Route:
    return next(route for route in ROUTES if route.name == name)
