"""The table of routes: path, request fields and worker lane. The server, its checks and OpenAPI all read it."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.web.fields import Field, flag, listed, number, table, whole, word
from sartor.web.parameters import (
    ADVISE,
    ALLOW,
    ASKED,
    CALIBRATION,
    DESIGN,
    DTYPE,
    EP,
    GPU,
    GPU_TOML,
    GPUS,
    PLAN,
    PP,
    QUESTION,
    RUN,
    SET,
    SPREAD,
)

QUICK, SLOW = "quick", "slow"
"""Worker lanes: quick answers take milliseconds and must not wait behind searches."""
STUDIES = "studies"
"""Searches for chips, each a process of its own that the request does not wait for (``web.studies``)."""

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
    body_bytes: int = 0
    """Largest body; 0: as the server's settings say."""
    schema: str = ""
    """The ``schema`` key of the answer: ``sartor/<schema>/1``; empty where the answer is not JSON."""
    keys: tuple[str, ...] = ()
    """Keys every answer has beside ``schema`` and ``version``."""


INSTANCE = table("instance", "The instance, as in the file the command reads.", required=True)

LINT_KEYS = ("model", "workload", "findings", "worst_grade")
STUDY_KEYS = ("status", "evaluated", "pareto", "convergence")
PLAN_KEYS = ("status", "model", "cluster", "job", "best", "top", "evaluated", "rejected", "tightest")

