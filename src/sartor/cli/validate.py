"""``sartor validate``: errors of the predictions on measurements."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.json_types import JsonDict

group = typer.Typer(
    no_args_is_help=True,
    help="Compare predictions with measurements.\n\nExample: sartor validate operators --data lab/records/h200_sxm",
)

Data = Annotated[
    str, typer.Option("--data", metavar="PATH", help="A folder of tables, or one file.", show_default=False)
]
GroupBy = Annotated[
    str | None,
    typer.Option("--group-by", metavar="COL,...", help="Columns to group by. [default: gpu, dtype, phase or op]"),
]
Worst = Annotated[int, typer.Option("--worst", metavar="N", min=0, max=100, help="Worst targets to list per group.")]


Compared = tuple[JsonDict, Callable[[], list[Any]]]
"""The body of an answer, and what makes its charts."""


def _options(
    data: Data,
    group_by: GroupBy = None,
    worst: Worst = 5,
    verbose: o.Verbose = False,
    html: o.HtmlFile = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """The options of every command here."""


def _comparing(compared: Callable[..., Compared]) -> None:
    """Add a command: `_options` and the function's own, after the first two."""

    @wraps(compared)
    def command(
        *, group_by: str | None, verbose: bool, html: Path | None, json: bool, out: Path | None, **own: Any
    ) -> None:
        body, charts = compared(group_by=c.words_of(group_by), **own)
        if html:
            from sartor.report.accuracy_document import accuracy_page

            c.write_page(html, accuracy_page(body, charts()))
        c.answer("validate", body, as_json=json, out=out)
        if not json:
            from sartor.report.accuracy_document import accuracy_view

            c.show(accuracy_view(body, verbose=verbose))

    shared, own = (inspect.signature(function, eval_str=True).parameters for function in (_options, compared))
    data, group_by, *rest = shared.values()
    parameters = [data, group_by, *(own[name] for name in own if name not in shared), *rest]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    group.command()(command)


@_comparing
def operators(
    data: str,
    group_by: tuple[str, ...],
    worst: int,
    clock: o.Clock = "boost",
    calibration: o.Calibration = None,
    gpu: o.Datasheets = None,
) -> Compared:
    """Operators: tables of measured GEMMs, attention, memory-bound kernels, expert layers and collectives.

    Example: `sartor validate operators --data lab/records/h200_sxm --group-by gpu,dtype,size`
    """
    from sartor.validate.accuracy import validate_operators
    from sartor.validate.answer import accuracy_body, error_rows, scatter_rows

    accuracy = validate_operators(
        data, group_by=group_by, clock=_clock(clock), worst=worst, calibration=calibration, gpus=gpu or ()
    )
    return accuracy_body(accuracy), lambda: [
        {"table": p.targets.kind.name, "scatter": scatter_rows(p), "errors": error_rows(p)} for p in accuracy.predicted
    ]


@_comparing
def inference(data: str, group_by: tuple[str, ...], worst: int) -> Compared:
    """End-to-end inference: prefill, decoding steps, and throughput at full load.

    Example: `sartor validate inference --data end_to_end/inference.csv --group-by mode,gpu`
    """
    from sartor.validate.inference import inference_body, inference_charts, validate_inference

    accuracy = validate_inference(data, group_by=group_by, worst=worst)
    return inference_body(accuracy), lambda: inference_charts(accuracy)


@_comparing
def serving(data: str, group_by: tuple[str, ...], worst: int) -> Compared:
    """Served models: times to first token and between tokens at a number of sequences in flight.

    Example: `sartor validate serving --data end_to_end/serving.csv --group-by measure,model`
    """
    from sartor.validate.inference import inference_body, inference_charts, validate_serving

    accuracy = validate_serving(data, group_by=group_by, worst=worst)
    return inference_body(accuracy), lambda: inference_charts(accuracy)


Shots = Annotated[
    int, typer.Option("--shots", metavar="K", help="Also calibrate on K runs of a source, device and precision.")
]


@_comparing
def training(
    data: str, group_by: tuple[str, ...], worst: int, shots: Shots = 0, calibration: o.StepConstants = None
) -> Compared:
    """End-to-end training: step times, peak memory and ranking of plans of published runs.

    Example: `sartor validate training --data examples/measured/training.csv --group-by model,recompute`
    """
    from sartor.validate.training_accuracy import training_body, training_charts, validate_training

    accuracy = validate_training(data, group_by=group_by, shots=shots, worst=worst, calibration=calibration)
    return training_body(accuracy), lambda: training_charts(accuracy)


@_comparing
def finetune(data: str, group_by: tuple[str, ...], worst: int, calibration: o.StepConstants = None) -> Compared:
    """Fine-tuning with frozen weights (LoRA): step times and peak memory of published runs.

    Example: `sartor validate finetune --data end_to_end/finetune.csv --group-by source,gpu`
    """
    from sartor.validate.training_accuracy import training_body, training_charts, validate_training

    accuracy = validate_training(data, table="finetune", group_by=group_by, worst=worst, calibration=calibration)
    return training_body(accuracy), lambda: training_charts(accuracy)


@_comparing
def memory(data: str, group_by: tuple[str, ...], worst: int) -> Compared:
    """Memory of training: peaks of published runs, those that ran out of memory, and the probability of fit.

    Example: `sartor validate memory --data end_to_end/ --group-by source`
    """
    from sartor.validate.training_accuracy import training_body, validate_memory

    accuracy = validate_memory(data, group_by=group_by or ("source",), worst=worst)
    return training_body(accuracy), list


def _clock(word: str) -> Any:
    from sartor.cost.correction.calibration import Clock
    from sartor.errors import InputError

    if word not in {clock.value for clock in Clock}:
        raise InputError("--clock", word, "must be boost or sustained", "boost")
    return Clock(word)
