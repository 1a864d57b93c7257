"""Diagnosis of a training log: the run compared with the prediction for its plan.

Two runs side by side: what changed from A to B, and whether it is more than noise.
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import numpy as np

from sartor.answers.diagnosis import LogDiagnosis, LogFacts, Missing, RunComparison, pauses_text
from sartor.api.logged_plan import SIZES, AskedPlan, LoggedOptions, LoggedPlan, conventions_of
from sartor.api.logged_plan import best_plan as searched_best
from sartor.api.models import ModelAnswer, from_zoo, read
from sartor.api.questions import checked_words
from sartor.api.words import cluster_of, device_counts, device_of, own_calibration_of
from sartor.errors import NOT_GIVEN, InputError
from sartor.hardware.catalog import GPUS
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import usual_cluster
from sartor.options import with_options
from sartor.run.fields import FIELDS, check_names
from sartor.step.measured_run import LEAST_STEPS, OperatorCalls, RunChange, run_change, step_series, sum_of
from sartor.step.results import step_source
from sartor.units import format_share

if TYPE_CHECKING:
    from sartor.traces.logs.run_log import RunLog
    from sartor.units import FloatArray


@with_options(LoggedOptions, FIELDS)
def diagnose_log(
    log: str | Path, *, run: int | None = None, steps: str | None = None, **options: Unpack[LoggedOptions]
) -> LogDiagnosis | LogFacts:
    """What a training log shows, compared with the prediction for its plan: step time, pauses, memory, how its TFLOP/s
    are counted, and which single fact, if different, would bring the prediction nearest; or which plans would give its
    figures.

    Parameters
    ----------
    log
        A log of Megatron-LM, torchtitan, DeepSpeed, the Hugging Face trainer, ...
    run
        Which of several runs in it, from 1; without it the last.
    steps, model, fix, best_plan
        As in `sartor.diagnose`.
    **options
        The fields of a run that the log does not say.

    Returns
    -------
    LogDiagnosis
        ``measured`` [s, bytes], ``predicted``, and the changes of the plan that come nearest.
    LogFacts
        ``measured`` alone, where neither log nor options say what a prediction needs: ``missing``.

    Raises
    ------
    InputError
        For what cannot be read, or contradicts the log, in one sentence that names the field.

    Examples
    --------
    >>> sizes = {"seq_len": 8192, "global_batch_size": 8}
    >>> answer = diagnose_log("examples/llama-3-8b/train.log", model="llama-3-8b", gpu="h100", best_plan=False, **sizes)
    >>> answer.trainer
    'torchtitan'
    >>> [fact.field for fact in diagnose_log("examples/llama-3-8b/train.log").missing]
    ['model']
    """
    from sartor.traces.logs.read import read_log

    check_names(options, LoggedOptions)
    own = _chosen_run(read_log(log), run)
    own = own if steps is None else own.between(*first_and_last(steps))
    named = _model_in(own) if options.get("model") is None and options.get("launch") is None else None
    stated = {name for name, value in options.items() if value is not None} - {"gpu", "cluster", "best_plan"}
    options = options if named is None else {**options, "model": named}
    if missing := tuple(_missing(own, options)):
        _check_alone(options)
        return _facts_alone(own, log, missing, options)
    asked = AskedPlan.of(own, log, measured_on(own.facts.get("gpu"), "the log", options), options)
    try:
        found = asked.launched() if asked.has_launch else asked.assembled()
        warnings = [*asked.contradictions, *_counted_otherwise(found, asked)]
        if named is not None:
            words = f"the model is {named.shape.name or 'that of the configuration'}, as the log says"
            found = replace(found, assumptions=(words, *found.assumptions))
        return _held_against(found, asked, warnings, options.get("calibration"), best=options.get("best_plan", True))
    except InputError as error:
        if stated:
            raise
        return _facts_alone(own, log, (), options, f"no prediction is possible: {error}")


def _model_in(own: RunLog) -> ModelAnswer | None:
    """The model that a log names or whose configuration it prints, if it is known without a download."""
    from sartor.launch.megatron_dialects import whole_dump

    name = own.facts.get("model")
    with suppress(InputError):
        if own.config and not whole_dump(own.arguments):
            return read(own.config)
        return read(from_zoo(str(name))) if name else None
    return None


def _missing(own: RunLog, options: LoggedOptions) -> Iterator[Missing]:
    """What neither the log nor an option says of what a prediction needs."""
    from sartor.launch.megatron_dialects import whole_dump

    whole = options.get("launch") is not None or whole_dump(own.arguments)
    known = own.knowing(seq_len=options.get("seq_len"), num_devices=options.get("num_devices"))
    counted = known.tokens_per_step or known.device_tokens_per_step or own.facts.get("global_batch_size")
    unsaid = {name for name in ("num_devices", "seq_len") if own.number(name) is None and options.get(name) is None}
    gpu, named = own.facts.get("gpu"), own.facts.get("model")
    if options.get("model") is None and not whole:
        what = f"the sizes of its model, which it calls {named}" if named else "its model"
        yield Missing(field="model", what=what, option="--model config.json" if named else "--model llama-3-8b")
    if not (options.get("gpu") or options.get("cluster") or gpu in GPUS.names()):
        nearest = device_of(str(gpu)).name if gpu else "h100"
        yield Missing(field="gpu", what="its device", option=f"--gpu {nearest}")
    if "num_devices" in unsaid and not whole and options.get("cluster") is None:
        yield Missing(field="num_devices", what="how many devices it had", option="--num-devices 8")
    if "seq_len" in unsaid and not whole and not np.isfinite(own.flops_per_s).any():
        yield Missing(field="seq_len", what="its sequence length", option="--seq-len 4096")
    if not whole and not counted and options.get("global_batch_size") is None:
        yield Missing(field="global_batch_size", what="its batch", option="--global-batch-size 64")
    if options.get("launch") is None and _part_trained(own):
        share = format_share(int(own.facts["trainable_params"]) / int(own.facts["num_params"]))
        what = f"its launch file, as {share} of its weights are trained"
        yield Missing(field="launch", what=what, option="--launch train.yaml")


def _part_trained(own: RunLog) -> bool:
    trained, whole = own.number("trainable_params"), own.number("num_params")
    return trained is not None and whole is not None and trained < whole


def _check_alone(options: LoggedOptions) -> None:
    """Raise ``InputError`` for options that are wrong whatever the run is."""
    checked_words({name: value for name, value in options.items() if name in FIELDS})
    if (gpu := options.get("gpu")) is not None:
        device_of(gpu)
    if (cluster := options.get("cluster")) is not None:
        cluster_of(cluster)
    if (model := options.get("model")) is not None:
        read(model)


def _facts_alone(
    own: RunLog, log: str | Path, missing: tuple[Missing, ...], options: LoggedOptions, *warnings: str
) -> LogFacts:
    words = {
        name: value for name, value in options.items() if isinstance(value, str | int | Path) and value is not True
    }
    words |= {"run": own.index + 1} if own.index + 1 < own.num_runs else {}
    pairs = {"fix": options.get("fix") or {}, "set": options.get("set") or {}}
    words |= {f"{option} {name}": value for option, values in pairs.items() for name, value in values.items()}
    return LogFacts(
        path=str(log),
        trainer=own.title,
        run=own.index + 1,
        num_runs=own.num_runs,
        measured=own.measured,
        said=own.facts,
        missing=missing,
        options=" ".join(_option(name, value) for name, value in words.items()),
        units=own.units,
        warnings=(*warnings, *_several(own)),
    )


def _option(name: str, value: object) -> str:
    option, _, key = name.partition(" ")
    if isinstance(value, bool):
        return f"--{'' if value else 'no-'}{option.replace('_', '-')}"
    return f"--{option.replace('_', '-')} {key}{'=' * bool(key)}{shlex.quote(str(value))}"


def _counted_otherwise(found: LoggedPlan, asked: AskedPlan) -> Iterator[str]:
    """A warning if the log's own rates make another number of tokens per step than the job has.

    Raises ``InputError`` if sizes were given by option or launch file, since then one of them must be wrong.
    """
    job, devices = found.job, int(found.plan.num_devices)
    given = {name: asked.stated.get(name) for name in SIZES if name in asked.stated}
    run = asked.run.knowing(num_devices=devices)
    sequences = run.sequences_per_step(job.seq_len)
    batch = int(job.global_batch_size)
    if sequences is None or abs(sequences / batch - 1) <= TOKENS_APART:
        return
    must = (
        f"{batch:,} sequences of {job.seq_len:,} tokens on {devices:,} GPUs are {batch * job.seq_len:,} tokens per "
        f"step, but the log's rate times its step time makes {sequences * job.seq_len:,.0f}; batch, length or number "
        "of GPUs must be another"
    )
    if not given and asked.launch is None:
        yield must
        return
    name = next(iter(given), "launch")
    nearest = {"global_batch_size": sequences, "seq_len": sequences * job.seq_len / batch}.get(name)
    raise InputError(
        name, given.get(name, str(asked.launch)), must, "" if nearest is None else str(max(round(nearest), 1))
    )


TOKENS_APART = 0.05
"""Largest relative difference between the log's own tokens per step and the job's: rates are printed with three digits,
and a line's time holds some logging."""


