"""Every command with its answers' tables of fields, and the JSON schema that follows from them.

Here too are the tables of answers whose records are JSON already (extract, catalog, study), read by keys, and what a
line of each catalogue shows.
"""

from __future__ import annotations

from collections.abc import Mapping

from sartor.answers.advice import ADVICE, LINT
from sartor.answers.design import DESIGN
from sartor.answers.diagnosis import COMPARED, LOG, LOG_FACTS, TRACE
from sartor.answers.estimate import COLLECTIVE, ESTIMATE, GEMM
from sartor.answers.field import (
    Fields,
    Scalar,
    field,
    flag,
    integer,
    integers,
    mapping,
    number,
    numbers,
    rows,
    schema_of,
    text,
    texts,
)
from sartor.answers.measured import (
    ANYTHING,
    CALIBRATE,
    CHANGED_CALIBRATION,
    MEASURE,
    OPERATORS,
    PARITY,
    PLACEMENT,
    SAMPLES,
    SCHEDULE,
    VALIDATE,
    sometimes,
)
from sartor.answers.plan import LAUNCH, PLAN
from sartor.answers.serving import DEPLOYMENT, SERVED_ADVICE, SERVING
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.units import GIB, MIB, TERA, format_count

CATALOG: Fields = (
    text("catalog"),
    rows("entries", (mapping("", Scalar.ANY),), help="with source and date"),
)


def _tera(rate: float) -> str:
    return f"{rate / TERA:,.0f}"


def _bf16_rate(gpu: JsonDict) -> float | None:
    peak = gpu["peak_flops_per_s"]
    rate: float | None = peak.get("bf16") or peak.get("fp16")
    return rate


def _experts(model: JsonDict) -> str:
    experts = model.get("experts")
    return f"{experts['experts_per_token']} of {experts['num_experts']}" if experts else ""


def _links(cluster: JsonDict) -> str:
    """``nvlink 450 among 8, infiniband 50``."""
    return ", ".join(
        f"{tier['name']} {tier['bytes_per_s'] / 1e9:.4g}" + (f" among {tier['span']}" if tier["span"] else "")
        for tier in cluster["tiers"]
    )


_RATE = number("hbm_bytes_per_s", "TB/s", form=lambda rate: f"{rate / TERA:.2f}")
ENTRIES: Mapping[str, Fields] = {
    "gpus": (
        text("name", "name"),
        text("generation", "generation"),
        integer("num_sms", "cores"),
        number("bf16", "bf16 TFLOP/s", path=_bf16_rate, form=_tera),
        number("fp8", "fp8", path=lambda gpu: gpu["peak_flops_per_s"].get("fp8"), form=_tera),
        number("hbm_bytes", "HBM GiB", form=lambda size: f"{size / GIB:.0f}"),
        _RATE,
        number("usd", "USD/h", path=lambda gpu: gpu.get("price_usd_per_hour") or None, form="{:.2f}".format),
        text("dated", "of", path=lambda gpu: gpu.get("price_date") or ""),
    ),
    "models": (
        text("name", "name"),
        number("params", "params", path=lambda model: model["params"]["total"], form=format_count),
        integer("num_layers", "layers"),
        *(
            integer(name, words, path=lambda model, name=name: model.get(name))
            for name, words in (
                ("hidden_size", "hidden"),
                ("num_heads", "heads"),
                ("num_kv_heads", "kv"),
                ("ffn_hidden_size", "ffn"),
                ("vocab_size", "vocab"),
            )
        ),
        text("experts", "experts", path=_experts),
    ),
    "clusters": (
        text("name", "name"),
        text("gpu", "device"),
        integer("devices_per_node", "per node"),
        integer("num_devices", "devices", form=lambda count: str(count or "any")),
        text("tiers", "links [GB/s per device and direction]", path=_links),
    ),
    "rules": (text("code", "code"), text("name", "name"), text("worst", "worst"), text("title", "what it finds")),
    "accelerators": (
        text("name", "name"),
        text(
            "arrays", "tensor cores", path=lambda a: f"{a['num_tensor_cores']} of {a['array_rows']} x {a['array_cols']}"
        ),
        text("lanes", "vector cores", path=lambda a: f"{a['num_vector_cores']} of {a['vector_lanes']}"),
        number("peak_flops_per_s", "TFLOP/s", form=_tera),
        number("global_buffer_bytes", "buffer MiB", form=lambda size: f"{size / MIB:g}"),
        number("hbm_bytes", "HBM GiB", form=lambda size: f"{size / GIB:g}"),
        _RATE,
        number("node_nm", "nm", form="{:g}".format),
    ),
    "spaces": (
        text("name", "name"),
        integer("num_points", "points", form="{:,}".format),
        integer("num_candidates", "kept", form="{:,}".format),
        text("area_model", "area"),
        text("title", "description", path=lambda space: space.get("title")),
    ),
}
"""Columns of each catalogue."""


