"""A question about one device: model, workload and plan, completed where the caller left something open."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from sartor.answers.estimate import Question
from sartor.api.models import Model, read
from sartor.api.words import (
    GpuLike,
    cluster_and_device,
    device_counts,
    own_calibration,
    precision_of,
    refuse_on_a_chip,
    size_of,
    with_kernels_of,
    word_of,
)
from sartor.ask.alternatives import template_words
from sartor.ask.complete import complete
from sartor.cost.correction.calibration import Calibration, load_calibration
from sartor.errors import NOT_GIVEN, InputError
from sartor.hardware.cluster import UNSAID_BYTES_PER_S, Cluster
from sartor.hardware.cluster_catalog import CLUSTERS, joined_devices, network_of, usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.lower.setting import feasible
from sartor.model.shape import TransformerShape
from sartor.model.training import Trainer
from sartor.model.workload import (
    AttentionKernel,
    ModelReading,
    ParallelDims,
    Phase,
    Workload,
    settled_seq_len,
    too_long,
    usual_seq_len,
)
from sartor.operators import DType
from sartor.options import with_options
from sartor.plans.fixed import fixed_fields
from sartor.plans.search import checked_headroom
from sartor.rules.rule import Grade, smaller_splits
from sartor.run.fields import FIELDS, OF_ENGINES, Origin, Run, RunOptions, check_names
from sartor.step.footprint import FIT_PROBABILITY, margin
from sartor.step.question import checked_skew, padded_vocab, workload_of
from sartor.step.serving.engines import USUAL_ENGINE, Engine, engine_of_pass, engines_on, split_release
from sartor.step.serving.inference import Room, would_fit
from sartor.step.serving.served import (
    VOCABULARY_MULTIPLE,
    Server,
    cut_block,
    in_an_engine,
    near_uncut,
    padded,
)
from sartor.step.trainers import plausible_trainers, trainer_named
from sartor.units import GIGA, divisors

if TYPE_CHECKING:
    from sartor.rules.plan.rule import PlanFinding


DEFAULT_MICROBATCH = {Phase.PREFILL: 1, Phase.DECODE: 8}
"""Default sequences at once in inference."""


@with_options(RunOptions, FIELDS)
def ask(model: Model | None = None, gpu: GpuLike | None = None, **options: Unpack[RunOptions]) -> Question:
    """Read a model and a device and complete the question, with the origin of every value.

    Parameters
    ----------
    model, gpu
        As in `sartor.estimate`; a ``launch`` file that has the sizes needs no model.
    **options
        The fields of a run. What is left out is completed: in training the plan is the fastest that fits, on the
        fewest nodes on which one does; in inference the model takes the fewest tensor-parallel devices that hold it.

    Returns
    -------
    Question
        ``run``: every value with its origin; the workload and the device. `sartor.answer_question` prices it.

    Raises
    ------
    InputError
        For what cannot be run, in one sentence that names the field and a value that works.

    Examples
    --------
    >>> ask("llama-3.1-70b", "h100", phase="prefill").run.get("tp")
    4
    """
    return completed_question(model_asked(model, options), gpu, options)


def model_asked(model: Model | None, options: Mapping[str, Any], changed_by: str = "") -> ModelReading:
    """The model of a question, as in `read`; where none is named, that of its launch file. Raises ``InputError``."""
    launch = options.get("launch")
    if launch is not None:
        from sartor.api.logged_plan import model_of_launch

        return model_of_launch(model, options, changed_by)
    if model is None:
        raise InputError("MODEL", NOT_GIVEN, "name the model, or a --launch file that has its sizes", "llama-3-8b")
    return read(model, options.get("set"), changed_by)


def completed_question(
    reading: ModelReading, gpu: GpuLike | None, options: Mapping[str, Any], *, splits: bool = False
) -> Question:
    """The question about a model already read; ``splits``: degrees that do not divide the model are completed at the
    nearest smaller ones that do, and the question keeps them (for rules that report them)."""
    run, device, where, own = asked_run(reading, gpu, options)
    phase = Phase(run.get("phase"))
    if run.states("launch"):
        from sartor.api.logged_plan import launched_question

        return launched_question(run, reading, device, where, own)
    if phase is Phase.TRAIN:
        return _training(run, reading, device, where, own, splits=splits)
    return inference(run, reading, device, own)


def asked_run(
    reading: ModelReading, gpu: GpuLike | None, options: Mapping[str, Any]
) -> tuple[Run, Gpu, Cluster | None, Calibration | None]:
    """The run as it is stated, its device, its cluster if one is named, and the user's own calibration."""
    check_names(options)
    words = {name: value for name, value in options.items() if name != "set" and value is not None}
    named = words.pop("cluster", None)
    where, device = cluster_and_device(named, gpu)
    _train_in_16_bits(device)
    phase = word_of(Phase, "phase", words.pop("phase", "train"))
    run = Run(facts={})
    for name, value, option in (("phase", phase.value, options.get("phase")), ("gpu", device.name, gpu)):
        run = run.with_(*((Origin.USUAL, "") if option is None else (Origin.STATED, _place(option))), **{name: value})
    if gpu is None and where is not None:
        run = run.with_(Origin.IMPLIED, "the cluster's", gpu=device.name)
    run = stated_run(run.with_(Origin.STATED, _place(named), cluster=where and where.name), reading, words)
    if run.get("eager") and reading.shape.traced is not None:
        must = f"{reading.shape.name} was traced with its kernels as they are; extract it again with --eager"
        raise InputError("eager", True, must)
    if run.get("eager"):
        refuse_on_a_chip(device, "eager", True, "a GPU's host launches kernel by kernel")
    if run.get("ep", 1) > 1 and reading.shape.moe_ffn is None:
        raise InputError("ep", run.get("ep"), "the model has no experts", "1")
    if phase is not Phase.TRAIN:
        _refuse_plan(phase, run)
        if run.get("pp", 1) > 1:
            raise InputError("pp", run.get("pp"), "a pass is priced on one stage; phase=train has stages", "1")
    return run, device, where, own_calibration(words.get("calibration"), device)


