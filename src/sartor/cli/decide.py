"""``sartor advise`` and ``sartor lint``: what is wasteful, and what would be faster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Unpack

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli.plan import Overwrite, TrainerVersion, save_launch, trainer_of
from sartor.cli.run_options import takes_run
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.run.fields import RunOptions, TrainingOptions
from sartor.units import parse_count

WriteAdvised = Annotated[
    tuple[str, Path] | None,
    o.WRITE(
        metavar="TRAINER DIR",
        help="Write the recommended shape with the fastest plan that fits it: its config.json and the launch files of "
        "megatron, megatron-bridge, torchtitan, deepspeed or accelerate, in a folder.",
    ),
]


@takes_run(without=("phase",))
def advise(
    model: o.ModelOrLaunch = None,
    gpu: o.Gpus = None,
    objective: o.PhaseToWin = "train",
    regret: Annotated[
        str, typer.Option(metavar="weighted|worst", help="Of several phases: the mean loss, or the largest.")
    ] = "weighted",
    equal: Annotated[
        str,
        typer.Option(
            metavar="work|loss",
            help="Compare shapes of the same size at equal work, or all whose loss is surely no higher.",
        ),
    ] = "work",
    params_tolerance: o.ParamsTolerance = None,
    freeze: Annotated[
        str, typer.Option(metavar="FIELD,...", help="Fields that must not change: vocab_size,num_heads, ...")
    ] = "",
    free: Annotated[
        str,
        typer.Option(
            metavar="FIELD,...",
            help="Fields that may change though they stay by default: num_layers, kv_lora_rank, num_full_layers, "
            "experts_per_token (coarser experts).",
        ),
    ] = "",
    top: o.Top = 10,
    evidence: o.Evidence = 1.0,
    tokens: Annotated[
        str | None,
        o.BUDGET(help="Length of the training run, for what a gain is worth. [default: 20 per parameter]"),
    ] = None,
    write: WriteAdvised = None,
    trainer_version: TrainerVersion = "",
    overwrite: Overwrite = False,
    html: o.HtmlFile = None,
    png: o.PngFolder = None,
    verbose: o.Verbose = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
    **options: Unpack[RunOptions],
) -> None:
    """Show where a model's time goes, what its shape wastes, and faster shapes of the same size.

    Exits with 3 if --tp or --ep do not divide the model: the answer is then about the largest degrees that do.

    Example: `sartor advise pythia-2.8b --gpu a100 --gpu h100 --html advice.html`

    Example: `sartor advise llama-3.1-8b --gpu h100 --objective serve:ttft=0.5,tpot=0.02,rate=200`
    """
    from sartor import api

    if write is not None:
        _check_written(write[0], model is not None and not options.get("launch"), objective)
        options["framework"] = options.get("framework") or trainer_of(write[0])
    found = api.advise(
        model,
        gpu,
        objective=objective,
        regret=regret,
        equal=equal,
        params_tolerance=params_tolerance,
        freeze=c.words_of(freeze),
        free=c.words_of(free),
        top=top,
        evidence=evidence,
        tokens=None if tokens is None else parse_count("--tokens", tokens),
        **options,
    )
    if html is not None:
        from sartor.report.advice_document import advice_page

        c.write_page(html, advice_page(found))
    if png is not None:
        from sartor.report.figures import advice_points

        c.write_figures(png, advice_points(found))
    if write is not None:
        words: JsonDict = {name: word for name, word in options.items() if name in TrainingOptions.__annotations__}
        save_launch(api.advised_launch(found, str(model), write[0], trainer_version, **words), write[1], overwrite)
    c.answer("advise", found.to_dict, as_json=json, out=out)
    if not json:
        from sartor.report.advice_document import advice_view

        c.show(advice_view(found, verbose=verbose))
    if found.infeasible:
        raise c.Exit(3)


def _check_written(trainer: str, names_model: bool, objective: str) -> None:
    """Raise `InputError` where there is nothing to write a trainer's files for."""
    if not names_model:
        must = "writes a model's files: name the model, without --launch"
        raise InputError("--write", trainer, must, "sartor advise MODEL --write TRAINER DIR")
    if objective != "train":
        raise InputError("--write", trainer, "launch files start a training run", "--objective train")


@takes_run()
def lint(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="Paths to Hugging Face config.json files or their folders, zoo names, or org/name; optional if "
            "--launch has the sizes.",
            show_default=False,
        ),
    ] = None,
    gpu: o.GpuOfCluster = None,
    fail_on: o.FailOn = "error",
    format: Annotated[str, typer.Option(metavar="text|json|sarif|github", help="Output format.")] = "text",
    allow: o.Allow = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
    **options: Unpack[RunOptions],
) -> None:
    """List what is wasteful in a shape on a device, and the time each finding costs.

    Several models are checked in turn; JSON and SARIF take one model. Degrees that do not divide the model are an
    error, and the other findings are then at the largest degrees that do.

    Example: `sartor lint gpt2 --gpu h100 --fail-on warn --format github`
    """
    question = options | {"allow": tuple(allow or ())}
    if format not in ("text", "json", "sarif", "github"):
        raise InputError("--format", format, "must be one of text, json, sarif, github")
    format = "json" if json else format
    named = len(models or ()) > 1
    if named and (format in ("json", "sarif") or out or options.get("launch")):
        must = "JSON, SARIF and --launch take one model at a time"
        raise InputError("MODEL", f"{len(models or ())} models", must)
    if format == "sarif":
        from sartor.api.words import cluster_and_device, refuse_on_a_chip

        refuse_on_a_chip(
            cluster_and_device(options.get("cluster"), gpu)[1],
            "--format",
            "sarif",
            "SARIF rules describe GPU kernels",
            "text, json, github",
        )
    worst = [_lint_one(model, gpu, format, out, question, named=named) for model in models or (None,)]
    if any(o.fails(grade, fail_on) for grade in worst):
        raise c.Exit(1)


def _lint_one(
    model: str | None, gpu: str | None, format: str, out: Path | None, question: JsonDict, *, named: bool
) -> str | None:
    """Print one model's findings; the worst grade that holds for every plausible trainer."""
    from sartor import api
    from sartor.api.questions import device_note
    from sartor.report import lint_formats
    from sartor.report.document import document_text, opening
    from sartor.report.fit_words import first_change, headline
    from sartor.report.words import printable

    found = api.lint(model, gpu, **question)
    path = model or str(question["launch"])
    c.answer("lint", found.to_dict, as_json=format == "json", out=out)
    if format == "sarif":
        print(lint_formats.sarif(found.findings, path=path))
    elif format == "github":
        print(lint_formats.github(found.findings, path=path))
    elif format == "text":
        if named:
            print(printable(path))
        lines = headline(found.base, first_change(found.base, found.findings, further=False))
        c.show(document_text([opening([*lines, ""], bad=found.base.fits is False)]))
        reading = found.base.question.reading
        c.show(lint_formats.FindingsText(found.findings, reading.unread))
        device = device_note(found.base.question.run)
        for word, sentences in (("assumed", (*device, *reading.assumptions)), ("note", reading.notes)):
            for sentence in sentences:
                c.say(f"{word}: {printable(sentence)}")
    return found.agreed_grade
