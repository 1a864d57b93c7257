"""``sartor measure``: run operators on this machine, case studies, parity of two shapes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli.common import check_outputs
from sartor.cli.run_options import takes_run
from sartor.errors import InputError
from sartor.interrupts import patient, report
from sartor.json_types import JsonDict

if TYPE_CHECKING:
    from sartor.bench.cases import BenchCase
    from sartor.bench.journey import Collect, Measured, SuiteProgress
    from sartor.bench.machine import Scale
    from sartor.bench.studies import Propose, Size, Study
    from sartor.bench.timing import Device
    from sartor.hardware.gpu import Gpu
    from sartor.model.shape import TransformerShape
    from sartor.operators import OperatorGraph


class _SuiteOfModel(TyperGroup):
    """Accepts ``--suite model MODEL`` as two words, of which the second would otherwise be read as a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        words = list(args)
        for i, word in enumerate(words):
            named = word == "--suite=model" or (word == "model" and i and words[i - 1] == "--suite")
            if named and i + 1 < len(words) and not words[i + 1].startswith("-"):
                words[i + 1 : i + 2] = ["--model", words[i + 1]]
                break
        return super().parse_args(ctx, words)

    def invoke(self, ctx: Any) -> Any:
        check_outputs(ctx)
        return super().invoke(ctx)


group = typer.Typer(cls=_SuiteOfModel, invoke_without_command=True, no_args_is_help=True)


@group.callback()
@takes_run(
    only=("phase", "seq_len", "microbatch_size", "context_len", "dtype"),
    helps={"microbatch_size": "Sequences per microbatch. [default: train 8192 tokens, prefill 1, decode 8]"},
)
def measure(
    context: typer.Context,
    suite: Annotated[
        str,
        typer.Option(metavar="quick|full|random|model MODEL|alignment|waves|layer|collectives", help="What to run."),
    ] = "quick",
    device: o.Device = "",
    records: o.RecordsOut = None,
    resume: o.Resume = False,
    time_budget_s: o.SuiteTimeBudget = None,
    machine: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            callback=o.writable,
            help="Datasheet of a device that is not in the catalogue. [default: next to the records]",
        ),
    ] = None,
    gpu: o.GpuHere = "",
    threads: o.Threads = None,
    rounds: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Repetitions of each case. [default: 2 on cpu, else 1]")
    ] = None,
    calibration: o.Calibration = None,
    model: o.ModelOfSuite = None,
    json: o.AsJson = False,
    **options: Any,
) -> None:
    """Time operators on this machine; `sartor calibrate` turns the records into a calibration.

    Example: `sartor measure --suite quick --out records.csv`

    Example: `sartor measure --suite model pythia-70m --device cpu`
    """
    if context.invoked_subcommand is not None:
        return
    _check_model(suite, model)
    from sartor.bench.torch_device import import_torch, open_device

    name = _gpu_name(gpu)
    import_torch()
    found_on = open_device(device, gpu=name, threads=threads)
    body = _run(found_on, suite, records or Path("records.csv"), resume, time_budget_s, machine, rounds, calibration,
                Path(gpu) if gpu.endswith(".toml") else None, model, options)  # fmt: skip
    c.answer("measure", body, as_json=json, out=None)
    if not json:
        from sartor.report.accuracy_document import measured_view

        c.show(measured_view(body))
        _say_next(body, gpu)
    if body["stopped"] == "interrupted":
        c.say("interrupted; --resume goes on")
        raise c.Exit(130)


def _run(
    device: Device,
    suite: str,
    out: Path,
    resume: bool,
    budget_s: float | None,
    machine: Path | None,
    rounds: int | None,
    calibration: Path | None,
    sheet: Path | None,
    model: str | None,
    question: JsonDict,
) -> JsonDict:
    from sartor.bench.journey import measure as run_suite
    from sartor.bench.journey import measured_body
    from sartor.cost.correction.calibration_file import load_own_calibration
    from sartor.files import write_atomic

    graph = model_graph(model, device.facts.gpu, question) if model else None
    with patient():
        measured = run_suite(
            device,
            suite,
            out,
            graph=graph,
            resume=resume,
            budget_s=budget_s,
            rounds=rounds,
            progress=_report,
            collect=_collector(device, suite),
        )
    written = None
    if measured.machine and sheet is None:
        written = machine or out.with_suffix(".gpu.toml")
        write_atomic(written, measured.machine.encode())
    compared = []
    if suite in ("model", "layer"):
        timed_gpu = _machine_of(measured, sheet or written)
        own_calibration = load_own_calibration(calibration, timed_gpu) if calibration else None
        compared = measured.pairs(timed_gpu, own_calibration)
    return measured_body(measured, str(written) if written else None, compared)