def first_and_last(steps: str) -> tuple[int, int]:
    """``20:40`` or ``20`` as the first and the last step. Raises ``InputError``."""
    match = re.fullmatch(r"\s*(\d{1,12})(?:\s*:\s*(\d{1,12}))?\s*", steps)
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise InputError("steps", steps, "must be the numbers of a first and a last step", "20:40")
    return first, last


def _chosen_run(runs: tuple[RunLog, ...], number: int | None, name: str = "run") -> RunLog:
    """Run ``number`` of a log, from 1; the last one by default. Raises ``InputError`` for field ``name``."""
    if number is None:
        return runs[-1]
    if not 1 <= number <= len(runs):
        holds = "one run" if len(runs) == 1 else f"{len(runs)} runs"
        raise InputError(name, number, f"must be from 1 to {len(runs)}: the log holds {holds}", str(len(runs)))
    return runs[number - 1]


def measured_on(named: int | str | None, what: str, options: LoggedOptions) -> Cluster:
    """The given cluster, else the usual cluster of the GPU given here or ``named`` by ``what`` (the log, the trace).

    Raises ``InputError`` if there is none, or if the device given is of another family than the named one.
    """
    cluster, gpu = options.get("cluster"), options.get("gpu")
    if cluster is not None:
        found = cluster_of(cluster)
    elif gpu is not None or named in GPUS.names():
        found = usual_cluster(device_of(gpu or str(named)))
    else:
        said = f"{what}'s {named} is not in the catalogue" if named else f"{what} does not name its GPU"
        near = "--cluster dgx-h100"
        with suppress(InputError):
            near = f"--gpu {device_of(str(named)).name}" if named else near
            said = f"{what}'s {named} has several versions" if named else said
        raise InputError("cluster", NOT_GIVEN, f"{said}; name a cluster or a GPU", near)
    same = [name for name in GPUS.names() if named and _family(name) == _family(str(named))]
    names = [each.name for each in found.gpus]
    if same and not any(name in same or name not in GPUS.names() for name in names):
        option, value = ("gpu", names[0]) if cluster is None else ("cluster", found.name)
        must = f"{what} is from {named}, not from {' and '.join(names)}; must be the device of the run"
        raise InputError(option, value, must, f"--gpu {device_of(str(named)).name}")
    return found.with_price(options.get("price"))


