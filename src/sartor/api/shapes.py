"""Questions about a shape on one device: estimate, gemm, lint, advise."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack, overload

import numpy as np

from sartor.answers.advice import Advice, Lint, Worth
from sartor.answers.estimate import GemmAnswer, ModelEstimate, Question
from sartor.answers.plan import Divided
from sartor.api.models import Model
from sartor.api.questions import DEFAULT_MICROBATCH, completed_question, model_asked
from sartor.api.words import (
    GpuLike,
    arrays_of,
    device_of,
    given_size,
    of_frameworks,
    of_torch,
    own_calibration,
    precision_of,
    size_of,
    with_library_of,
    word_of,
)
from sartor.ask.alternatives import (
    template_corners,
    template_turns,
    template_words,
    turn_of_time,
    under_other_trainers,
    with_template_turns,
)
from sartor.ask.complete import stated_axes
from sartor.cost.correction.attention import kernels_measured
from sartor.cost.correction.calibration import ANY, Calibration, Clock, load_calibration
from sartor.cost.correction.gemm import frameworks_of_gemms
from sartor.cost.cost import Bound, Cost
from sartor.cost.gpu.eager import holds_newer
from sartor.cost.gpu.gemm import weight_bytes, weights_stay
from sartor.cost.price import Estimate, gemm_mappings, operator_costs, price
from sartor.cost.uncertainty import covering, holding
from sartor.errors import InputError
from sartor.hardware.cluster_catalog import network_of
from sartor.hardware.gpu import Gpu, alignment_of
from sartor.interrupts import counted
from sartor.json_types import JsonDict, JsonMap
from sartor.model.editing import edit
from sartor.model.lower import feasible, lower
from sartor.model.lower.setting import undivided_words
from sartor.model.plan import AXES
from sartor.model.workload import AttentionKernel, ModelReading, ParallelDims, Phase
from sartor.operators import Gemm, Layout, OperatorGraph, Part, Role
from sartor.options import with_options
from sartor.plans.next import divided_batches
from sartor.plans.search import HeldPlan
from sartor.rules.rule import Grade, largest_split
from sartor.run.fields import FIELDS, GridOptions, Origin, Run, RunOptions, Turn
from sartor.step.coefficients import InRun
from sartor.step.question import workload_of
from sartor.step.run_cost import run_cost
from sartor.step.serving.engines import ENGINES
from sartor.step.serving.inference import Serving, serving
from sartor.step.serving.served import in_an_engine
from sartor.step.stage_table import of_slowest_stage
from sartor.units import Floats, format_bytes, format_count, format_seconds

if TYPE_CHECKING:
    from sartor.answers.grid import EstimateGrid
    from sartor.answers.serving import DeploymentAnswer
    from sartor.model.shape import TransformerShape
    from sartor.rules.rule import Context, Finding, Fix
    from sartor.shapes.search import Candidate, CoDesign


@overload
def estimate(
    model: Model | None = None, gpu: GpuLike | None = None, **options: Unpack[RunOptions]
) -> ModelEstimate: ...


@overload
def estimate(
    model: Model | None = None, gpu: GpuLike | None = None, **options: Unpack[GridOptions]
) -> EstimateGrid: ...


@with_options(RunOptions, FIELDS)  # type: ignore[misc]
def estimate(
    model: Model | None = None, gpu: GpuLike | None = None, **options: Unpack[RunOptions]
) -> ModelEstimate | EstimateGrid:
    """Where does the time go: every operator of one device's share with its predicted time and interval and, in
    training, the step of the whole plan.

    Parameters
    ----------
    model
        A config.json or its folder, a Hugging Face configuration (the object or its dictionary), a zoo name, a hub id.
    gpu
        A catalogue name or TOML file; the cluster's device, else ``h100_sxm``, where it is left out.
    **options
        The fields of a run (`sartor.run.fields`). What is not stated of devices, batch and plan is completed: the
        fastest plan that fits. A list or array as the value of an axis of the plan, ``num_devices``,
        ``global_batch_size`` or ``seq_len`` (in inference ``microbatch_size``, ``context_len``, ``seq_len``, ``tp``)
        asks for each: several span a grid.

    Returns
    -------
    ModelEstimate
        ``time_s`` [s] is the training step, as `plan` prices it, or the pass of inference; ``operators`` those of one
        microbatch.
    EstimateGrid
        With lists or arrays: the same figures as arrays over the grid, each entry that of the single call (whose
        interval also holds what stays open). Plans of which every axis is stated are priced together; what a point
        leaves open is searched point by point.

    Raises
    ------
    InputError
        For what cannot be run, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> run = {"num_devices": 8, "global_batch_size": 64}
    >>> estimate("gpt2", "h100", tp=1, **run).fits
    True
    >>> grid = estimate("gpt2", "h100", microbatch_size=[1, 2, 4], tp=[1, 2], recompute="none", **run)
    >>> grid.time_s.shape
    (3, 2)
    """
    if arrays_of(options):
        from sartor.api.grids import estimate_grid  # a single estimate needs no grid

        return estimate_grid(model, gpu, options)
    asked = completed_question(model_asked(model, options), gpu, options, splits=True)
    if divided := divided_estimate(asked, gpu, options):
        return divided
    return with_template_turns(_with_batches(answer_question(asked)), answer_question)


def divided_estimate(
    asked: Question, gpu: GpuLike | None, options: Mapping[str, Any], base: ModelEstimate | None = None
) -> ModelEstimate | None:
    """An estimate (``base``) of what runs in place of a question whose degrees do not divide its model, with why they
    do not and the price of every change with which they do, and with the degrees that it is of as those of its run;
    None if they do."""
    from sartor.rules.lint import that_divide

    if feasible(asked.trained_shape, asked.dims):
        return None
    base, split = base or runnable(asked), runs_at(asked)
    divided: list[Divided] = []
    for change in that_divide(_context(asked, base.run)):
        with suppress(InputError):  # its devices or batch may not divide otherwise
            answer = answer_question(_changed_question(asked, gpu, options, change))
            divided.append(Divided(change=change, answer=answer))
    smaller = {n: int(getattr(split, n)) for n in ("tp", "ep") if getattr(split, n) != getattr(asked.dims, n)}
    question = base.question
    question = replace(question, dims=split, run=question.run.with_(Origin.IMPLIED, "splits the model", **smaller))
    words = undivided_words(asked.trained_shape, asked.dims)
    return replace(base, question=question, cannot_run=words, divided=tuple(divided))


def _with_batches(answer: ModelEstimate) -> ModelEstimate:
    """The estimate with the global batches that its devices divide, where those train faster."""
    held, priced, fixed = answer.question.held, answer.priced, stated_axes(answer.question.run)
    if held is None or priced is None or answer.fits is False:
        return answer
    near = divided_batches(held.job, held.cluster, priced, fixed, answer.question.calibration, held.kept_free)
    return replace(answer, batches=near)


def answer_question(question: Question) -> ModelEstimate:
    """Price a question that `ask` completed: its operators on its device and, in training, its plan.

    Parameters
    ----------
    question
        What `ask` returns, or the question of an earlier answer with a change (``dataclasses.replace``).

    Returns
    -------
    ModelEstimate
        As `estimate` returns it, but for other batches that the devices divide.

    Raises
    ------
    InputError
        For what cannot be run, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> from sartor.api.questions import ask
    >>> answer_question(ask("gpt2", "h100", phase="prefill", tp=1)).time_s > 0
    True
    """
    return _one_pass(question) if question.held is None else _one_step(question, question.held)


def _one_pass(question: Question) -> ModelEstimate:
    graph = lower(question.workload, question.dims, question.kernels)
    question, found = priced_pass(question, graph)
    served = serving(found, question.workload, question.dims, question.calibration, question.room)
    question = replace(question, depends_on=(*question.depends_on, *_turns_of_memory(question, served)))
    return ModelEstimate(
        question=question,
        graph=graph,
        microbatch=found,
        layer_time_s=_layer_s(question, found),
        serving=served,
    )


def _turns_of_memory(question: Question, served: Serving) -> Iterator[Turn]:
    """Engines that were not excluded and turn whether the pass fits."""
    if question.engine is None or not question.open_engine:
        return
    for name in question.run.facts["kernels"].alternatives:
        engine = ENGINES[name].with_settings_of(question.engine)
        cache = engine.cache_dtype(question.workload.dtype, question.workload.stored)
        room = replace(question.room, engine=engine)
        memory = room.memory(replace(question.workload, cache_dtype=cache), question.dims)
        if bool(memory.fits) != bool(served.memory.fits):
            yield Turn(
                field="kernels",
                value=name,
                verdict="fits" if memory.fits else "does not fit",
                figures={"peak_bytes": float(memory.peak_bytes)},
                usual=question.engine.name,
                settled_by="--kernels",
            )


def priced_pass(question: Question, graph: OperatorGraph) -> tuple[Question, Estimate]:
    """The pass of a graph on the question's device. If no framework was named, its intervals hold every framework's,
    and the question says so, and which of them would change the time by `MOVES`."""
    question = _of_any_framework(question)
    estimate = _priced(question, graph)
    if not question.open_engine:
        return question, estimate
    turns: list[Turn] = []
    alternatives: list[Estimate] = []
    for name, alternative in _on_other_engines(question, graph):
        alternatives.append(alternative)
        if not np.ndim(alternative.time_s) and name != ANY:
            turns += turn_of_time("kernels", name, float(alternative.time_s), float(estimate.time_s))
    question = replace(question, depends_on=(*question.depends_on, *turns))
    return question, covering(estimate, alternatives)


def _priced(question: Question, graph: OperatorGraph) -> Estimate:
    factor = question.reading.interval_factor
    network = network_of(question.gpu, int(np.max(question.dims.tp * question.dims.ep)))
    return price(graph, question.gpu, question.calibration, sigma_factor=factor, eager=question.eager, cluster=network)


def _on_other_engines(question: Question, graph: OperatorGraph) -> Iterator[tuple[str, Estimate]]:
    """The pass with the kernels of any framework, and in each engine that was not excluded."""
    workload, known = question.workload, question.calibration
    assert known is not None
    if kernels_measured(known):
        yield ANY, _priced(replace(question, calibration=known.with_kernels(ANY)), graph)
    for name in question.run.facts["kernels"].alternatives:
        engine = ENGINES[name].with_settings_of(question.engine)
        there = replace(
            question,
            engine=engine,
            workload=replace(workload, cache_dtype=engine.cache_dtype(workload.dtype, workload.stored)),
            calibration=in_an_engine(known.with_kernels(name), engine, workload.phase),
        )
        yield name, _priced(there, lower(there.workload, there.dims, there.kernels))


def _of_any_framework(question: Question) -> Question:
    """If no framework was given: the question with intervals that cover every framework's kernels, and a note."""
    if question.gpu.accelerator is not None:
        return question
    known = question.calibration or load_calibration(question.gpu)
    fused = question.workload.attention_kernel is AttentionKernel.FLASH
    if known.kernels:
        notes = of_torch(known.kernels, question.gpu) if fused else ()
        if question.open_engine:
            others = " and ".join(question.run.facts["kernels"].alternatives)
            notes += (f"kernels={known.kernels} (default): intervals also cover {others}",)
        notes += of_frameworks(known.kernels, known, question.workload.dtype)
        return replace(question, assumptions=(*question.assumptions, *notes))
    frameworks = dict.fromkeys(name.partition("_")[0] for name in kernels_measured(known))
    if not frameworks or not (fused or frameworks_of_gemms(known, question.workload.dtype)):
        return question
    note = f"unknown framework: intervals cover the kernels of all; kernels={'|'.join(frameworks)} narrows them"
    return replace(question, calibration=known.with_kernels(ANY), assumptions=(*question.assumptions, note))


