"""Every command with its answers' tables of fields, and the JSON schema that follows from them.

Here too are the tables of answers whose records are JSON already (extract, catalog, study), read by keys.
"""

from __future__ import annotations

from collections.abc import Mapping

from sartor.answers.advice import ADVICE, LINT
from sartor.answers.catalogs import CATALOG
from sartor.answers.design import DESIGN
from sartor.answers.diagnosis import COMPARED, LOG, TRACE
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
from sartor.answers.serving import SERVING
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.units import format_count

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
    "advise": (ADVICE,),
    "lint": (LINT,),
    "plan": (PLAN, LAUNCH),
    "design": (DESIGN,),
    "study": (STUDY,),
    "estimate": (ESTIMATE,),
    "gemm": (GEMM,),
    "collective": (COLLECTIVE,),
    "operators": (OPERATORS,),
    "serving": (SERVING,),
    "place": (PLACEMENT,),
    "schedule": (SCHEDULE,),
    "diagnose": (LOG, TRACE),
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