def device_note(run: Run) -> tuple[str, ...]:
    """The device, where neither it nor a cluster was stated."""
    return (f"gpu={run.get('gpu')} (default; set --gpu)",) if run.origin("gpu") is Origin.USUAL else ()


def _place(stated: object) -> str:
    """What states a device or cluster: its own file, or an option that names one."""
    return str(stated) if str(stated).endswith(".toml") else "option"


def stated_run(run: Run, reading: ModelReading, words: Mapping[str, Any]) -> Run:
    """The run with what the caller states, and what a traced model implies."""
    return _traced(with_margin(run.with_(Origin.STATED, "option", **checked_words(words))), reading)


def with_margin(run: Run) -> Run:
    """The run with the memory that it leaves free, where the probability states it with which it must fit."""
    probability = run.get("fit_probability")
    free = None if probability is None or "headroom" in run else margin(probability)
    return run.with_(Origin.IMPLIED, "fit_probability", headroom=free)


def checked_words(words: Mapping[str, Any]) -> dict[str, Any]:
    """Stated sizes within their bounds, what ``fix`` states under names of its own, the rest as it is; False of a
    switch is its default."""
    fix = words.get("fix") or {}
    words = {name: value for name, value in words.items() if name not in ("set", "fix") and value is not None}
    for name, value in words.items():
        row = FIELDS[name]
        if row.kind is int:
            size_of(name, value, 1, least=int(row.least or 0))
            if row.most is not None and value > row.most:
                raise InputError(name, value, f"must be from {row.least:g} to {row.most:g}", f"{row.most:g}")
    if "headroom" in words:
        checked_headroom(words["headroom"])
    if "fit_probability" in words:
        _check_probability(words)
    for name, value in fixed_fields(fix, words).items():
        number = name in FIELDS and FIELDS[name].kind is int and str(value).isdecimal()
        words[name] = int(value) if number else value
    return {name: value for name, value in words.items() if not (name == "eager" and value is False)}


def _check_probability(words: Mapping[str, Any]) -> None:
    """Reject a probability of fit that is none, or beside the memory that it implies."""
    row, probability = FIELDS["fit_probability"], words["fit_probability"]
    if not row.least <= probability <= row.most:
        raise InputError(row.name, probability, f"must be from {row.least:g} to {row.most:g}", f"{FIT_PROBABILITY:g}")
    if "headroom" in words:
        must = f"the memory that stays free follows from it, and headroom={words['headroom']:g} states another"
        raise InputError(row.name, probability, must, "one of the two")