def _layer_s(question: Question, found: Estimate) -> Floats:
    """Seconds of one layer; the mean if layers differ."""
    pairs = zip(found.graph.operators, found.costs, strict=True)
    layers = sum((cost.time_s * op.count for op, cost in pairs if op.part is Part.LAYER), 0.0)
    stacks = question.reading.shape.stacks
    return layers / sum(stack.num_layers for stack in [each for each in stacks if each.is_text] or stacks)


def _one_step(question: Question, held: HeldPlan) -> ModelEstimate:
    """One device's operators of a microbatch as the plan's trainer runs them, and the step they belong to."""
    priced = held.price(question.calibration)
    job, plan, cluster = held.job, priced.plan, held.cluster
    run = held.in_run(priced, question.gpu, question.calibration, _searched_axes(question))
    graph = lower(workload_of(job, plan.dims.tp, plan.microbatch_size), plan.dims, run.kernels)
    factor = question.reading.interval_factor
    whole = price(graph, question.gpu, run.calibration, sigma_factor=factor, cluster=cluster)
    found = of_slowest_stage(whole, job, plan, cluster, question.calibration)
    return ModelEstimate(
        question=question,
        graph=found.graph,
        microbatch=found,
        layer_time_s=_layer_s(question, whole),
        priced=priced,
        run=run,
    )


