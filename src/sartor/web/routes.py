"""The one table of routes: paths, what they take, which lane does the work. Server, checks and OpenAPI read it."""

from __future__ import annotations

from dataclasses import dataclass

from sartor.web.fields import Field

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


MODEL = Field(
    name="model",
    about="A name of the zoo (GET /api/catalog/models). Either this or `config`.",
    kinds=("string",),
    example="llama-3.1-8b",
)
CONFIG = Field(
    name="config",
    about="A Hugging Face config.json: the object itself, or its text.",
    kinds=("object", "string"),
)
NAME = Field(name="name", about="What to call the model of `config`.", kinds=("string",), example="my-model")
GPU = Field(name="gpu", about="A name of GET /api/catalog/gpus.", kinds=("string",), default="h100", example="a100_sxm")
GPU_TOML = Field(
    name="gpu_toml",
    about="A device of one's own in place of `gpu`: the text of a datasheet (docs/howto/add-a-gpu.md; one to "
    "change: GET /api/catalog/gpus/NAME/toml). In `gpus` it goes by the name it gives itself.",
    kinds=("string",),
)
CLUSTER_TOML = Field(
    name="cluster_toml",
    about="A cluster of one's own in place of `cluster`: the text of its file (docs/howto/describe-my-cluster.md; one "
    "to change: GET /api/catalog/clusters/NAME/toml). Devices in it are names of the catalogue or datasheets in place.",
    kinds=("string",),
)
CALIBRATION = Field(
    name="calibration",
    about="What was measured on the (first) device: the text of a file of `sartor calibrate`.",
    kinds=("string",),
)
GPUS = Field(
    name="gpus",
    about="Devices; the first is the one estimated in detail.",
    kinds=("array",),
    items="string",
    most=8,
    example=["h100", "a100"],
)
PHASE = Field(
    name="phase",
    about="What the model is doing.",
    kinds=("string",),
    default="train",
    words=("train", "prefill", "decode"),
)
SEQ_LEN = Field(
    name="seq_len", about="Tokens per sequence. Not given: 2048, or the model's longest.", kinds=("integer",), least=1
)
CONTEXT_LEN = Field(
    name="context_len",
    about="Tokens already in the KV cache. Not given: 2048 in decode, else 0.",
    kinds=("integer",),
    least=0,
)
MICROBATCH = Field(
    name="microbatch_size",
    about="Sequences at once. Not given: 4 in train, 1 in prefill, 8 in decode.",
    kinds=("integer",),
    least=1,
)
TP = Field(name="tp", about="Tensor-parallel devices.", kinds=("integer",), default=1, least=1)
PP = Field(name="pp", about="Pipeline-parallel stages.", kinds=("integer",), default=1, least=1)
EP = Field(name="ep", about="Expert-parallel devices.", kinds=("integer",), default=1, least=1)
DTYPE = Field(
    name="dtype",
    about="Precision of the products: bf16, fp16, fp8, ... Not given: bf16 where the device has it.",
    kinds=("string",),
    example="bf16",
)
ATTENTION = Field(
    name="attention",
    about="Attention as one kernel, or as three.",
    kinds=("string",),
    default="flash",
    words=("flash", "unfused"),
)
SET = Field(
    name="set",
    about="Fields of the shape to change: field to whole number.",
    kinds=("object",),
    example={"num_heads": 32},
)
ASKED = (MODEL, CONFIG, NAME)
QUESTION = (*ASKED, GPU, GPU_TOML, PHASE, SEQ_LEN, MICROBATCH, CONTEXT_LEN, TP, DTYPE, ATTENTION, CALIBRATION, SET)
ALLOW = Field(name="allow", about="Rules to leave out, by name or code.", kinds=("array",), items="string", most=64)
TOLERANCE = Field(
    name="params_tolerance",
    about="How far the parameter count may move, as a share.",
    kinds=("number",),
    default=0.01,
)
FREEZE = Field(name="freeze", about="Fields that must stay.", kinds=("array",), items="string", most=16)
TOP = Field(name="top", about="How many to answer with.", kinds=("integer",), default=10, least=1)
EVIDENCE = Field(
    name="evidence",
    about="Width of the quality guard: 1 as published evidence goes, 0.5 half as wide.",
    kinds=("number",),
    default=1.0,
)
ADVISE = (
    *(field for field in QUESTION if field.name not in ("gpu", "phase")),
    GPUS,
    Field(
        name="objective",
        about="What to be fast in.",
        kinds=("string",),
        default="train",
        words=("train", "prefill", "decode"),
    ),
    TOLERANCE,
    FREEZE,
    TOP,
    EVIDENCE,
)
PLAN = (
    *ASKED,
    Field(
        name="cluster",
        about="A name of GET /api/catalog/clusters.",
        kinds=("string",),
        default="dgx-h100",
        example="dgx-a100",
    ),
    CLUSTER_TOML,
    Field(
        name="num_devices",
        about="Devices, or a list of numbers of them (the front over them). Not given: as many as the cluster has.",
        kinds=("integer", "array"),
        items="integer",
        most=8,
        least=1,
        example=64,
    ),
    Field(
        name="global_batch_size",
        about="Sequences a step over all devices.",
        kinds=("integer",),
        least=1,
        example=512,
    ),
    Field(
        name="seq_len",
        about="Tokens per sequence. Not given: 4096, or the model's longest.",
        kinds=("integer",),
        least=1,
    ),
    Field(name="dtype", about="Recipe: bf16, fp16, fp8, mxfp8, nvfp4, ...", kinds=("string",), example="bf16"),
    Field(
        name="fix",
        about="Axes of the plan to hold: axis to value.",
        kinds=("object",),
        example={"tp": 8, "recompute": "none"},
    ),
    Field(name="framework", about="Trainer.", kinds=("string",), default="megatron", example="torchtitan"),
    Field(name="optimizer", about="Whose states are held.", kinds=("string",), default="adam", example="muon"),
    ATTENTION,
    Field(
        name="context_parallel",
        about="How context parallelism exchanges.",
        kinds=("string",),
        default="ring",
        words=("ring", "all_to_all", "all_gather"),
    ),
    Field(name="routing_skew", about="Largest expert's tokens over the mean.", kinds=("number",), default=1.0, least=1),
    Field(
        name="tokens",
        about="Token budget to cost: a number, or with k, M, B or T behind it.",
        kinds=("number", "string"),
        default=1e12,
        example="300B",
    ),
    CALIBRATION,
    TOP,
    SET,
)
INSTANCE = Field(
    name="instance", about="The instance, as in the file of the command.", kinds=("object",), required=True
)

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
            Field(name="m", about="Rows of A and C.", kinds=("integer",), required=True, least=1, example=4096),
            Field(name="n", about="Columns of B and C.", kinds=("integer",), required=True, least=1, example=4096),
            Field(
                name="k", about="The contracted dimension.", kinds=("integer",), required=True, least=1, example=4096
            ),
            GPU,
            GPU_TOML,
            CALIBRATION,
            Field(name="batch", about="Products of this size.", kinds=("integer",), default=1, least=1),
            DTYPE,
            Field(
                name="layout",
                about="TN forward, NN dgrad, NT wgrad.",
                kinds=("string",),
                default="TN",
                words=("TN", "NN", "NT"),
            ),
            Field(
                name="clock",
                about="boost: a short run, as benchmarks time it.",
                kinds=("string",),
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
        summary="Is anything wasteful: rules broken, and the time each costs.",
        fields=(*QUESTION, PP, EP, ALLOW),
        schema="lint",
        keys=LINT_KEYS,
    ),
    Route(
        name="shape",
        path="/api/shape",
        summary="All a drag shows at once: totals, operators, findings, roofline and a sweep of every field.",
        about="Sweeps have at most 1,000 values each and are one vectorised evaluation per field.",
        fields=(
            *QUESTION,
            Field(
                name="around",
                about="Field to the value its sweep is laid around. Not given: the model's own.",
                kinds=("object",),
            ),
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
            Field(
                name="field",
                about="A field of the shape, or seq_len, microbatch_size, context_len.",
                kinds=("string",),
                required=True,
                example="ffn_hidden_size",
            ),
            Field(
                name="values",
                about="Values to try. Not given: up to 1,000 around the model's own.",
                kinds=("array",),
                items="integer",
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
            Field(
                name="shapes",
                about="Up to 12 shapes: each {name, set {field: value}}. The first is compared with.",
                kinds=("array",),
                items="object",
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
            Field(
                name="trainer",
                about="Whose files.",
                kinds=("string",),
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
            Field(name="time_limit", about="Seconds, at most 20.", kinds=("number",), default=5.0, least=0),
            Field(
                name="solver",
                about="greedy answers at once.",
                kinds=("string",),
                default="cp_sat",
                words=("cp_sat", "greedy"),
            ),
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
