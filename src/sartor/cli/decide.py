"""``sartor advise`` and ``sartor lint``: what is wasteful, and what would be faster."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.errors import InputError
from sartor.json_types import JsonDict

GRADES = ("info", "warn", "error")


def register(app: typer.Typer) -> None:
    """Add this group's commands."""
    app.command()(advise)
    app.command()(lint)


Gpus = Annotated[
    list[str], typer.Option("--gpu", metavar="GPU", help="Device; repeat it for a shape that is fast on several.")
]


def advise(
    model: c.Model,
    gpu: Gpus = ["h100"],  # noqa: B006 - typer copies it
    objective: Annotated[
        str, typer.Option("--objective", "--phase", metavar="train|prefill|decode", help="Phase to optimize.")
    ] = "train",
    params_tolerance: Annotated[float, typer.Option(help="Largest change of the parameter count, as a share.")] = 0.01,
    freeze: Annotated[
        str, typer.Option(metavar="FIELD,...", help="Fields that must not change: vocab_size,num_heads, ...")
    ] = "",
    free: Annotated[
        str, typer.Option(metavar="FIELD,...", help="Fields that may change though they stay by default: num_layers.")
    ] = "",
    top: Annotated[int, typer.Option(metavar="N", parser=c.whole_number, help="Number of candidates to show.")] = 10,
    evidence: Annotated[
        float,
        typer.Option(help="Width of the quality guard: 1 is the range of published evidence, 0.5 half of it, ..."),
    ] = 1.0,
    seq_len: c.SeqLen = None,
    microbatch_size: c.Microbatch = None,
    context_len: c.ContextLen = None,
    tp: c.Tp = 1,
    dtype: c.DTypeName = None,
    attention: c.AttentionName = "flash",
    set_: c.SetField = None,
    calibration: c.CalibrationFile = None,
    html: c.HtmlFile = None,
    png: c.PngFolder = None,
    json: c.AsJson = False,
    out: c.OutFile = None,
) -> None:
    """Show where a model's time goes, what its shape wastes, and faster shapes of the same size.

    Example: `sartor advise examples/pythia-2.8b/config.json --gpu a100 --gpu h100 --html advice.html`
    """
    from sartor import api
    from sartor.report import contract
    from sartor.shapes.quality import QualityGuard

    found = api.advise(
        model,
        gpu,
        objective=objective,
        params_tolerance=params_tolerance,
        freeze=_fields(freeze),
        free=_fields(free),
        top=top,
        guard=QualityGuard(width=evidence),
        seq_len=seq_len,
        microbatch_size=microbatch_size,
        context_len=context_len,
        tp=tp,
        dtype=dtype,
        attention=attention,
        set=c.parse_sets(set_),
        calibration=calibration,
    )
    if html is not None:
        from sartor.files import write_atomic
        from sartor.report.page import advice_page

        write_atomic(html, advice_page(found).encode())
        c.say(f"wrote {html}")
    if png is not None:
        from sartor.report.figures import advice_points, export_pngs

        for path in export_pngs(advice_points(found), png):
            c.say(f"wrote {path}")
    c.answer("advise", contract.advise_body(found), as_json=json, out=out)
    if not json:
        from sartor.report.table_advice import advice_view

        c.show(advice_view(found))


def _fields(words: str) -> tuple[str, ...]:
    return tuple(field.strip() for field in words.split(",") if field.strip())


def lint(
    models: c.Models,
    gpu: c.GpuName = "h100",
    fail_on: Annotated[
        str, typer.Option(metavar="error|warn|info|never", help="Exit with 1 if a finding has at least this grade.")
    ] = "error",
    format: Annotated[str, typer.Option(metavar="text|json|sarif|github", help="Output format.")] = "text",
    allow: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="Skip a rule, by name or code. May be repeated.")
    ] = None,
    phase: c.PhaseName = "train",
    seq_len: c.SeqLen = None,
    microbatch_size: c.Microbatch = None,
    context_len: c.ContextLen = None,
    tp: c.Tp = 1,
    pp: Annotated[int, typer.Option("--pp", metavar="N", parser=c.whole_number, help="Pipeline-parallel stages.")] = 1,
    ep: Annotated[int, typer.Option("--ep", metavar="N", parser=c.whole_number, help="Expert-parallel devices.")] = 1,
    dtype: c.DTypeName = None,
    attention: c.AttentionName = "flash",
    set_: c.SetField = None,
    calibration: c.CalibrationFile = None,
    json: c.AsJson = False,
    out: c.OutFile = None,
) -> None:
    """List what is wasteful in a shape on a device, and the time each finding costs.

    Several models are checked in turn; JSON and SARIF take one model.

    Example: `sartor lint examples/gpt2/config.json --gpu h100 --fail-on warn --format github`
    """
    if fail_on not in (*GRADES, "never"):
        raise InputError("--fail-on", fail_on, f"must be one of {', '.join(GRADES)}, never")
    if format not in ("text", "json", "sarif", "github"):
        raise InputError("--format", format, "must be one of text, json, sarif, github")
    format = "json" if json else format
    if len(models) > 1 and (format in ("json", "sarif") or out):
        raise InputError("MODEL", f"{len(models)} models", "JSON and SARIF take one model at a time")
    if format == "sarif":
        from sartor.api.words import device_of, refuse_on_a_chip

        refuse_on_a_chip(device_of(gpu), "--format", "sarif", "SARIF rules describe GPU kernels", "text, json, github")
    question = {
        "allow": tuple(allow or ()),
        "phase": phase,
        "seq_len": seq_len,
        "microbatch_size": microbatch_size,
        "context_len": context_len,
        "tp": tp,
        "pp": pp,
        "ep": ep,
        "dtype": dtype,
        "attention": attention,
        "set": c.parse_sets(set_),
        "calibration": calibration,
    }
    worst = [_lint_one(model, gpu, format, out, question, named=len(models) > 1) for model in models]
    if fail_on != "never" and any(w is not None and GRADES.index(w) >= GRADES.index(fail_on) for w in worst):
        raise c.Exit(1)


def _lint_one(model: str, gpu: str, format: str, out: Path | None, question: JsonDict, *, named: bool) -> str | None:
    """Print one model's findings; its worst grade."""
    from sartor import api
    from sartor.report import contract, lint_formats
    from sartor.report.words import printable

    found = api.lint(model, gpu, **question)
    body = contract.lint_body(found)
    c.answer("lint", body, as_json=format == "json", out=out)
    if format == "sarif":
        print(lint_formats.sarif(found.findings, path=model))
    elif format == "github":
        print(lint_formats.github(found.findings, path=model))
    elif format == "text":
        if named:
            print(printable(model))
        c.show(lint_formats.text(found.findings, width=c.console().width - 2))
        for sentence in found.base.question.reading.assumptions:
            c.say(f"assumed: {printable(sentence)}")
    worst: str | None = body["worst_grade"]
    return worst
