"""``sartor diagnose`` and ``sartor compare``: where the time of a real run went, compared with the prediction, and with
another run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.cli.plan import LaunchOfRun
from sartor.cli.run_options import takes_run
from sartor.errors import InputError
from sartor.run.fields import OF_ENGINES, RunOnDevices

if TYPE_CHECKING:
    from sartor.answers.diagnosis import LogDiagnosis, LogFacts, TraceDiagnosis


Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="TRACE_OR_LOG...",
        help="Trace of PyTorch's profiler (.json or .json.gz) or of Nsight Systems (.sqlite; several ranks or their "
        "folder), or a training log: Megatron-LM, "
        "torchtitan, DeepSpeed, NeMo, MaxText, litgpt, nanotron, nanoGPT, LLaMA-Factory, transformers (TRL, axolotl), "
        "MMEngine (xtuner), MLPerf, exports of Weights & Biases; of others, lines with step, loss and time or rate.",
    ),
]
ModelOfRun = Annotated[str | None, o.MODEL(help="Model that was trained, where the run does not say its sizes.")]
Number = Annotated[
    int | None,
    typer.Option(
        "--run", metavar="N", parser=o.whole_number, help="Which run of a log with several. [default: the last]"
    ),
]
OF_RUN = {
    "num_devices": "GPUs of the job. [default: as the run says]",
    "global_batch_size": "Sequences per step over all devices. [default: as the run says]",
    "seq_len": "Tokens per sequence. [default: as the run says, or its TFLOP/s]",
    "microbatch_size": "Sequences per microbatch. [default: as the run says]",
    "framework": "Trainer: megatron, torchtitan, nemo, maxtext, ...; its release after an @: nemo@26.06. "
    "[default: the log's]",
}
"""Help of options that a run's own log usually answers."""
BestPlan = Annotated[bool, typer.Option("--best-plan/--no-best-plan", help="Also find the best plan for the same job.")]
Records = Annotated[
    Path | None,
    typer.Option(
        "--records",
        metavar="FILE",
        callback=o.writable,
        help="Write the matrix multiplications of a trace as records (CSV) for `sartor calibrate`.",
    ),
]


Steps = Annotated[
    str | None,
    o.STEPS(metavar="A:B", help="Only steps A to B (both included), by their numbers in it."),
]


@takes_run(without=("phase", "context_len", "eager", "kernels", "launch", *OF_ENGINES), helps=OF_RUN)
def diagnose(
    runs: Runs,
    model: ModelOfRun = None,
    gpu: o.GpuOfCluster = None,
    launch: LaunchOfRun = None,
    run: Number = None,
    steps: Steps = None,
    best_plan: BestPlan = True,
    records: Records = None,
    html: o.HtmlFile = None,
    verbose: o.Verbose = False,
    json: o.AsJson = False,
    out: o.OutFile = None,
    **options: Unpack[RunOnDevices],
) -> None:
    """Show where the time of a real run went, beside the prediction: for a trace, what each part loses and what to
    change; for a log, its step time, pauses, memory and TFLOP/s, and
    what would explain the difference.

    Example: `sartor diagnose examples/llama-3-8b/train.log`

    Example: `sartor diagnose examples/llama-3-8b/train.log --model llama-3.1-8b --gpu h100 --fix zero_stage=3`

    Example: `sartor diagnose examples/gpt2/trace.json.gz --gpu h100 --html run.html`

    Example: `sartor diagnose traces/ --model llama-3.1-8b --num-devices 64 --global-batch-size 128`
    """
    from sartor import api
    from sartor.report.diagnose_document import diagnose_page, diagnose_view

    found = api.diagnose(
        runs,
        number=run,
        steps=steps,
        model=model,
        gpu=gpu,
        launch=launch,
        best_plan=best_plan,
        **options,
    )
    if records is not None:
        _write_records(found, records)
    if html is not None:
        c.write_page(html, diagnose_page(found))
    c.answer("diagnose", found.to_dict, as_json=json, out=out)
    if not json:
        c.show(diagnose_view(found, verbose=verbose))


def _write_records(found: LogDiagnosis | LogFacts | TraceDiagnosis, path: Path) -> None:
    """Write the matrix multiplications that a trace measured."""
    from datetime import date

    from sartor.answers.diagnosis import TraceDiagnosis
    from sartor.files import write_atomic
    from sartor.report.diagnose_document import gemm_records

    if not isinstance(found, TraceDiagnosis) or not found.priced:
        must = "needs a trace whose matrix multiplications have sizes (record_shapes=True) and a known device"
        raise InputError("--records", str(path), must)
    write_atomic(path, gemm_records(found, date.today().isoformat()).encode())
    c.say(f"wrote {path}: fit to it with sartor calibrate {path}")


First = Annotated[Path, typer.Argument(metavar="A", help="Log or profiler trace of the run to compare with.")]
Second = Annotated[Path, typer.Argument(metavar="B", help="The same of the run that is judged.")]
Threshold = Annotated[
    float, typer.Option("--threshold", metavar="SHARE", help="Smallest relative change that fails the comparison.")
]
RunA = Annotated[
    int | None,
    typer.Option("--run-a", metavar="N", parser=o.whole_number, help="Which run of log A. [default: the last]"),
]
RunB = Annotated[
    int | None,
    typer.Option("--run-b", metavar="N", parser=o.whole_number, help="Which run of log B. [default: the last]"),
]


def compare(
    a: First,
    b: Second,
    threshold: Threshold = 0.02,
    run_a: RunA = None,
    run_b: RunB = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """Say what changed from run A to run B, and whether it is more than the noise of their steps.

    Exits with 1 where B's step is slower, or its memory larger, by more than noise and threshold: a gate for CI.

    Example: `sartor compare baseline.log today.log --threshold 0.03`

    Example: `sartor compare train.log train.log --run-a 1 --run-b 2`
    """
    from sartor import api
    from sartor.report.diagnose_document import compare_view

    found = api.compare(a, b, threshold=threshold, run_a=run_a, run_b=run_b)
    c.answer("compare", found.to_dict, as_json=json, out=out)
    if not json:
        c.show(compare_view(found))
    if found.worse:
        raise c.Exit(1)