@group.command(name="study")
def study(
    name: Annotated[
        str,
        typer.Argument(metavar="NAME", help="heads, swiglu, vocabulary, head_dim, waves, decode, models; or a to g."),
    ],
    device: o.Device = "",
    records: o.StudyRecordsOut = None,
    resume: o.Resume = False,
    size: Annotated[
        str, typer.Option(metavar="full|toy", help="Published sizes, or small ones for a CPU. [default: by the device]")
    ] = "",
    gpu: o.GpuHere = "",
    calibration: o.Calibration = None,
    png: o.PngFile = None,
    time_budget_s: o.TimeBudget = 560.0,
    threads: o.Threads = None,
    json: o.AsJson = False,
) -> None:
    """Run a case study end to end and compare it with its prediction.

    Example: `sartor measure study heads --device cuda --png heads.png`
    """
    body = _run_study(name, device, records, resume, size, gpu, calibration, time_budget_s, threads)
    if png is not None:
        from sartor.files import write_atomic
        from sartor.report.accuracy_document import draw_study
        from sartor.report.frame import to_png

        write_atomic(png, to_png(draw_study(body["study"], body["device"]["device"])))
        c.say(f"wrote {png}")
    c.answer("measure", body, as_json=json, out=None)
    if not json:
        from sartor.report.accuracy_document import study_view

        c.show(study_view(body))
    if body["stopped"] == "interrupted":
        raise c.Exit(130)


def _run_study(
    name: str,
    device: str,
    out: Path | None,
    resume: bool,
    size: str,
    gpu: str,
    calibration: Path | None,
    budget_s: float,
    threads: int | None,
) -> JsonDict:
    """The JSON of a study, run from the start or resumed from its records."""
    from sartor.bench.journey import measure_cases, measured_body
    from sartor.bench.machine import stand_in
    from sartor.bench.studies import Size, study, study_body, study_results
    from sartor.bench.torch_device import open_device
    from sartor.cost.correction.calibration_file import load_own_calibration
    from sartor.hardware.catalog import load_gpu

    if size not in ("", *Size):
        raise InputError("--size", size, "must be full or toy", "toy")
    sheet = load_gpu(gpu) if gpu.endswith(".toml") else None
    found_on = open_device(device, gpu=_gpu_name(gpu), threads=threads)
    chosen_studies: list[tuple[Study, Size, Gpu]] = []

    def make(scale: Scale) -> Sequence[BenchCase]:
        chosen = Size(size) if size else (Size.TOY if scale.small else Size.FULL)
        machine = sheet or _known_gpu(found_on, scale, stand_in)
        chosen_studies.append((study(name, scale, chosen, _proposer(machine, calibration, chosen)), chosen, machine))
        return chosen_studies[-1][0].cases

    with patient():
        measured = measure_cases(
            found_on, f"study-{name}", make, out or Path(f"study-{name}.csv"), resume=resume, budget_s=budget_s,
            progress=_report,
        )  # fmt: skip
    what, chosen, machine = chosen_studies[-1]
    own_calibration = load_own_calibration(calibration, machine) if calibration else None
    results = study_results(what, measured.rows, machine, own_calibration)
    return {**measured_body(measured, None), "study": study_body(what, results, chosen.value)}


def _known_gpu(device: Device, scale: Scale, stand_in: Callable[[Scale], Gpu]) -> Gpu:
    from sartor.bench.machine import is_catalogued
    from sartor.hardware.catalog import load_gpu

    return load_gpu(device.facts.gpu) if is_catalogued(device.facts) else stand_in(scale)


def _proposer(gpu: Gpu, calibration: Path | None, size: Size) -> Propose:
    """Proposes the same-size shape that `sartor advise` ranks first in training; None if none is faster."""
    from sartor import api

    seq = 128 if size.value == "toy" else 2048

    def propose(name: str) -> TransformerShape | None:
        advice = api.advise(name, gpu, seq_len=seq, microbatch_size=1 if seq < 2048 else 4, calibration=calibration)
        return advice.search.candidates[0].shape if advice.search.candidates else None

    return propose


def _collector(device: Device, suite: str) -> Collect:
    from sartor.bench.collectives import run_collectives

    ranks = max(2, device.facts.num_devices)
    return lambda cases, date: run_collectives(cases, device.facts, ranks, date=date, suite=suite)


def _machine_of(measured: Measured, written: Path | None) -> Gpu:
    """The device to predict for: the datasheet just written, else the catalogue's entry."""
    from sartor.hardware.catalog import load_gpu

    return load_gpu(written) if written else measured.gpu()


