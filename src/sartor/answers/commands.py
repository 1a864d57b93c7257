"""Every command with its answers' tables of fields, and the JSON schema that follows from them.

Here too are the tables of answers whose records are JSON already (validate, measure, calibrate, operators, extract,
catalog, study): they read a mapping by its keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sartor.answers.advice import ADVICE, LINT
from sartor.answers.design import DESIGN
from sartor.answers.diagnosis import COMPARED, LOG, TRACE
from sartor.answers.estimate import COLLECTIVE, ESTIMATE, GEMM, INTERVAL
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
from sartor.answers.plan import LAUNCH, PLAN
from sartor.answers.serving import SERVING
from sartor.answers.solved import PLACEMENT, SCHEDULE
from sartor.errors import InputError
from sartor.json_types import JsonDict

VERSION = 1
"""Number of every schema; it is raised when a key changes."""


def _sometimes(record: Any) -> bool:
    """For a field that some answers of the command lack."""
    return True


_ANYTHING = mapping("", Scalar.ANY)

# ------------------------------------------------------------------------------------------------ validate, operators

_ERRORS = "mape median_error p90_error bias coverage_80 kendall_tau"
GROUP: Fields = (
    text("table"),
    *integers("rows targets expressed"),
    *numbers(_ERRORS, null=True),
    rows("worst", (_ANYTHING,), help="the targets with the largest errors"),
    mapping("", Scalar.ANY, help="the columns that it is grouped by, and errors of some tables alone"),
)
VALIDATE: Fields = (
    text("data"),
    *integers("num_rows expressed"),
    rows("groups", GROUP),
    mapping("overall", Scalar.ANY, when=_sometimes),
    *numbers("memory_mape oom_correct pair_accuracy top1_regret", null=True, when=_sometimes),
    integer("shots", when=_sometimes),
    mapping("not_expressed", Scalar.INTEGER, help="reason: rows"),
    mapping("left_out", Scalar.INTEGER, help="reason: rows"),
    rows("remarks", Scalar.TEXT),
    mapping("assumptions", Scalar.TEXT),
)
PRICED_ROW: Fields = (
    integer("row", help="from 1, below the header"),
    *texts("table gpu"),
    mapping("shape", Scalar.ANY),
    *INTERVAL,
    *numbers("compute_s memory_s network_s overhead_s flops bytes_moved achieved_flops_per_s achieved_bytes_per_s"),
    *texts("bound_by source"),
)
OPERATORS: Fields = (
    text("file", null=True),
    *integers("num_rows expressed"),
    rows("operators", PRICED_ROW),
    rows("refused", (text("reason"), integer("count"), rows("rows", Scalar.INTEGER))),
    rows("assumptions", Scalar.TEXT),
)

# ------------------------------------------------------------------------------------------------ measure, calibrate

SKIPPED: Fields = (text("reason"), integer("count"), rows("cases", Scalar.TEXT))
PAIR: Fields = (
    text("table"),
    *numbers("predicted_s low_s high_s measured_s ratio"),
    text("source"),
    mapping("", Scalar.ANY, help="sizes and tags of the case"),
)
MEASURE: Fields = (
    mapping("device", Scalar.ANY),
    *texts("dtype suite file"),
    *texts("machine_file no_machine_file", null=True),
    text("stopped"),
    *integers("cases measured kept again left"),
    rows("skipped", SKIPPED),
    number("spent_s"),
    mapping("rows", Scalar.INTEGER),
    rows("compared", PAIR),
    mapping("errors", Scalar.ANY),
    mapping("study", Scalar.ANY, when=_sometimes, help="of a case study: its arms, predicted and measured"),
)
PARITY: Fields = (mapping("parity", Scalar.ANY), _ANYTHING)
_FIT_ERRORS = tuple(mapping(name, Scalar.NUMBER) for name in ("fit", "held_out", "before", "catalogue"))
COMPARED_CALIBRATION: Fields = (
    *texts("before after"),
    rows("made_with", (text("name"), *texts("before after", null=True))),
    rows("regions", (_ANYTHING,)),
    rows("coefficients", (text("name"), *numbers("before after"))),
)
CALIBRATE: Fields = (
    *texts("gpu dtype"),
    text("file", null=True),
    text("source"),
    text("date", null=True),
    mapping("made_with", Scalar.ANY),
    *texts("start over"),
    *integers("own_rows rows shapes samples"),
    rows("left_out", (text("reason"), integer("rows"))),
    *_FIT_ERRORS,
    rows("streams", (text("section"), integer("rows"), *numbers("before fit"))),
    number("coverage_80"),
    mapping("coefficients", Scalar.ANY),
    rows("remarks", Scalar.TEXT),
    field("compared", COMPARED_CALIBRATION, when=_sometimes),
)
SAMPLES: Fields = (*texts("gpu dtype"), text("file", null=True), rows("plan", (_ANYTHING,)))
CHANGED_CALIBRATION: Fields = (field("compared", COMPARED_CALIBRATION),)

# ------------------------------------------------------------------------------------------------ extract, catalog

TRACED_LAYER: Fields = (
    *texts("name module"),
    integer("count"),
    rows("positions", Scalar.INTEGER),
    *integers("num_params trainable_params"),
    *numbers("buffer_bytes expert_params weight_sets stash_bytes recomputed_bytes output_bytes"),
)
TRACED_OPERATOR: Fields = (
    *texts("name kind pass part"),
    number("count"),
    *texts("dtype grows"),
    rows("inputs", Scalar.ANY),
    rows("outputs", Scalar.ANY),
    *numbers("flops bytes_moved"),
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
CATALOG: Fields = (text("catalog"), rows("entries", (_ANYTHING,), help="with source and date"))
STUDY: Fields = (
    text("status"),
    mapping("question", Scalar.ANY),
    integer("evaluated"),
    *integers("waiting pruned", null=True),
    *numbers("left_s upper_bound objective gap", null=True),
    rows("sessions", (_ANYTHING,)),
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
    flag("internal", when=_sometimes, help="an error of sartor's own"),
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