def gemm(
    m: int,
    n: int,
    k: int,
    gpu: GpuLike = "h100_sxm",
    *,
    batch: int = 1,
    dtype: str | None = None,
    layout: str = "TN",
    kernels: str | None = None,
    clock: str = "boost",
    calibration: str | Path | None = None,
) -> GemmAnswer:
    """One GEMM C[m,n] = A[m,k] B[k,n], and why it takes as long as it does.

    Parameters
    ----------
    m, n, k
        Rows, columns and depth of one product.
    gpu
        A catalogue name or a TOML file.
    batch
        Products of this size in one launch.
    dtype
        Type of the operands; the device's usual one where it is left out.
    layout
        Which operands are transposed, as cuBLAS says it: TN, NN, NT or TT.
    kernels
        The library that runs it, where several were measured (AMD: ``aiter_asm``), or in 8 and 4 bits the serving
        framework (``trtllm``), without which the interval covers all.
    clock
        ``boost`` (a short run, as benchmark tables time it) or ``sustained``.
    calibration
        A file of ``sartor calibrate``.

    Returns
    -------
    GemmAnswer
        ``cost`` with its time and 80% interval [s], the limiting term, tiles and waves.

    Raises
    ------
    InputError
        For sizes, types or devices that cannot be, in one sentence with the nearest that can.

    Examples
    --------
    >>> gemm(4096, 4096, 4096, "h100").cost.bound_by.value
    'compute'
    """
    device = device_of(gpu)
    dtype_, widened = precision_of(dtype, device)
    if str(layout).upper() == Layout.TILED.value and device.vendor != "AMD":
        raise InputError("layout", layout, f"is of pre-shuffled weights on AMD GPUs, not of {device.name}", "TN")
    product = Gemm(
        name="gemm",
        m=given_size("m", m, 4096),
        n=given_size("n", n, 4096),
        k=given_size("k", k, 4096),
        batch=size_of("batch", batch, 1),
        dtype=dtype_,
        layout=word_of(Layout, "layout", layout),
    )
    known = own_calibration(calibration, device) or load_calibration(device)
    known = with_library_of(kernels, device, known, dtype_)
    clock_ = word_of(Clock, "clock", clock)
    cost = operator_costs([product], device, known, clock=clock_)[0]

    def cost_on(chip: Gpu) -> Cost:
        return operator_costs([product], chip, known, clock=clock_)[0]

    turns = template_turns(device, float(cost.time_s), lambda chip: float(cost_on(chip).time_s))
    return GemmAnswer(
        gemm=product,
        gpu=device,
        cost=holding(cost, [cost_on(chip) for chip in template_corners(device, turns)]),
        alternatives=gemm_mappings(product, device, known, clock=clock_),
        calibration="template" if device.accelerator else known.owner(f"gemm.{dtype_.value}"),
        assumptions=(
            *(widened if dtype is not None else ()),
            *of_frameworks(kernels, known, dtype_, int(batch) * int(m) * int(k)),
            *_of_software(product, device, known, kernels),
            *_of_cache(product, cost, device, known, clock_),
            *_of_scale_blocks(product, device),
            *template_words(device),
        ),
        depends_on=turns,
    )