def _traced(run: Run, reading: ModelReading) -> Run:
    """For a traced model, with what was not stated filled in from the trace."""
    traced = reading.shape.traced
    if traced is None:
        return run
    sizes = {"dtype": traced.dtype.value, "seq_len": traced.seq_len, "microbatch_size": traced.microbatch_size}
    sizes |= {"tp": 1, "cp": 1} if run.get("phase") == Phase.TRAIN.value else {}
    return run.with_(Origin.IMPLIED, "the trace", **{n: v for n, v in sizes.items() if n not in run})


def _refuse_plan(phase: Phase, run: Run) -> None:
    """Reject what applies to training alone."""
    for name, value in run.of_origin(Origin.STATED).items():
        if not FIELDS.get(name, FIELDS["fix"]).inference:
            nearest = "kernels, for the serving framework" if name == "framework" else "phase=train"
            name = name if name in FIELDS else f"fix {name}"
            raise InputError(name, value, f"applies only to training; this is phase={phase.value}", nearest)


def _training(
    run: Run, reading: ModelReading, gpu: Gpu, where: Cluster | None, own: Calibration | None, *, splits: bool
) -> Question:
    """One device's share of a training step; without a cluster, on the device's usual one."""
    if run.get("context_len"):
        must = "counts tokens in the KV cache, so it applies to prefill and decode; this is phase=train"
        raise InputError("context_len", run.get("context_len"), must, "0, or seq_len for longer sequences")
    if (kernels := run.get("kernels")) is not None:
        must = "names the serving framework, so it applies to inference; this is phase=train"
        raise InputError("kernels", kernels, must, "framework, for the trainer")
    for name in OF_ENGINES:
        if run.states(name):
            must = "is a setting of a serving framework, so it applies to inference; this is phase=train"
            raise InputError(name, run.get(name), must, "phase=decode")
    cluster = (where or usual_cluster(gpu)).with_price(run.get("price"))
    if run.states("num_devices"):
        device_counts(run.get("num_devices"), cluster)
    stated = ParallelDims(tp=run.get("tp", 1), pp=run.get("pp", 1), ep=run.get("ep", 1))
    trainer = trainer_named(run.get("framework") or plausible_trainers(cluster.gpus)[0], cluster.gpu)
    _refuse_degree(run, reading, trainer)
    shape = replace(reading.shape, vocab_size=int(padded_vocab(reading.shape, trainer, stated.tp)))
    error: InputError | None = None
    for split in smaller_splits(shape, stated) if splits else (stated,):
        try:
            return _trained_at(split, run, reading, gpu, cluster, own, stated, unsaid_cluster=where is None)
        except InputError as caught:  # a smaller degree may divide the devices where this one does not
            error = caught
            if split == stated:
                break
    assert error is not None
    raise error


def _refuse_degree(run: Run, reading: ModelReading, trainer: Trainer) -> None:
    """Raise ``InputError`` for a tensor-parallel degree that does not divide the stated devices, whatever the model."""
    num_devices, tp = run.get("num_devices"), run.get("tp", 1)
    if not run.states("num_devices") or num_devices % tp == 0:
        return
    shapes = {
        d: replace(reading.shape, vocab_size=padded_vocab(reading.shape, trainer, d)) for d in divisors(num_devices)
    }
    near = sorted((d for d, shape in shapes.items() if feasible(shape, ParallelDims(tp=d))), key=lambda d: abs(d - tp))
    raise InputError("tp", tp, f"must divide num_devices={num_devices}", " or ".join(map(str, sorted(near[:2]))))


def _trained_at(
    split: ParallelDims,
    run: Run,
    reading: ModelReading,
    gpu: Gpu,
    cluster: Cluster,
    own: Calibration | None,
    stated: ParallelDims,
    *,
    unsaid_cluster: bool,
) -> Question:
    """The question completed at a split that is the stated one or smaller."""
    smaller = {name: int(getattr(split, name)) for name in ("tp", "ep") if getattr(split, name) < getattr(stated, name)}
    found = complete(run.with_(Origin.IMPLIED, "splits the model", **smaller), reading, cluster, own)
    held = found.held
    job, axes = held.job, held.axes
    dims = ParallelDims(
        **{name: axes[name] for name in ("tp", "pp", "dp", "cp", "ep")},
        sequence_parallel=bool(axes["sequence_parallel"]),
    )
    return Question(
        reading=reading,
        run=found.run,
        workload=replace(workload_of(job, microbatch_size=axes["microbatch_size"]), shape=reading.shape),
        dims=replace(dims, **{name: getattr(stated, name) for name in smaller}),
        gpu=gpu,
        calibration=own,
        held=held,
        depends_on=found.turns,
        eager=bool(run.get("eager")),
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *device_note(run),
            *found.notes,
            *(network_words(cluster) if unsaid_cluster else ()),
            *template_words(gpu),
            *((EAGER,) if run.get("eager") else ()),
        ),
    )


