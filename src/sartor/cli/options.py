"""Options that several commands share, each declared once.

A name in capitals is the common part (flag and fixed settings) of an option whose type or default differs between
commands; the variants follow it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from sartor.cli.common import declare
from sartor.errors import InputError


def size_of(field: str) -> Callable[[str], int]:
    """A parser of sizes as the options of a run are read (``4096``, ``8k``), in the unit of one of its fields."""

    def size(text: str) -> int:
        from sartor.run.fields import parse_size  # loads numpy, which `page` does without

        try:
            return parse_size(field, str(text))  # older typer parses defaults too
        except InputError as error:
            near = f"; nearest: {error.nearest}" if error.nearest else ""
            raise typer.BadParameter(f"{text!r} {error.must}{near}") from None

    return size


def _in_units(name: str) -> Callable[[str], float]:
    """A parser of numbers with units: that function of `sartor.units`."""

    def number(text: str) -> float:
        from sartor import units

        try:
            parsed: float = getattr(units, name)("", str(text))
        except InputError as error:
            raise typer.BadParameter(f"{text!r} {error.must}; nearest: {error.nearest}") from None
        return parsed

    return number


seconds = _in_units("parse_seconds")
size_in_bytes = _in_units("parse_bytes")


whole_number = size_of("")
tokens = size_of("seq_len")


def writable(context: typer.Context, param: typer.CallbackParam, value: Path | None) -> Path | None:
    """Reject an unwritable output file before anything is computed (`sartor.files.check_writable`)."""
    if value is not None:
        from sartor.files import check_writable

        check_writable(value, field=param.opts[0])
        declare(context, param.opts[0], value)
    return value


def _writable_folder(param: typer.CallbackParam, value: Path | None) -> Path | None:
    """The same check for an output folder."""
    if value is not None:
        from sartor.files import check_writable

        if value.exists() and not value.is_dir():
            raise InputError(param.opts[0], str(value), "is a file; name a folder", str(value.with_suffix("")))
        check_writable(value / "figure.png", field=param.opts[0])
    return value


GRADES = ("info", "warn", "error")
"""Grades of a finding, mildest first."""


def _known_grade(value: str) -> str:
    """Reject a ``--fail-on`` that is not a grade."""
    if value not in (*GRADES, "never"):
        raise InputError("--fail-on", value, f"must be one of {', '.join(GRADES)}, never")
    return value


def fails(worst: str | None, fail_on: str) -> bool:
    """Whether the worst grade makes the check fail."""
    return fail_on != "never" and worst is not None and GRADES.index(worst) >= GRADES.index(fail_on)


# The subject: model, device, cluster.

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="Path to a Hugging Face config.json or its folder, a file from `sartor extract`, a zoo name "
        "(`sartor catalog models`), or org/name.",
        show_default=False,
    ),
]
ModelOrLaunch = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="Model (config.json, zoo name or org/name); optional if --launch has the sizes."
    ),
]

MODEL = partial(typer.Option, "--model", metavar="MODEL")
ModelsToTrain = Annotated[
    list[str] | None, MODEL(help="Model to train (config.json, zoo name or org/name). May be repeated.")
]
ModelOfSuite = Annotated[str | None, MODEL(hidden=True)]

GPU = partial(typer.Option, "--gpu")
KNOWN_GPU = "A name from `sartor catalog gpus`, or a TOML file."
Gpu = Annotated[str, GPU(metavar="GPU", help=f"{KNOWN_GPU} [default: h100]", show_default=False)]
GpuOfCluster = Annotated[
    str | None, GPU(metavar="GPU", help=f"{KNOWN_GPU} [default: the cluster's, else h100]", show_default=False)
]
Gpus = Annotated[
    list[str] | None,
    GPU(
        metavar="GPU",
        help="Device; repeat it for a shape that is fast on several. [default: the cluster's, else h100]",
        show_default=False,
    ),
]
GpusOfServers = Annotated[
    list[str] | None, GPU(metavar="GPU,...", help="GPUs to compare. [default: h100]", show_default=False)
]
GpuOfRecords = Annotated[str | None, GPU(metavar="GPU", help="Device, if the records have several.")]
GpuHere = Annotated[str, GPU(metavar="NAME|FILE", help="Device name, or its datasheet.")]
Datasheets = Annotated[
    list[Path] | None,
    GPU(metavar="FILE", help="Datasheet (TOML) of a device named in the tables. May be repeated."),
]

CLUSTER = partial(typer.Option, "--cluster", metavar="CLUSTER")
KNOWN_CLUSTER = "A name from `sartor catalog clusters`, or a TOML file."
ClusterOrGpu = Annotated[str | None, CLUSTER(help=KNOWN_CLUSTER)]
ClusterOfPlan = Annotated[
    str | None, CLUSTER(help=f"{KNOWN_CLUSTER} A device's name or TOML file stands for its usual cluster.")
]

# The pass: phase and sizes.

PHASE = partial(typer.Option, "--phase")
TracedPhase = Annotated[str, PHASE(metavar="train|prefill", help="Forward and backward, or forward alone.")]

OBJECTIVE = partial(typer.Option, "--objective")
PhaseToWin = Annotated[
    str,
    OBJECTIVE(
        "--phase",
        metavar="train|prefill|decode|serve",
        help="Phase to optimize, or several: train:0.7,decode:0.3; or the cheapest deployment: "
        "serve:tpot=0.03,rate=20 (words of `sartor deploy`).",
    ),
]

SEQ_LEN = partial(typer.Option, "--seq-len")
LENGTHS = "One number, or quantiles: p50=800,p95=3000. [default: 1024]"


def lengths(text: str) -> str | int:
    """Tokens: one number, or quantiles (``p50=800,p95=3000``)."""
    return text if "=" in text else tokens(text)


INPUT_LEN = partial(typer.Option, "--input-len", metavar="TOKENS")
OUTPUT_LEN = partial(typer.Option, "--output-len", metavar="TOKENS")
InputLens = Annotated[Any, INPUT_LEN(parser=lengths, help=f"Of a prompt. {LENGTHS}")]
OutputLens = Annotated[Any, OUTPUT_LEN(parser=lengths, help=f"Of an answer. {LENGTHS}")]
InputLen = Annotated[int, INPUT_LEN(parser=tokens, help="Tokens of a prompt.")]
OutputLen = Annotated[int, OUTPUT_LEN(parser=tokens, help="Tokens of an answer.")]
WhyNot = Annotated[
    list[str] | None,
    typer.Option(
        "--why-not",
        metavar="AXIS=VALUE,...",
        help="Compare the best with the nearest that has these values, named as by --fix: `--why-not tp=8,pp=2`.",
    ),
]
TracedSeqLen = Annotated[
    int | None, SEQ_LEN(metavar="N", parser=tokens, help="[default: 4096, or the model's maximum]")
]
ParitySeqLen = Annotated[int | None, SEQ_LEN(metavar="N", min=8, help="[default: 64 on cpu, else 512]")]

MICROBATCH_SIZE = partial(typer.Option, "--microbatch-size")
TracedMicrobatchSize = Annotated[
    int | None,
    MICROBATCH_SIZE(metavar="N", parser=whole_number, help="Sequences per microbatch. [default: 1]"),
]

BATCH = partial(typer.Option, "--batch", metavar="N")
GemmBatch = Annotated[int, BATCH(parser=whole_number, help="Number of independent GEMMs of this size.")]
ParityBatch = Annotated[int | None, BATCH(min=1, help="Sequences per step. [default: 8 on cpu, else 32]")]

DTYPE = partial(typer.Option, "--dtype")
DType = Annotated[
    str | None,
    DTYPE(
        help="Data type of the matrix multiplications: bf16, fp16, fp8, fp8_block, mxfp8, nvfp4, ... "
        "[default: bf16 if the device has it]"
    ),
]
DTypeOfRecords = Annotated[str | None, DTYPE(help="Data type, if the records have several.")]
TracedDType = Annotated[
    str | None, DTYPE(metavar="bf16|fp16|fp32", help="[default: bf16; a factory's module keeps its own type]")
]

Verbose = Annotated[
    bool, typer.Option("--verbose", "-v", help="Show everything: by default the answer fits on one screen.")
]
Eager = Annotated[
    bool,
    typer.Option(
        "--eager",
        help="As eager PyTorch, without compiler or CUDA graph: the host launches every elementwise operation and "
        "collective by itself.",
    ),
]
Kernels = Annotated[
    str | None,
    typer.Option(
        "--kernels",
        metavar="FRAMEWORK",
        help="In inference: the framework whose kernels run (attention, MoE, GEMMs below 16 bits): vllm, sglang, "
        "trtllm, torch (attention by PyTorch's scaled_dot_product_attention), or one family of MoE kernels "
        "(sglang_triton); on AMD the library of GEMMs (aiter_asm). "
        "[default: unknown, and the interval covers all]",
    ),
]
Clock = Annotated[
    str,
    typer.Option(
        "--clock",
        metavar="boost|sustained",
        help="boost: a short benchmark run; sustained: a long run limited by power.",
    ),
]
CALIBRATION = partial(typer.Option, "--calibration", metavar="FILE")
Calibration = Annotated[Path | None, CALIBRATION(help="Calibration file from `sartor calibrate` for this device.")]
StepConstants = Annotated[Path | None, CALIBRATION(help="File of step constants, instead of the package's own.")]

# The plan: how training is spread.

NUM_DEVICES = partial(typer.Option, "--num-devices")
ALSO_DEVICES = partial(typer.Option, "--devices")
DeviceCounts = Annotated[
    str | None,
    ALSO_DEVICES(
        *NUM_DEVICES.args,
        metavar="N[,N...]",
        help="Number of devices; several (64,128 or 8..1024, doubling) are compared.",
    ),
]
EqualDevices = Annotated[int | None, NUM_DEVICES(metavar="N", parser=size_of("num_devices"), help="Equal devices.")]

# How much to search and list, and what makes a check fail.

TIME_LIMIT = partial(typer.Option, "--time-limit", metavar="SECONDS", parser=seconds)
TimeLimit = Annotated[float, TIME_LIMIT(help="Time limit of a search; 0 returns a first schedule at once.")]
RequestTimeLimit = Annotated[float, TIME_LIMIT(help="Time limit of a search.")]

Top = Annotated[int, typer.Option("--top", metavar="N", parser=whole_number, help="Number of candidates to show.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        "--allow", metavar="RULE", help="Skip a rule of `lint` or `plan --launch`, by name or code. May be repeated."
    ),
]
FailOn = Annotated[
    str,
    typer.Option(
        "--fail-on",
        metavar="error|warn|info|never",
        callback=_known_grade,
        help="Exit with 1 if a finding of `lint` or `plan --launch` has at least this grade.",
    ),
]

STUDY = partial(typer.Option, "--study", metavar="FILE")
WatchedStudy = Annotated[Path | None, STUDY(help="A study of `sartor design` to watch in the design view.")]
Export = Annotated[
    Path | None,
    typer.Option(
        "--export",
        metavar="FILE",
        callback=writable,
        help="Write the study's points to FILE.csv or FILE.parquet (extra `data`).",
    ),
]
WORKERS = partial(typer.Option, "--workers", metavar="N", parser=whole_number)
Searches = Annotated[int, WORKERS(help="Parallel searches, one process each.")]

# Measurement: device and time.

Device = Annotated[
    str, typer.Option("--device", metavar="cuda|rocm|cpu", help="Where to run. [default: a GPU if there is one]")
]
Threads = Annotated[
    int | None, typer.Option("--threads", metavar="N", min=1, help="On cpu: number of cores. [default: all]")
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue an existing file.")]
TIME_BUDGET_S = partial(typer.Option, "--time-budget-s", metavar="S", min=1.0)
TimeBudget = Annotated[float, TIME_BUDGET_S(help="Stop after so long.")]
SuiteTimeBudget = Annotated[float | None, TIME_BUDGET_S(help="Stop after so long. [default: the suite's]")]

# Output files.

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout and nothing else.")]
OUT = partial(typer.Option, "--out", metavar="FILE", callback=writable)
OutFile = Annotated[Path | None, OUT(help="Write the JSON to a file as well.")]
CalibrationOut = Annotated[Path | None, OUT(help="Write the calibration (TOML) or the plan (CSV).")]
RecordsOut = Annotated[Path | None, OUT(help="Records: .csv or .parquet. [default: records.csv]")]
StudyRecordsOut = Annotated[Path | None, OUT(help="Records. [default: study-NAME.csv]")]
HtmlFile = Annotated[
    Path | None,
    typer.Option(
        "--html", metavar="FILE", callback=writable, help="Write one offline page with figures (extra `report`)."
    ),
]
BUDGET = partial(typer.Option, "--tokens", metavar="N")
WRITE = partial(typer.Option, "--write")
STEPS = partial(typer.Option, "--steps")
TableOut = Annotated[
    Path | None,
    WRITE(
        metavar="FILE",
        callback=writable,
        help="Write the file's own columns and the predicted ones to a .csv or .parquet file.",
    ),
]
PNG = partial(typer.Option, "--png")
Chakra = Annotated[
    Path | None,
    typer.Option("--chakra", metavar="DIR", help="Write one step as Chakra traces, a file per rank, for ASTRA-sim."),
]
PngFolder = Annotated[
    Path | None, PNG(metavar="DIR", callback=_writable_folder, help="Write each figure as a PNG (extra `report`).")
]
PngFile = Annotated[Path | None, PNG(metavar="FILE", callback=writable, help="Draw it (extra `report`).")]
TraceFile = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", callback=writable, help="Write a trace to open at https://ui.perfetto.dev."
    ),
]
ParamsTolerance = Annotated[
    float | None,
    typer.Option(
        "--params-tolerance",
        metavar="SHARE",
        help="Largest change of the parameter count, as a share. [default: 0.01; at equal loss 0.1]",
    ),
]
Evidence = Annotated[
    float,
    typer.Option(
        "--evidence",
        metavar="WIDTH",
        help="Width of the quality guard: 1 is the range of published evidence, 0.5 half of it, ...",
    ),
]