def _family(name: str) -> str:
    """``h100`` of every H100 in the catalogue."""
    return name if name.startswith("rtx") else name.split("_")[0]


def _held_against(
    found: LoggedPlan, asked: AskedPlan, warnings: list[str], calibration: str | Path | None, *, best: bool
) -> LogDiagnosis:
    from sartor.launch.megatron_dialects import settled
    from sartor.plans.explain import explanations, likeliest, open_plan
    from sartor.step.question import check_recipe

    job, devices = found.job, int(found.plan.num_devices)
    device_counts(devices, asked.cluster)
    where = asked.cluster.reached(devices)
    for each in where.gpus:
        check_recipe(job.recipe, each)
    run = asked.run.knowing(num_devices=devices, seq_len=job.seq_len, global_batch_size=job.global_batch_size)
    measured = run.measured
    if not measured.step_s > 0:
        raise InputError("LOG", asked.path, "has no step time, and none follows from its rates; must say one")
    stall_free = replace(measured, step_s=measured.stall_free_s, stall_s=0.0)
    own = own_calibration_of(calibration, where)
    said = found.stated | settled(run.arguments)
    unstated = open_plan(job, found.plan, where, stall_free, stated=said, calibration=own)
    answer = LogDiagnosis(
        path=asked.path,
        trainer=run.title,
        run=run.index + 1,
        num_runs=run.num_runs,
        measured=measured,
        job=job,
        cluster=where,
        explanations=likeliest(unstated, stall_free)
        or explanations(job, found.plan, where, stall_free, stated=said, calibration=own, alone=bool(unstated.fields)),
        open_plan=unstated,
        conventions=conventions_of(run, job.shape, job.seq_len, devices),
        facts=found.run,
        said=found.said,
        best=searched_best(found, where, own) if best else None,
        units=run.units,
        warnings=(*warnings, *_several(run)),
        assumptions=found.assumptions,
        source=step_source(where, job.recipe.dtype, own),
    )
    return replace(answer, warnings=(*_impossible(answer), *answer.warnings))