def _of_scale_blocks(gemm: Gemm, gpu: Gpu) -> Iterator[str]:
    """What libraries do with a ``k`` that the scales of its type do not divide."""
    block = 1 if gpu.accelerator is not None else alignment_of(gpu, gemm.dtype).scale_block
    if int(gemm.k) % block:
        yield (
            f"k={int(gemm.k)} is not a multiple of {block}, the scale block of {gemm.dtype.value}: priced as stated,"
            " where libraries refuse it, pad it, or fall back to 16 bits"
        )


def _of_cache(gemm: Gemm, cost: Cost, gpu: Gpu, known: Calibration, clock: Clock) -> tuple[str, ...]:
    """Where weights that fit in L2 are read from: what the GEMM takes in a model if that is another time, or that its
    time is a model's."""
    size = float(weight_bytes(gemm))
    if gpu.accelerator is not None or size > gpu.l2_bytes:
        return ()
    if not weights_stay(gemm, gpu, known, clock):
        said = f"the weights ({format_bytes(size)}) are read from memory, as in a model, though they fit in L2"
        return (said,) if cost.bound_by is Bound.MEMORY else ()
    in_model = operator_costs([replace(gemm, role=Role.FFN_UP)], gpu, known, clock=clock)[0]
    if abs(float(in_model.time_s / cost.time_s) - 1) < SAME:
        return ()
    return (
        f"the weights ({format_bytes(size)}) stay in L2 from one run to the next, as in a benchmark; in a model it "
        f"reads them from memory and takes {format_seconds(float(in_model.time_s))}",
    )


SAME = 0.02
"""Relative difference of two times of a GEMM that is not worth a sentence."""


def _of_software(gemm: Gemm, gpu: Gpu, known: Calibration, kernels: str | None) -> tuple[str, ...]:
    """What the time holds besides the GEMM, and whose kernels its interval holds."""
    said = []
    c = known.gemm.get(gemm.dtype)
    counted = kernels and frameworks_of_gemms(known, gemm.dtype)  # the kernels of a named framework are counted already
    if c and (c.quantize_s or c.quantize_bytes) and not gemm.quantized and not counted:
        said.append(f"the time includes the kernel that narrows the activation to {gemm.dtype.value}")
    if holds_newer(gemm.dtype, known):
        said.append(
            f"{gpu.name} was timed with the kernels of eager PyTorch of 2023; the interval also holds tuned kernels of "
            f"2024 on its die ({known.relative})"
        )
    return tuple(said)


@with_options(RunOptions, FIELDS)
def lint(
    model: Model | None = None, gpu: GpuLike | None = None, *, allow: Sequence[str] = (), **options: Unpack[RunOptions]
) -> Lint:
    """Is anything wasteful: the rules a shape breaks on this device and what each costs, worst first.

    Parameters
    ----------
    model, gpu
        As in `estimate`.
    allow
        Names or codes of rules to leave out.
    **options
        The fields of a run, as in `estimate`.

    Returns
    -------
    Lint
        ``findings``: each with its fix, and its cost as a share of the training step that `estimate` returns, or of
        one inference pass.

    Raises
    ------
    InputError
        For what cannot be run, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> [finding.rule for finding in lint("gpt2", "a100", framework="torchtitan", num_devices=8).findings][0]
    'ragged_vocab'
    """
    reading = model_asked(model, options, changed_by="lint")
    asked = completed_question(reading, gpu, options, splits=True)
    lint = lint_question(asked, allow)
    return replace(lint, base=divided_estimate(asked, gpu, options, lint.base) or _with_batches(lint.base))