def crossing_note(gpu: Gpu, devices: int) -> tuple[str, ...]:
    """The network that a served model's devices cross, if they are more than one domain of fast links joins."""
    network = network_of(gpu, devices)
    return (
        () if network is None else (f"more than {joined_devices(gpu)} {gpu.name} cross the network of {network.name}",)
    )


def network_words(cluster: Cluster) -> tuple[str, ...]:
    """The network assumed for a device that no cluster of the catalogue has."""
    if cluster.name in CLUSTERS.names():
        return ()
    if cluster.gpu.accelerator is not None:
        return (_chip_links(cluster),)
    beyond = float(cluster.tiers[-1].bytes_per_s) * 8 / GIGA
    nodes = f"nodes of {cluster.devices_per_node} devices on their own links"
    return (f"{nodes}, {beyond:g} Gb/s of each beyond (default; set --cluster)", *_no_link(cluster.gpu))


def _no_link(gpu: Gpu) -> tuple[str, ...]:
    if gpu.accelerator is not None or gpu.link_bytes_per_s or gpu.pcie_bytes_per_s:
        return ()
    rate = f"{UNSAID_BYTES_PER_S / GIGA:g} GB/s between them and to the host"
    return (f"{gpu.name} states no link between devices: {rate} (default; set link_gb_per_s, pcie_gb_per_s)",)


def _chip_links(cluster: Cluster) -> str:
    near, far = cluster.tiers[0], cluster.tiers[-1]
    joined = f"the first {near.span}" if near.span else "all"
    words = f"links of {near.bytes_per_s / GIGA:.4g} GB/s join {joined} devices"
    if near.span:
        words += f"; a larger job runs at {far.bytes_per_s / GIGA:.4g} GB/s of the network beyond"
    return f"{words} (the chip's own; set --cluster for another network)"


def _train_in_16_bits(gpu: Gpu) -> None:
    """Reject chips that cannot multiply in 16 bits: attention, logits and gradients always need it."""
    if DType.BF16 not in gpu.peak_flops_per_s and DType.FP16 not in gpu.peak_flops_per_s and gpu.accelerator:
        widest = gpu.accelerator.dtype.value
        must = f"its arrays multiply {widest} at most, and attention, logits and gradients are computed in 16 bits"
        raise InputError("gpu", gpu.name, must, "tpu_v4_like; sartor gemm prices single GEMMs")