def _impossible(answer: LogDiagnosis) -> Iterator[str]:
    if answer.mfu > 1:
        yield (
            f"an MFU of {format_share(answer.mfu)} is impossible: the model, its batch or length, the number of GPUs "
            "or the GPU must be another than given"
        )


def _several(run: RunLog) -> list[str]:
    steps = run.measured.num_steps
    few = [f"only {steps} steady step{'s' * (steps != 1)}" if steps else "this log prints no step times"] * (
        steps < 3 and run.times != "whole"
    )
    if run.num_runs == 1:
        return [*few, *run.notes]
    return [*few, *run.notes, f"the log holds {run.num_runs} runs; this is number {run.index + 1} (--run chooses)"]


THRESHOLD = 0.02
"""Default for the smallest relative change that matters: launches of the same run differ by about 1%."""


SAME_TOKENS = 0.005
"""Tokens of a step are the product of a rate and a time that are both rounded."""


def compare(
    a: str | Path,
    b: str | Path,
    *,
    threshold: float = THRESHOLD,
    run_a: int | None = None,
    run_b: int | None = None,
) -> RunComparison:
    """What changed from one run to another: step time and operators, or memory and facts of the plan, each with the
    noise of the runs' steps.

    Parameters
    ----------
    a, b
        Two training logs or two profiler traces.
    threshold
        Smallest change that counts, as a share; it must exceed the noise too.
    run_a, run_b
        Which of several runs in a log, from 1; without it the last.

    Returns
    -------
    RunComparison
        ``total``: the steps of both [s], their ratio and its noise; ``parts``, the largest change first.

    Raises
    ------
    InputError
        For what cannot be read or compared, in one sentence that names the field.

    Examples
    --------
    >>> log = "examples/llama-3-8b/train.log"
    >>> compare(log, log).total.beyond(0.02)
    False
    """
    from sartor.traces.read import is_trace

    if not 0 <= threshold < 10:
        raise InputError("threshold", threshold, "must be a share from 0 to 10", str(THRESHOLD))
    traced = [is_trace(_there(path, name)) for path, name in ((a, "A"), (b, "B"))]
    if traced[0] != traced[1]:
        raise InputError("B", str(b), f"must be a {'trace' if traced[0] else 'log'}, as A is")
    if not traced[0]:
        return _compare_logs((a, run_a), (b, run_b), threshold)
    for name, number in (("run_a", run_a), ("run_b", run_b)):
        if number is not None:
            raise InputError(name, number, "chooses one of the runs of a log; A and B are traces, leave it out")
    return _compare_traces(a, b, threshold)


def _there(path: str | Path, name: str) -> Path:
    if not Path(path).is_file():
        raise InputError(name, str(path), "no such file; must be a training log or a profiler trace")
    return Path(path)


def _compare_traces(a: str | Path, b: str | Path, threshold: float) -> RunComparison:
    from sartor.traces.kernel_trace import kernel_seconds, operator_calls, operator_seconds, step_seconds
    from sartor.traces.read import read_traces

    one, other = read_traces(a, "A")[0], read_traces(b, "B")[0]
    steps = step_seconds(one), step_seconds(other)
    calls = operator_calls(one), operator_calls(other)
    warnings = [f"A is of {one.gpu}, B of {other.gpu}"] if one.gpu != other.gpu else []
    if min(each.size for each in steps) >= LEAST_STEPS:
        parts = tuple(_operators(operator_seconds(one), operator_seconds(other), calls, whole=False))
        total = run_change("step", *steps)
    else:
        warnings.append(f"fewer than {LEAST_STEPS} marked steps: noise is that of the single kernels of an operator")
        parts = tuple(_operators(kernel_seconds(one), kernel_seconds(other), calls, whole=True))
        total = sum_of("kernels", parts)
    return RunComparison(
        kind="trace",
        a=str(a),
        b=str(b),
        threshold=threshold,
        total=total,
        parts=tuple(sorted(parts, key=lambda each: -abs(each.b - each.a))),
        warnings=tuple(warnings),
    )


_Called = tuple[Mapping[str, OperatorCalls], Mapping[str, OperatorCalls]]
"""The operators of both traces."""