def lint_question(asked: Question, allow: Sequence[str] = ()) -> Lint:
    """The findings for a question that `ask` completed, and its estimate: at the nearest smaller split, if it cannot
    run as requested.

    Parameters
    ----------
    asked
        What `ask` returns.
    allow
        Names or codes of rules to leave out.

    Returns
    -------
    Lint
        As `lint` returns it.

    Raises
    ------
    InputError
        For what cannot be run, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> from sartor.api.questions import ask
    >>> [finding.code for finding in lint_question(ask("gpt2", "h100", phase="prefill", tp=1)).findings][:1]
    ['R1']
    """
    base = runnable(asked)
    findings = findings_of(asked, base.run, allow)
    others = _on_other_trainers(asked, base.question.held, findings, allow)
    if feasible(asked.trained_shape, asked.dims):  # what cannot run is no question of the trainer
        asked = replace(asked, depends_on=(*asked.depends_on, *_turned_findings(asked.run, findings, others)))
        base = with_template_turns(replace(base, question=asked), answer_question)
    return Lint(base=base, findings=findings, on_other_trainers=others)


def findings_of(
    question: Question, run: InRun | None, allow: Sequence[str] = (), *, remarks: bool = True
) -> tuple[Finding, ...]:
    """What the rules find in the shape of a question, in its ``run`` (training only); none in a traced module. Remarks
    propose no change of the same model: a headline does without, and without their prices."""
    from sartor.rules.lint import added_up, run_rules

    if question.reading.shape.traced is not None:
        return ()
    found = added_up(run_rules(_context(question, run), allow=tuple(allow), remarks=remarks))
    return tuple(replace(finding, doubt=_doubt(question, finding)) for finding in found)


def _doubt(question: Question, finding: Finding) -> str:
    """What speaks against the fix of a finding that saves time, as `advise` judges a shape."""
    from sartor.shapes.quality import doubt

    before, saved = question.trained_shape, finding.gain_fraction or 0.0
    if finding.remark or not saved or not finding.fix.keys() <= before.fields().keys():
        return ""
    words = doubt(edit(before, **finding.fix), before, float(question.reading.num_params), saved)
    return words or "it may be no gain: its interval holds none" * (
        finding.gain_low_s is not None and finding.gain_low_s <= 0
    )


def _context(question: Question, run: InRun | None) -> Context:
    """What the rules read of a question."""
    from sartor.rules.rule import Context

    return Context.of(
        replace(question.workload, shape=question.trained_shape),
        question.gpu,
        question.dims,
        question.calibration,
        run=run,
        kernels=question.kernels,
        sigma_factor=question.reading.interval_factor,
        runs_at=runs_at(question),
    )


def _searched_axes(question: Question) -> set[str]:
    """Axes of the plan that the search chose."""
    return {*question.run.of_origin(Origin.SEARCHED)} & AXES.keys()


def _on_other_trainers(
    asked: Question, base: HeldPlan | None, findings: Sequence[Finding], allow: Sequence[str]
) -> dict[str, tuple[Finding, ...]]:
    """What lint finds with each other plausible trainer that has another vocabulary, by its name: of the run's plan,
    with only the rules asked again that a trainer turns."""
    from sartor.rules.shape import RULES

    if base is None:
        return {}
    turned = {rule.name for rule in RULES if "framework" in rule.turned_by}
    same = [finding for finding in findings if finding.rule not in turned]
    off = (*allow, *(rule.name for rule in RULES if rule.name not in turned))
    findings_by_trainer: dict[str, tuple[Finding, ...]] = {}
    for name, held in under_other_trainers(asked.run, asked.workload.shape, base, asked.calibration):
        question = replace(asked, held=held)
        if question.trained_shape.vocab_size != asked.trained_shape.vocab_size:
            run = held.in_run(held.price(), asked.gpu, asked.calibration, _searched_axes(question))
            findings_by_trainer[name] = (*same, *findings_of(question, run, off))
    return findings_by_trainer


def _turned_findings(
    run: Run, findings: Sequence[Finding], findings_by_trainer: Mapping[str, Sequence[Finding]]
) -> Iterator[Turn]:
    """Findings worth a line that another trainer has and the run's own does not, and those that it alone has."""
    fact, rules = run.facts.get("framework"), {finding.rule for finding in findings}
    for name, others in findings_by_trainer.items():
        assert fact is not None
        new = [(f.message, f.gain_fraction) for f in others if f.rule not in rules and _matters(f)]
        gone = sorted(rules - {finding.rule for finding in others})
        settled = f"--framework {'|'.join((fact.value, *fact.alternatives))}"
        for verdict, gain in (*new, *((f"{rule} is no finding", 0.0) for rule in gone)):
            figures = {} if gain is None else {"gain_fraction": gain}  # one that cannot run has no cost
            turn = Turn(field="framework", value=name, verdict=verdict, figures=figures)
            yield replace(turn, usual=fact.value, settled_by=settled)