def inference(run: Run, reading: ModelReading, gpu: Gpu, own: Calibration | None) -> Question:
    """One pass on a tensor-parallel group of devices: the fewest that hold it, where their number is not stated."""
    phase, shape = Phase(run.get("phase")), reading.shape
    decodes = phase is Phase.DECODE
    if decodes and shape.encoder_only:
        raise InputError("phase", "decode", "an encoder-only model does not decode", "train or prefill")
    run = released_run(run, reading, gpu)
    dtype, dtype_notes = precision_of(run.get("dtype"), gpu)
    run, engine, own = in_engine(run, shape, gpu, own)
    stored = (engine or USUAL_ENGINE).stored_types(shape, dtype, reading.stored)
    length = size_of("seq_len", run.get("seq_len"), usual_seq_len(shape))
    settled = {
        "seq_len": length,
        "context_len": length if decodes else 0,
        "microbatch_size": DEFAULT_MICROBATCH[phase],
        "dtype": dtype.value,
        "attention": AttentionKernel.FLASH.value,
    }
    run = run.with_(Origin.USUAL, "inference", **{name: value for name, value in settled.items() if name not in run})
    workload = Workload(
        shape=shape,
        phase=phase,
        microbatch_size=run.get("microbatch_size"),
        seq_len=length,
        context_len=run.get("context_len"),
        dtype=dtype,
        cache_dtype=None if engine is None else engine.cache_dtype(dtype, stored),
        encodes=engine is not None and not decodes and engine.encodes(shape),
        stored=stored,
        attention_kernel=word_of(AttentionKernel, "attention", run.get("attention")),
        routing_skew=checked_skew(run.get("routing_skew", 1.0), shape),
    )
    split = workload if engine is None else replace(workload, shape=padded(shape, VOCABULARY_MULTIPLE))
    run, wide = _held_by(run, split, Room(gpu=gpu, engine=engine, headroom=run.get("headroom", 0.0)))
    if engine is not None:
        workload = replace(workload, shape=padded(shape, run.get("tp", 1)))
    dims = ParallelDims(tp=run.get("tp", 1), pp=run.get("pp", 1), ep=run.get("ep", 1))
    free = 0.0 if engine is None else round(1 - float(engine.utilization(gpu, dims.tp, dims.ep)), 9)
    run = run if "headroom" in run else run.with_(Origin.USUAL, "inference", headroom=free)
    shown = ("microbatch_size", *(("context_len",) * decodes))
    narrow = decodes and dtype.bytes < 2
    if decodes:
        lengths = too_long("context_len", run.get("context_len"), shape)
    else:
        lengths = settled_seq_len(length if run.states("seq_len") else None, shape)[1]
    return Question(
        reading=reading,
        run=run,
        workload=workload,
        dims=dims,
        gpu=gpu,
        plan_findings=() if engine is None else tuple(_of_engine(engine, workload, dims, gpu)),
        calibration=own if engine is None else in_an_engine(own or load_calibration(gpu), engine, phase),
        engine=engine,
        eager=bool(run.get("eager")),
        headroom=run.get("headroom"),
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *device_note(run),
            *dtype_notes,
            *released_note(run, reading.weights),
            *(f"{name}={run.get(name)} (default)" for name in shown if not run.states(name)),
            *lengths,
            *wide,
            *padding_note(shape, workload.shape),
            *((f"keys and values in {(workload.cache_dtype or DType.BF16).value}",) if narrow else ()),
            *(() if engine is None else (reserve_note(engine, gpu),)),
            *template_words(gpu),
            *((EAGER,) if run.get("eager") else ()),
        ),
    )


def _of_engine(engine: Engine, workload: Workload, dims: ParallelDims, gpu: Gpu) -> Iterator[PlanFinding]:
    """Why a serving engine would not start a pass: `sartor.serving` and `sartor.deploy` refuse the same."""
    dtype, tp, copies = workload.dtype, int(dims.tp), int(dims.ep)
    server = Server(shape=workload.shape, gpu=gpu, engine=engine, dtype=dtype, tp=tp, copies=copies, ep=copies)
    stopped: list[tuple[str, int | str, str, str]] = []
    if (instead := engine.instead_of(dtype, gpu)) is not dtype:
        stopped += [("dtype", dtype.value, f"it {engine.no_kernel(gpu)}", instead.value)]
    if cut := cut_block(server):
        stopped += [("tp", tp, cut, near_uncut(server).rpartition(" or ")[2])]  # ep would take more devices here
    if stopped:
        from sartor.rules.plan.rule import PlanFinding
    for field, value, why, near in stopped:
        yield PlanFinding(
            rule="cannot_run",
            code="P11",
            grade=Grade.ERROR,
            message=f"{engine.name} does not start {field}={value}: {why}; nearest: {near}",
            field=field,
            value=value,
            gain_s=None,
            gain_fraction=None,
        )


def in_engine(
    run: Run, shape: TransformerShape, gpu: Gpu, own: Calibration | None
) -> tuple[Run, Engine | None, Calibration | None]:
    """The run with the serving engine of its passes, that engine (None: a model's own code), and the calibration with
    its kernels."""
    kernels, release = split_release(run.get("kernels"))
    engine = None if run.get("eager") else engine_of_pass(kernels, shape, gpu)
    if engine is not None and "kernels" not in run:
        others = [other.name for other in engines_on(gpu) if other.name != engine.name]
        run = run.with_(Origin.USUAL, "inference", kernels=engine.name).among("kernels", *others)
        kernels = engine.name
    for name in OF_ENGINES if engine is None else ():
        if run.states(name):
            raise InputError(name, run.get(name), "is a setting of a serving framework, and none runs this", "")
    return run, engine and _with_settings(engine, run, release), with_kernels_of(kernels, gpu, own)