def _operators(
    a: Mapping[str, FloatArray], b: Mapping[str, FloatArray], calls: _Called, *, whole: bool
) -> Iterator[RunChange]:
    """The change of every operator: of its seconds per step or, with ``whole``, of all its kernels together."""
    none = np.zeros(0)
    for name, renamed in _pairs(*calls):
        one, other = a.get(name, none), b.get(renamed, none)
        enough = min(one.size, other.size) >= LEAST_STEPS and one.all() and other.all()
        if enough:
            found = run_change(name, one, other, tests=1 if whole else len(a))
            counts = (one.size, other.size) if whole else (1, 1)
            share = counts[1] / counts[0]
            found = replace(
                found, a=counts[0] * found.a, b=counts[1] * found.b, low=share * found.low, high=share * found.high
            )
        else:
            sums = [float(each.sum()) / (1 if whole else max(each.size, 1)) for each in (one, other)]
            found = _unsure(name, sums[0], sums[1])
        in_a, in_b = calls[0].get(name), calls[1].get(renamed)
        if in_a is not None and in_b is not None and name != renamed:
            found = replace(found, name=f"{name} -> {in_b.sizes if in_a.sizes != in_b.sizes else renamed}")
        yield replace(found, in_a=in_a, in_b=in_b)


def _pairs(a: Mapping[str, OperatorCalls], b: Mapping[str, OperatorCalls]) -> Iterator[tuple[str, str]]:
    """Each operator of A with the same one of B. One whose sizes B does not have is that of the same name (but for a
    counter at its end) in B whose sizes A does not have and are nearest, if they are near."""
    new = [key for key in b if key not in a]
    for name, calls in a.items():
        if name in b:
            yield name, name
            continue
        same = [key for key in new if _uncounted(key) == _uncounted(name)]
        nearest = min(same, key=lambda key: _differ(calls.sizes, b[key].sizes), default="")
        if nearest and _differ(calls.sizes, b[nearest].sizes) <= MOST_DIFFERENT:
            new.remove(nearest)
            yield name, nearest
        else:
            yield name, name
    yield from ((key, key) for key in new)


def _uncounted(key: str) -> str:
    """An operator's or kernel's name without a counter at its end (``triton_poi_fused_3``)."""
    return re.sub(r"[_#]\d{1,9}$", "", key.partition(" ")[0])


MOST_DIFFERENT = 0.5
"""Mean distance of an operator's sizes between two runs, in factors of 2, up to which it is the same one."""


def _differ(a: str, b: str) -> float:
    """Mean distance of two operators' sizes in factors of 2, at most 1 each; 1 where they have other dimensions."""
    one, other = ([dims.split("x") for dims in sizes.split()] for sizes in (a, b))
    if [len(dims) for dims in one] != [len(dims) for dims in other]:
        return 1.0
    pairs = list(zip(chain(*one), chain(*other), strict=True))
    return sum(_apart(x, y) for x, y in pairs) / max(len(pairs), 1)


def _apart(x: str, y: str) -> float:
    if not (x.isdecimal() and y.isdecimal()):
        return float(x != y)
    return min(abs(math.log2((1 + int(x)) / (1 + int(y)))), 1.0)


def _unsure(name: str, a: float, b: float) -> RunChange:
    """A change without an estimate of noise: something is gone, is new, or has too few samples."""
    low, high = (0.0, 0.0) if not b else (math.inf, math.inf) if not a else (0.0, math.inf)
    return RunChange(name=name, a=a, b=b, low=low, high=high)


def _compare_logs(a: _Numbered, b: _Numbered, threshold: float) -> RunComparison:
    from sartor.traces.logs.read import read_log

    run_a = _chosen_run(read_log(a[0], "A"), a[1], "run_a")
    run_b = _chosen_run(read_log(b[0], "B"), b[1], "run_b")
    tokens = _other_tokens(run_a, run_b)
    both = (run_a, str(a[0]), "A"), (run_b, str(b[0]), "B")
    times = [_times(run, path, name, tokens) for run, path, name in both]
    unit = "token" if tokens else "step"
    return RunComparison(
        kind="log",
        a=str(a[0]),
        b=str(b[0]),
        threshold=threshold,
        total=run_change(unit, *times),
        parts=tuple(_without_stalls(unit, *times)),
        memory=tuple(_memory(run_a, run_b)),
        facts=_facts(run_a, run_b),
        per_token=tokens is not None,
        warnings=tuple(_warnings(run_a, run_b, tokens)),
    )