def _matters(finding: Finding) -> bool:
    return (finding.gain_fraction or 0.0) >= WORTH_A_LINE or finding.grade is Grade.ERROR


WORTH_A_LINE = 0.01
"""Least share of the step for which another trainer is named."""


def runs_at(asked: Question) -> ParallelDims:
    """The degrees at which a question is priced: those asked for or, if they do not divide its model, smaller ones."""
    if asked.held is None:
        return largest_split(asked.workload.shape, asked.dims)
    axes = asked.held.axes  # completed at a split of the shape as it was asked for, not of one that was changed since
    return largest_split(asked.trained_shape, replace(asked.dims, tp=axes["tp"], ep=axes["ep"]), of_plan=True)


def runnable(asked: Question) -> ModelEstimate:
    """The estimate of a question; if it cannot run as requested, that of the largest smaller split at which it can."""
    split, held = runs_at(asked), asked.held
    if held is not None and (int(split.tp), int(split.ep)) != (held.axes["tp"], held.axes["ep"]):
        held = held.split(tp=int(split.tp), ep=int(split.ep))
    return answer_question(replace(asked, dims=split, held=held))


SERVE = "serve"
"""The objective of the cheapest deployment."""


@with_options(RunOptions, FIELDS)
def advise(
    model: Model | None = None,
    gpu: GpuLike | Sequence[GpuLike] | None = None,
    *,
    objective: str = "train",
    regret: str = "weighted",
    equal: str = "work",
    params_tolerance: float | None = None,
    freeze: Sequence[str] = (),
    free: Sequence[str] = (),
    top: int = 10,
    evidence: float = 1.0,
    tokens: float | None = None,
    **options: Unpack[RunOptions],
) -> Advice:
    """What would be faster at the same size: findings, candidates best first, the smallest edit that pays.

    Parameters
    ----------
    model, gpu
        As in `estimate`; with several GPUs the first is estimated, and candidates carry a speedup on each.
    objective, regret
        The phase to be fast in (train, prefill or decode), or several with weights (``train:0.7,decode:0.3``): then
        ``codesign`` is one shape for all of them on all GPUs, with the least ``regret`` (``weighted`` or ``worst``),
        and the rest is about the phase with the largest weight. ``serve:ttft=0.5,tpot=0.03,rate=20`` (words of
        `deploy`) also prices the deployment of every candidate (``served``, the cheapest first); the rest is then
        about the decoding step of the model's own cheapest.
    equal
        ``work``: shapes of the same size, their times at equal parameters and FLOPs. ``loss``: shapes whose loss is
        surely no higher, also somewhat smaller and larger ones, their times as they are.
    freeze, free
        Fields that stay as they are, and fields that may change at the cost of quality, as ``num_layers``.
    params_tolerance, top, evidence
        Largest change of the parameter count, as a share (0.01; at equal loss 0.1); most candidates; quality guard (1:
        as published).
    tokens
        Of the whole training run, for what a gain is worth; 20 per parameter where left out.
    **options
        The fields of a run, as in `estimate`.

    Returns
    -------
    Advice
        ``base``, the model's estimate [s]; ``findings``; ``search.candidates``, each with its speedup at equal work and
        80% interval; ``search.smallest_edit``, that with most of the gain, or none.

    Raises
    ------
    InputError
        For what cannot be run, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> advise("pythia-2.8b", "a100", num_devices=8).search.smallest_edit.changed["num_heads"]
    (32, 20)
    """
    from sartor.shapes.quality import QualityGuard
    from sartor.shapes.space import TOLERANCE, Equal

    basis = word_of(Equal, "equal", equal)
    tolerance = TOLERANCE[basis] if params_tolerance is None else params_tolerance
    space = {"params_tolerance": tolerance, "guard": QualityGuard(width=evidence), "equal": basis}
    space |= {"freeze": tuple(freeze), "free": tuple(free)}
    asked = partial(_advice, top=top, tokens=tokens, space=space)
    if objective.partition(":")[0] == SERVE:
        return _served_advice(asked, model_asked(model, options, changed_by="advise"), gpu, objective, options)
    return asked(model, gpu, objective, options, regret=regret)