ROUTES = (
    Route(
        name="estimate",
        path="/api/estimate",
        summary="Where the time goes: every operator on one device, and the training step of the whole plan.",
        fields=(*QUESTION, *SPREAD),
        schema="estimate",
        keys=("model", "workload", "operators", "totals"),
    ),
    Route(
        name="gemm",
        path="/api/gemm",
        summary="One GEMM, C[m,n] = A[m,k] B[k,n]: its time, and every tile considered.",
        fields=(
            whole("m", "Rows of A and C.", required=True, least=1, example=4096),
            whole("n", "Columns of B and C.", required=True, least=1, example=4096),
            whole("k", "Inner dimension.", required=True, least=1, example=4096),
            GPU,
            GPU_TOML,
            CALIBRATION,
            whole("batch", "Number of GEMMs of this size.", default=1, least=1),
            DTYPE,
            word("layout", "TN forward, NN dgrad, NT wgrad.", default="TN", words=("TN", "NN", "NT")),
            word(
                "clock",
                "boost: a short benchmark run; sustained: a long run limited by power.",
                default="boost",
                words=("boost", "sustained"),
            ),
        ),
        schema="gemm",
        keys=("gpu", "dtype", "layout", "name", "time_s", "low_s", "high_s", "tiles"),
    ),
    Route(
        name="lint",
        path="/api/lint",
        summary="What is wasteful: rules broken, and the time each one costs.",
        fields=(*QUESTION, PP, EP, ALLOW),
        schema="lint",
        keys=LINT_KEYS,
    ),
    Route(
        name="shape",
        path="/api/shape",
        summary="Everything the shape view shows: totals, operators, findings, roofline and a sweep of every field.",
        about="A sweep has at most 1,000 values.",
        fields=(
            *QUESTION,
            table("around", "Center of each field's sweep. Default: the model's own value."),
            flag(
                "moving", "While a size is dragged: no sweeps, no findings, nor the changes after which it would fit."
            ),
        ),
        schema="shape",
        keys=("model", "workload", "totals", "baseline", "operators", "findings", "sweeps", "roofline"),
    ),
    Route(
        name="sweep",
        path="/api/sweep",
        summary="Step time over up to 4,096 values of one field.",
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
                "Values to try. Default: up to 1,000 around the model's own.",
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
        summary="Several shapes on several GPUs, with the probability that one is faster than the other.",
        fields=(
            *(field for field in QUESTION if field.name != "gpu"),
            GPUS,
            listed(
                "object",
                "shapes",
                "Up to 12 shapes, each {name, set {field: value}}. The first is the reference.",
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
        summary="Faster shapes of the same size, best first, and the smallest change that gets most of the gain.",
        fields=ADVISE,
        lane=SLOW,
        schema="advise",
        keys=(*LINT_KEYS, "baseline", "candidates", "evaluated"),
    ),
    Route(
        name="report",
        path="/api/report",
        summary="The HTML page of `sartor advise --html`.",
        fields=ADVISE,
        lane=SLOW,
        media="text/html; charset=utf-8",
    ),
    Route(
        name="config",
        path="/api/config",
        summary="The config.json with the changes in `set` applied.",
        about="It is read back and checked before it is sent.",
        fields=(*ASKED, SET),
    ),
    Route(
        name="plan",
        path="/api/plan",
        summary="The fastest parallel plan that fits in memory, out of all legal plans.",
        fields=PLAN,
        lane=SLOW,
        schema="plan",
        keys=PLAN_KEYS,
    ),
    Route(
        name="plan_figures",
        path="/api/plan/figures",
        summary="The data of the plan's figures: all plans, the pipeline schedule, memory over the step.",
        fields=PLAN,
        lane=SLOW,
        schema="plan_figures",
        keys=("status", "figures"),
    ),
    Route(
        name="plan_why",
        path="/api/plan/why",
        summary="Why not another plan: the fastest one with given axes beside the best, term by term.",
        fields=(
            *PLAN,
            table("why_not", "Axes of the other plan.", required=True, example={"tp": 8, "pp": 2}),
        ),
        lane=SLOW,
        schema="plan_why",
        keys=("asked", "plan", "reason", "terms"),
    ),
    Route(
        name="plan_trace",
        path="/api/plan/trace",
        summary="The best plan's step as a trace for Perfetto or chrome://tracing.",
        fields=PLAN,
        lane=SLOW,
    ),
    Route(
        name="plan_launch",
        path="/api/plan/launch",
        summary="Launch files of the best plan.",
        fields=(
            *PLAN,
            word(
                "trainer",
                "Framework to write launch files for.",
                default="megatron",
                words=("megatron", "megatron-bridge", "torchtitan", "deepspeed", "accelerate", "maxtext"),
            ),
        ),
        lane=SLOW,
        schema="plan_launch",
        keys=("trainer", "files", "notes"),
    ),
    Route(
        name="diagnose",
        path="/api/diagnose",
        summary="Where the time of a run went, by its log or profiler trace, held against the prediction.",
        about="`says` is the answer in words, `figures` the data of its figures.",
        fields=RUN,
        lane=SLOW,
        body_bytes=2**25,
        schema="diagnose",
        keys=("measured", "predicted", "parts", "says", "figures"),
    ),
    Route(
        name="place",
        path="/api/place",
        summary="The optimal placement of a given instance.",
        fields=(INSTANCE,),
        lane=SLOW,
        schema="place",
        keys=("status", "time_per_batch_s", "stages"),
    ),
    Route(
        name="schedule",
        path="/api/schedule",
        summary="The shortest schedule of a layer's operators found, with a lower bound.",
        fields=(
            INSTANCE,
            number("time_limit", "Time limit in seconds, at most 20.", default=5.0, least=0),
            word("solver", "greedy is instant but not optimal.", default="cp_sat", words=("cp_sat", "greedy")),
        ),
        lane=SLOW,
        schema="schedule",
        keys=("status", "makespan", "lower_bound", "operators"),
    ),
    Route(
        name="study",
        path="/api/study",
        summary="The content of a `sartor design` study file: Pareto front, convergence, best design.",
        about="The body is the SQLite file, followed by its -wal file if it is still being written.",
        lane=SLOW,
        body_bytes=2**26,
        takes="application/octet-stream",
        schema="study",
        keys=STUDY_KEYS,
    ),
    Route(
        name="watched",
        path="/api/study",
        method="GET",
        summary="The current state of the study opened with `sartor serve --study FILE`.",
        lane=SLOW,
        schema="study",
        keys=STUDY_KEYS,
    ),
    Route(
        name="design",
        path="/api/design",
        summary="Start a search of `sartor design`: which accelerator and plan go best together.",
        about="One at a time. The answer is the study at its beginning; `id` names it until the server ends.",
        fields=DESIGN,
        lane=STUDIES,
        schema="study",
        keys=STUDY_KEYS,
    ),
    Route(
        name="design_state",
        path="/api/design/{id}",
        method="GET",
        summary="A study started here, as it is now.",
        lane=STUDIES,
        schema="study",
        keys=STUDY_KEYS,
    ),
    Route(
        name="design_stop",
        path="/api/design/{id}/stop",
        summary="End a search with the best so far.",
        lane=STUDIES,
        schema="study",
        keys=STUDY_KEYS,
    ),
    Route(
        name="design_file",
        path="/api/design/{id}/file",
        method="GET",
        summary="The study file of a search that has ended, for `sartor design --study`.",
        lane=STUDIES,
        media="application/vnd.sqlite3",
    ),
    Route(
        name="catalog",
        path="/api/catalog/{what}",
        method="GET",
        summary="List a catalogue: gpus, models, clusters, rules, accelerators, spaces.",
        schema="catalog",
        keys=("catalog", "entries"),
    ),
    Route(
        name="catalog_entry",
        path="/api/catalog/{what}/{entry}",
        method="GET",
        summary="One entry with all fields and sources.",
        schema="catalog",
        keys=("catalog", "entries"),
    ),
    Route(
        name="catalog_toml",
        path="/api/catalog/{what}/{entry}/toml",
        method="GET",
        summary="The TOML file of a GPU or cluster, to edit and send back as `gpu_toml` or `cluster_toml`.",
        media="text/plain; charset=utf-8",
    ),
)
"""Every question; ``/health``, ``/openapi.json`` and the page itself are beside it in ``web.pages``."""


def route_named(name: str) -> Route:
    return next(route for route in ROUTES if route.name == name)