VERSION = 1
"""Number of every schema; it is raised when a key changes."""


# ------------------------------------------------------------------------------------------------ extract, catalog

TRACED_LAYER: Fields = (
    text("name", "layers"),
    text("module"),
    integer("count", "count"),
    rows("positions", Scalar.INTEGER),
    integer("num_params", "params", form=format_count),
    integer("trainable_params"),
    *numbers("buffer_bytes expert_params weight_sets"),
    number("stash_bytes", "kept until backward"),
    *numbers("recomputed_bytes output_bytes"),
)
TRACED_OPERATOR: Fields = (
    text("name", "operator"),
    text("kind", "kind"),
    text("pass", "pass"),
    text("part"),
    number("count", "count", form="{:,.0f}".format),
    *texts("dtype grows"),
    rows("inputs", Scalar.ANY),
    rows("outputs", Scalar.ANY),
    number("flops", "GFLOP", form=lambda flops: f"{flops / 1e9:,.3g}"),
    number("bytes_moved"),
    mapping("", Scalar.ANY, help="sizes, layer and module"),
)
EXTRACT: Fields = (
    mapping("model", Scalar.ANY),
    mapping("workload", Scalar.ANY),
    rows("inputs", (text("name"), rows("shape", Scalar.INTEGER), text("dtype"))),
    rows("layers", TRACED_LAYER),
    rows("operators", TRACED_OPERATOR),
    rows("edges", Scalar.ANY, help="[from, to] by position"),
    mapping("totals", Scalar.NUMBER),
    mapping("versions", Scalar.TEXT),
    rows("notes", Scalar.TEXT),
)
STUDY: Fields = (
    text("status"),
    mapping("question", Scalar.ANY),
    integer("evaluated"),
    *integers("waiting pruned", null=True),
    *numbers("left_s upper_bound objective gap", null=True),
    rows("sessions", (ANYTHING,)),
    mapping("pareto", Scalar.ANY, help="evaluated points as columns, best first"),
    mapping("convergence", Scalar.ANY),
    mapping("best", Scalar.ANY, null=True),
    text("fingerprint"),
    flag("complete"),
    rows("baselines", (text("name"), number("evaluations"), number("seconds"), text("note", null=True),
                       number("objective", null=True))),
    rows("searches", Scalar.ANY),
    number("seconds"),
)  # fmt: skip

# ------------------------------------------------------------------------------------------------ the commands

COMMANDS: Mapping[str, tuple[Fields, ...]] = {
    "advise": (ADVICE, SERVED_ADVICE),
    "lint": (LINT,),
    "plan": (PLAN, LAUNCH),
    "design": (DESIGN,),
    "study": (STUDY,),
    "estimate": (ESTIMATE,),
    "gemm": (GEMM,),
    "collective": (COLLECTIVE,),
    "operators": (OPERATORS,),
    "serving": (SERVING,),
    "deploy": (DEPLOYMENT,),
    "place": (PLACEMENT,),
    "schedule": (SCHEDULE,),
    "diagnose": (LOG, LOG_FACTS, TRACE),
    "compare": (COMPARED,),
    "validate": (VALIDATE,),
    "calibrate": (CALIBRATE, SAMPLES, CHANGED_CALIBRATION),
    "measure": (MEASURE, PARITY),
    "extract": (EXTRACT,),
    "catalog": (CATALOG,),
}
"""The tables of each command's answers; several: of its kinds of answer."""

ERROR: Fields = (
    *texts("message field value must"),
    text("nearest", null=True),
    flag("internal", when=sometimes, help="an error of sartor's own"),
)


def command_schema(command: str) -> JsonDict:
    """The JSON schema (draft 2020-12) of what a command prints with ``--json``. Raises ``InputError``."""
    if command not in COMMANDS:
        raise InputError("COMMAND", command, f"must be one of {', '.join(COMMANDS)}")
    answers = [*COMMANDS[command], (field("error", ERROR),)]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"sartor/{command}/{VERSION}",
        "title": f"sartor {command} --json",
        "anyOf": [_enveloped(command, fields) for fields in answers],
    }


def _enveloped(command: str, fields: Fields) -> JsonDict:
    schema = schema_of(fields)
    envelope = {"schema": {"const": f"sartor/{command}/{VERSION}"}, "version": {"type": "string"}}
    return {
        **schema,
        "properties": {**envelope, **schema["properties"]},
        "required": [*envelope, *schema["required"]],
    }