def _advice(
    model: Model | None,
    gpu: GpuLike | Sequence[GpuLike] | None,
    objective: str,
    options: RunOptions,
    *,
    top: int,
    tokens: float | None,
    space: JsonDict,
    regret: str = "weighted",
) -> Advice:
    """As `advise`; ``space`` is what `search_shapes` takes of its space."""
    from sartor.model.workload import phase_weights
    from sartor.shapes.search import Regret, search_shapes

    weights = phase_weights(objective) if ":" in objective else {}
    objective = max(weights, key=lambda phase: weights[phase]).value if weights else objective
    if objective not in (phases := [phase.value for phase in Phase]):
        must = "must be train, prefill, decode, shares of them (train:1,decode:2) or serve:ttft=...,tpot=...,rate=..."
        raise InputError("objective", objective, must, *get_close_matches(objective, phases, 1, 0.4))
    rule = word_of(Regret, "regret", regret)
    first, *others = [gpu] if gpu is None or isinstance(gpu, (str, Path, Gpu)) else gpu
    context_len = options.get("context_len")
    if Phase.DECODE in weights and objective == Phase.TRAIN.value:  # of the decoding alone
        options = {**options, "context_len": None}
    reading = model_asked(model, options, changed_by="advise")
    words = {**options, "phase": options.get("phase") or (None if objective == Phase.TRAIN.value else objective)}
    asked = completed_question(reading, first, words, splits=True)
    if asked.trained_shape.vocab_size != reading.shape.vocab_size:  # the trainer pads it: another width gains nothing
        space = {**space, "freeze": (*space["freeze"], "vocab_size")}
    checked = lint_question(asked)
    base = divided_estimate(asked, first, words, checked.base) or _with_batches(checked.base)
    asked = _that_splits(base.question)
    gpus = (asked.gpu, *(device_of(name) for name in others if name is not None))
    runs = _runs(base, gpus[1:], words)
    found = search_shapes(
        asked.workload,
        gpus,
        asked.dims,
        objective=asked.workload.phase,
        top=top,
        calibrations=(known := _calibrations(asked, gpus)),
        sigma_factor=asked.reading.interval_factor,
        runs=runs,
        kernels=asked.kernels,
        **space,
    )
    best = found.smallest_edit or next(iter(found.candidates), None)
    after = None if best is None else _after(asked, best.shape, first, words)
    several = {"rule": rule, **space}
    common = _common(asked, runs, known, gpus, weights, context_len, options.get("microbatch_size"), several)
    worth = None if best is None else _worth(base, best, tokens)
    if tokens is not None and worth is None:
        unused = f"tokens={format_count(tokens)} is for what a faster training run is worth: none is proposed"
        base = replace(base, question=replace(base.question, assumptions=(*base.question.assumptions, unused)))
    return Advice(
        base=base, gpus=gpus, findings=checked.findings, search=found, after=after, worth=worth, codesign=common
    )


def _served_advice(
    asked: Callable[..., Advice],
    reading: ModelReading,
    gpu: GpuLike | Sequence[GpuLike] | None,
    objective: str,
    options: RunOptions,
) -> Advice:
    """Advice on the decoding step of the cheapest deployment, with the deployment of every candidate: those with the
    fastest decoding step and those with the fastest prompt, in turn."""
    from sartor.answers.serving import ServedAdvice, ServedShape
    from sartor.api.deployments import deploy, served_goal

    stated: JsonDict = {name: word for name, word in options.items() if name != "set"}  # the model is read with it
    price = partial(deploy, gpu=gpu, pools=False, **served_goal(objective), **stated)
    usual = ServedShape(changed={}, deployment=price(model=reading))
    if not usual.deployment.front:
        must = f"no layout of up to {usual.deployment.most_devices} devices holds one request"
        raise InputError("objective", objective, must, f"most_devices={2 * usual.deployment.most_devices}")
    device, passes = _passes(usual.deployment)
    stated = {name: word for name, word in stated.items() if name not in ("price", "ep")}
    decoding, prompts = (asked(reading, device, phase, {**stated, **sizes}) for phase, sizes in passes.items())
    pairs = itertools.zip_longest(decoding.search.candidates, prompts.search.candidates)
    tried = {str(shape.changed): shape for shape in itertools.chain.from_iterable(pairs) if shape}
    most = max(len(decoding.search.candidates), len(prompts.search.candidates))
    others = [
        ServedShape(changed=shape.changed, loss=shape.loss, deployment=price(model=replace(reading, shape=shape.shape)))
        for shape in counted(list(tried.values())[:most], "pricing deployments")
    ]
    return replace(ServedAdvice.holding(decoding), served=(usual, *sorted(others, key=lambda shape: shape.cost)))


def _passes(answer: DeploymentAnswer) -> tuple[Gpu, dict[str, JsonDict]]:
    """The device of the cheapest deployment (of the fastest where none meets the objectives), and its decoding step
    and prompt as `estimate` is asked for them."""
    place = answer.best.deployment if answer.best else answer.front[0]
    server, request = place.layout.server, answer.load.request
    split = {"dtype": server.dtype.value, "kernels": server.engine.name, "tp": server.tp}
    split |= {"ep": server.copies} if server.copies > 1 else {}
    sequences = math.ceil(place.in_flight / server.copies)
    return server.gpu, {
        "decode": {**split, "microbatch_size": sequences, "context_len": int(request.middle)},
        "prefill": {**split, "microbatch_size": 1, "seq_len": answer.load.input_len},
    }