def _with_settings(engine: Engine, run: Run, release: str) -> Engine:
    """The engine as the run sets it."""
    utilization, headroom = run.get("utilization"), run.get("headroom")
    if run.states("utilization") and run.states("headroom"):
        raise InputError("headroom", headroom, "says what utilization says: give one of them", f"{1 - headroom:g}")
    if utilization is not None and not 0 < utilization <= 1:
        raise InputError("utilization", utilization, "must be a share of memory, above 0 and at most 1", "0.9")
    kept = 1 - headroom if run.states("headroom") else None
    return replace(
        engine,
        release=release,
        stated_utilization=kept if utilization is None else utilization,
        max_num_seqs=run.get("max_num_seqs"),
        max_num_batched_tokens=run.get("max_num_batched_tokens"),
        kv_dtype=_cache_type(run.get("kv_dtype")),
    )


CACHE_TYPES = {"bfloat16": "bf16", "float16": "fp16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "auto": ""}
"""Names that frameworks give types of keys and values."""


def _cache_type(word: str | None) -> DType | None:
    """The stated type of keys and values; None where the framework chooses."""
    name = CACHE_TYPES.get(str(word), str(word)) if word is not None else ""
    if name and name not in ("bf16", "fp16", "fp8"):
        raise InputError("kv_dtype", str(word), "must be a type of keys and values: bf16, fp16 or fp8", "fp8")
    return DType(name) if name else None


def released_run(run: Run, reading: ModelReading, gpu: Gpu) -> Run:
    """The run in the type in which the checkpoint holds its weights, unless one is stated."""
    if "dtype" in run or not reading.weights or gpu.accelerator is not None:
        return run
    return run.with_(Origin.IMPLIED, "the checkpoint", dtype=held_in(DType(reading.weights), gpu).value)


def released_note(run: Run, released: str) -> tuple[str, ...]:
    """The note on a type that the checkpoint says, which the device may not multiply in."""
    if run.origin("dtype") is not Origin.IMPLIED:
        return ()
    dtype = str(run.get("dtype"))
    own = "" if dtype == released else f" {released} weights, widened to 16 bits on this device"
    return (f"dtype={dtype} (the checkpoint's{own})",)


def held_in(released: DType, gpu: Gpu) -> DType:
    """The type in which a device holds weights of the released type: its own if it multiplies in it, else weights of as
    many bits that are multiplied in 16."""
    if released in gpu.peak_flops_per_s:
        return released
    return DType.INT4_WO if released.bytes < 1 else DType.INT8_WO


def reserve_note(engine: Engine, gpu: Gpu) -> str:
    """What an engine keeps memory for, in one sentence."""
    release = engine.release or engine.usual_release
    name = f"{engine.name} {release}".strip()
    tokens = f"{engine.step_tokens(gpu):,} tokens and {engine.step_rows(gpu):,} sequences"
    return f"memory as {name} divides it, for steps of {tokens} (set --kernels {engine.name}@RELEASE)"


def padding_note(asked: TransformerShape, runs: TransformerShape) -> tuple[str, ...]:
    """The note on a vocabulary that an engine pads."""
    taken = runs.vocab_size
    return () if taken == asked.vocab_size else (f"vocabulary of {asked.vocab_size} padded to {taken}, as engines do",)


def _held_by(run: Run, workload: Workload, room: Room) -> tuple[Run, tuple[str, ...]]:
    """The run on the fewest tensor-parallel devices (or groups of experts) that hold it, unless stated or none do."""
    if {"tp", "ep", "pp"} & run.facts.keys() or workload.shape.traced is not None:
        return run, ()
    alone = ParallelDims()
    if room.memory(workload, alone).fits:
        return run.with_(Origin.SEARCHED, "the fewest devices that hold it", tp=1), ()
    wider = next((change for change in would_fit(workload, alone, room) if "microbatch_size" not in change), None)
    if wider is None:
        return run, ()
    words = ", ".join(f"{name}={value}" for name, value in wider.items())
    run = run.with_(Origin.SEARCHED, "the fewest devices that hold it", **wider)
    return run, (f"{words}: the fewest devices that hold it (set --tp)",)


EAGER = "eager: a memory-bound kernel takes at least the host's call; launches of GEMMs are hidden"