def model_graph(model: str, gpu: str, question: JsonDict) -> OperatorGraph:
    """The operators of ``sartor estimate`` as eager PyTorch runs them; their sizes are the same on every device."""
    from sartor import api
    from sartor.bench.records_file import EAGER
    from sartor.hardware.catalog import GPUS
    from sartor.model.lower import lower

    answer = api.ask(model, gpu if gpu in GPUS.names() else "h100_sxm", **question)
    return lower(answer.workload, answer.dims, kernels=EAGER, optimizer=True)


def _check_model(suite: str, model: str | None) -> None:
    if suite == "model" and model is None:
        raise InputError("--suite", "model", "must name the model", "--suite model pythia-70m")
    if suite != "model" and model is not None:
        raise InputError("--suite", suite, "takes no model", f"--suite model {model}")


def _gpu_name(word: str) -> str:
    """A catalogue name in its proper spelling, the name inside a TOML file, or the word itself."""
    if not word:
        return ""
    from sartor.bench.torch_device import slug
    from sartor.hardware.catalog import NOT_A_GPU, load_gpu

    try:
        return load_gpu(word).name
    except InputError as error:
        if word.endswith(".toml") or error.must == NOT_A_GPU:
            raise
        return slug(word)


def _say_next(body: JsonDict, gpu: str) -> None:
    """Print which datasheet was written, or why none was, and the next command if there is one."""
    sheet, why = body["machine_file"], body["no_machine_file"]
    if sheet:
        c.say(f"wrote {sheet}: this machine as a datasheet")
    elif why and "gemm" in body["rows"]:
        c.say(f"no datasheet of this machine yet: {why} (sartor measure --suite quick has both)")
    if "gemm" in body["rows"] and not why:
        device = sheet or (gpu if gpu.endswith(".toml") else body["device"]["gpu"])
        words = f"{body['file']} --gpu {device} --dtype {body['dtype']}"
        c.say(f"next: sartor calibrate {words} --out my-calibration.toml")


def _report(progress: SuiteProgress) -> None:
    report(f"measuring {progress.label[:48]}", progress.at, progress.of)


@group.command()
def parity(
    device: o.Device = "",
    heads: Annotated[str, typer.Option(metavar="A,B", help="Heads of the two shapes.")] = "",
    ffn: Annotated[
        str, typer.Option(metavar="A,B", help="Feed-forward widths of the two shapes. [default: 4 x hidden-size]")
    ] = "",
    hidden_size: Annotated[
        int | None, typer.Option(metavar="H", min=8, help="[default: 128 on cpu, else 512]", show_default=False)
    ] = None,
    num_layers: Annotated[int | None, typer.Option(metavar="L", min=1, help="[default: 2 on cpu, else 8]")] = None,
    seq_len: o.ParitySeqLen = None,
    batch: o.ParityBatch = None,
    steps: Annotated[int | None, o.STEPS(metavar="N", min=8, help="[default: 300 on cpu, else 2000]")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", help="Runs of each shape.")] = 3,
    text: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Training text; bytes are the tokens. [default: generated text]")
    ] = None,
    threads: o.Threads = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Train small proxies of two shapes on the same tokens with several seeds, and compare their losses.

    Example: `sartor measure parity --device cpu --heads 8,4 --seeds 3`
    """
    from sartor.bench.parity import compare_shapes, made_text, parity_body, proxies
    from sartor.bench.torch_device import import_torch, open_device
    from sartor.bench.torch_stack import TrainRun, trainer

    torch = import_torch()
    found_on = open_device(device, threads=threads)
    large = found_on.facts.backend != "cpu"
    width = hidden_size or (512 if large else 128)
    first, second = proxies(
        hidden_size=width,
        num_layers=num_layers or (8 if large else 2),
        num_heads=_two("--heads", heads or f"{width // 16},{width // 32}"),
        ffn=_two("--ffn", ffn or f"{4 * width},{4 * width}"),
        seq_len=seq_len or (512 if large else 64),
        batch=batch or (32 if large else 8),
    )
    recipe = TrainRun(steps=steps or (2000 if large else 300))
    data = _read(text) if text else made_text(8_000_000 if large else 400_000)
    train = trainer(torch, found_on.name, data, recipe, report)
    compared = compare_shapes(first, second, range(seeds), train)
    tokens = recipe.steps * first.batch * first.seq_len
    body = {"parity": parity_body(compared, tokens, found_on.facts.device)}
    c.answer("measure", body, as_json=json, out=out)
    if not json:
        from sartor.report.accuracy_document import parity_view

        c.show(parity_view(body))


def _two(field: str, text: str) -> tuple[int, int]:
    words = [word.strip() for word in text.split(",")]
    if len(words) != 2 or not all(word.isdigit() and int(word) > 0 for word in words):
        raise InputError(field, text, "must be two whole numbers with a comma, one of each shape", "8,4")
    return int(words[0]), int(words[1])


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError("--text", str(path), f"must be a file that can be read ({error.strerror})") from None