_Numbered = tuple[str | Path, int | None]
"""A log, and which of its runs."""


def _without_stalls(unit: str, a: FloatArray, b: FloatArray) -> Iterator[RunChange]:
    """Usual steps and stalls apart, where either run has stalls."""
    one, other = step_series(a), step_series(b)
    if one.counts or other.counts:
        yield run_change(f"usual {unit}", one.usual_s, other.usual_s, tests=2)
        stalls = [max(float(np.mean(each.seconds - each.usual_s)), 0.0) for each in (one, other)]
        yield _unsure("stalls", *stalls)


def _other_tokens(a: RunLog, b: RunLog) -> tuple[int, int, str] | None:
    """Tokens per step of both runs and of what, if they differ: of the job or, where a log does not tell those, of one
    GPU."""
    for one, other, whose in (
        (a.tokens_per_step, b.tokens_per_step, ""),
        (a.device_tokens_per_step, b.device_tokens_per_step, " per GPU"),
    ):
        if one is not None and other is not None:
            return (one, other, whose) if abs(one / other - 1) > SAME_TOKENS else None
    return None


def _times(run: RunLog, path: str, name: str, tokens: tuple[int, int, str] | None) -> FloatArray:
    """Seconds per step, or per token where the runs' steps have different ``tokens``."""
    rate = run.device_tokens_per_s if tokens and tokens[2] else run.tokens_per_s
    seconds: FloatArray = 1 / rate if tokens else run.step_s
    found = run.steady(seconds)
    if found.size < LEAST_STEPS:
        must = (
            f"has {found.size} steady steps with a time; at least {LEAST_STEPS} are needed to tell a change from noise"
        )
        raise InputError(name, path, must)
    return found


def _memory(a: RunLog, b: RunLog) -> Iterator[RunChange]:
    for name in ("allocated_bytes", "reserved_bytes"):
        one, other = getattr(a.measured, name), getattr(b.measured, name)
        if np.isfinite(one) and np.isfinite(other):
            yield RunChange(name=name, a=one, b=other, low=other / one, high=other / one)


NOT_THE_PLAN = {"tokens_per_step", "device_tokens_per_step"}
ELSEWHERE = ("path", "save", "load", "dir", "seed", "file", "rank", "port", "addr", "name", "iters", "samples")
"""Parts of argument names that differ from run to run without changing its speed."""


def _facts(a: RunLog, b: RunLog) -> dict[str, tuple[str, str]]:
    """Facts and arguments that differ; those in only one of the logs do not count."""
    found = dict(_differing(a.facts, b.facts))
    found |= {
        name: both for name, both in _differing(a.arguments, b.arguments) if not any(word in name for word in ELSEWHERE)
    }
    if a.trainer != b.trainer:
        found["framework"] = a.trainer, b.trainer
    return found


def _differing(a: Mapping[str, int | str], b: Mapping[str, int | str]) -> Iterator[tuple[str, tuple[str, str]]]:
    for name in a:
        if name in b and a[name] != b[name] and name not in NOT_THE_PLAN:
            yield name, (str(a[name]), str(b[name]))
    only = [name for name in (*a, *b) if (name in a) != (name in b)] if a and b else []
    for name in dict.fromkeys(only):  # dumps omit unset arguments
        yield name, (str(a.get(name, "not said")), str(b.get(name, "not said")))


FEW_STEPS = 30
"""With fewer steps whose neighbours are strongly correlated (0.9), more than 3 in 100 pairs of alike runs are called
different: 19 of 100 at 10 steps, 2.7 at 30 (simulated, lab/notebook/validation.md)."""


def _warnings(a: RunLog, b: RunLog, tokens: tuple[int, int, str] | None) -> Iterator[str]:
    if tokens:
        yield f"a step has {tokens[0]:,} tokens{tokens[2]} in A and {tokens[1]:,} in B: compared per token"
    for name, run in (("A", a), ("B", b)):
        if run.num_runs > 1:
            yield f"{name} holds {run.num_runs} runs; number {run.index + 1} is compared (--run-{name.lower()} chooses)"
        if pauses := pauses_text(run.measured):
            yield f"{name} pauses: {pauses}"
        yield from (f"{name}: {note}" for note in (*run.notes, *run.events))
        if run.measured.num_steps < FEW_STEPS:
            unsure = "small changes can't be separated from noise, and a drift may look like a change"
            yield f"{name} has {run.measured.num_steps} steady steps: {unsure} (give {FEW_STEPS} or more)"