def _after(asked: Question, shape: TransformerShape, gpu: GpuLike | None, words: Mapping[str, Any]) -> ModelEstimate:
    """The estimate of the recommended shape under the plan of the question or, if it cannot have that, one of its
    own."""
    try:
        return answer_question(asked.with_shape(shape))
    except InputError:
        return answer_question(completed_question(replace(asked.reading, shape=shape), gpu, words))


TOKENS_PER_PARAMETER = 20
"""Of a run of unknown length: the best use of compute (Hoffmann et al. 2022, arXiv 2203.15556, sec. 3)."""


def _worth(base: ModelEstimate, best: Candidate, tokens: float | None) -> Worth | None:
    """What a shape is worth in training; None for a pass of inference."""
    from sartor.shapes.quality import nats_per_efold

    held, priced = base.question.held, base.priced
    if held is None or priced is None:
        return None
    length = tokens or max(TOKENS_PER_PARAMETER * float(base.question.reading.num_params), held.job.tokens_per_step)
    step_s = (priced.step_s, priced.low_s, priced.high_s)
    cost = run_cost(held.job, held.cluster, held.num_devices, step_s, length)
    share = 1 - 1 / best.speedup
    return Worth(
        tokens=length,
        stated=tokens is not None,
        share=share,
        device_hours=share * cost.device_hours,
        usd=None if cost.usd is None else share * cost.usd,
        gained_nats=nats_per_efold(length) * math.log(best.speedup),
        restart_tokens=share * length,
    )


def _calibrations(question: Question, gpus: Sequence[Gpu]) -> dict[str, Calibration]:
    """The question's calibration of its device and, of the other devices, with kernels in the same engine."""
    known = {question.gpu.name: question.calibration} if question.calibration else {}
    engine, phase = question.engine, question.workload.phase
    if engine is None:
        return known
    return {
        gpu.name: in_an_engine(load_calibration(gpu).with_kernels(engine.name), engine, phase) for gpu in gpus
    } | known


def _that_splits(question: Question) -> Question:
    """The question with its shape as it is trained, if only so it splits as requested."""
    split = feasible(question.workload.shape, question.dims)
    return question if split else question.with_shape(question.trained_shape)


def _changed_question(question: Question, gpu: GpuLike | None, words: Mapping[str, Any], fix: Fix) -> Question:
    """The question with a fix of its sizes or degrees, completed anew."""
    from sartor.rules.lint import changed

    workload, dims, of_shape = changed(question.workload, question.dims, fix)
    name = f"{workload.shape.name} with {_fix_words(fix)}" if of_shape else workload.shape.name
    reading = replace(question.reading, shape=replace(workload.shape, name=name))
    degrees = {axis: int(getattr(dims, axis)) for axis in fix if axis not in of_shape}
    stated = {name: word for name, word in (words.get("fix") or {}).items() if name not in degrees}
    return completed_question(reading, gpu, {**words, "fix": stated, **degrees})


def _fix_words(fix: Fix) -> str:
    return ", ".join(f"{name}={value}" for name, value in fix.items())


def _common(
    asked: Question,
    runs: Mapping[str, InRun],
    known: Mapping[str, Calibration],
    gpus: Sequence[Gpu],
    weights: Mapping[Phase, float],
    context_len: int | None,
    microbatch_size: int | None,
    space: JsonMap,
) -> CoDesign | None:
    """One shape for every phase of the objective on every device, if the objective has weights."""
    if not weights:
        return None
    from sartor.shapes.evaluate import Evaluator
    from sartor.shapes.search import codesign, phase_workload

    workloads = {}
    for phase in weights:
        there = phase_workload(asked.workload, phase)
        if phase is not asked.workload.phase and phase is not Phase.TRAIN:
            there = replace(there, microbatch_size=microbatch_size or DEFAULT_MICROBATCH[phase])
        if phase is Phase.DECODE and context_len is not None:
            there = replace(there, context_len=context_len)
        workloads[phase] = there
    evaluator = Evaluator(dims=asked.dims, calibrations=known, runs=runs, kernels=asked.kernels)
    return codesign(workloads, weights, tuple({gpu.name: gpu for gpu in gpus}.values()), asked.dims, evaluator, **space)


def _runs(base: ModelEstimate, others: Sequence[Gpu], words: JsonMap) -> dict[str, InRun]:
    """The training run on the question's device, and the same completed on each other device that can run it."""
    if base.run is None:
        return {}
    runs = {base.question.gpu.name: base.run}
    for gpu in others:
        try:
            there = completed_question(base.question.reading, gpu, {**words, "cluster": None, "calibration": None})
        except InputError:
            continue
        if (run := answer_question(there).run) is not None:
            runs[gpu.name] = run
    return runs
