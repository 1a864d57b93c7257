"""A question about one device: model, workload and parallelism, with defaults filled in and reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import wraps
from inspect import signature
from pathlib import Path
from typing import ParamSpec, TypeVar

from sartor.answers import Question
from sartor.api.held import Spread, devices_and_batch, held_plan, notes_of
from sartor.api.models import Model, read
from sartor.api.words import (
    ClusterLike,
    GpuLike,
    cluster_and_device,
    device_counts,
    own_calibration,
    precision_of,
    size_of,
    with_kernels_of,
    word_of,
)
from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.cluster import UNSAID_BYTES_PER_S, Cluster
from sartor.hardware.cluster_catalog import cluster_names, usual_cluster
from sartor.hardware.gpu import Gpu
from sartor.model.defaults import settled_seq_len, usual_seq_len
from sartor.model.parallel import ParallelDims
from sartor.model.reading import ModelReading
from sartor.model.workload import AttentionKernel, Phase, Workload
from sartor.operators import DType
from sartor.plans.search import checked_headroom
from sartor.step.question import checked_skew, training_job
from sartor.step.recipes import workload_of
from sartor.step.trainers import default_trainer, trainer_named
from sartor.units import GIGA

DEFAULT_MICROBATCH = {Phase.PREFILL: 1, Phase.DECODE: 8}
"""Default sequences at once in inference."""


Asked = ParamSpec("Asked")
Answer = TypeVar("Answer")


def takes(ask: Callable[Asked, Question]) -> Callable[[Callable[[Question], Answer]], Callable[Asked, Answer]]:
    """Turn a function of a `Question` into one with ``ask``'s arguments and signature (for callers and completion)."""

    def journey(answer: Callable[[Question], Answer]) -> Callable[Asked, Answer]:
        @wraps(answer)
        def found(*args: Asked.args, **named: Asked.kwargs) -> Answer:
            return answer(ask(*args, **named))

        given = signature(ask).replace(return_annotation=signature(answer).return_annotation)
        found.__signature__ = given  # type: ignore[attr-defined]
        return found

    return journey


def ask(
    model: Model,
    gpu: GpuLike | None = None,
    *,
    phase: str = "train",
    seq_len: int | None = None,
    microbatch_size: int | None = None,
    context_len: int | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    cp: int = 1,
    dtype: str | None = None,
    attention: str = "flash",
    routing_skew: float = 1.0,
    num_devices: int | None = None,
    global_batch_size: int | None = None,
    zero_stage: int | None = None,
    virtual_stages: int | None = None,
    sequence_parallel: bool | None = None,
    recompute: str | None = None,
    optimizer: str | None = None,
    headroom: float | None = None,
    cluster: ClusterLike | None = None,
    framework: str | None = None,
    eager: bool = False,
    kernels: str | None = None,
    set: Mapping[str, int | str] | None = None,
    calibration: str | Path | None = None,
) -> Question:
    """Read a model and a device and settle the question, recording each assumption.

    ``model`` is a config.json, its folder, a zoo name or ``org/name``; ``gpu`` a catalogue name or TOML file (H100
    SXM if neither it nor ``cluster`` is given); ``kernels`` is the framework whose attention and expert kernels
    run (vllm, sglang, trtllm, torch); ``set`` changes fields of the shape; ``routing_skew`` is the largest expert's
    tokens over the mean; ``sequence_parallel`` None is wherever the sequence divides; ``headroom`` the share of
    memory that stays free (0.05 in training on GPUs, else 0); ``calibration`` is a file of ``sartor calibrate``.
    Sizes are in sequences and tokens. Training is one device's share of a plan: of ``num_devices`` with
    ``global_batch_size``, or of a typical run (``sartor.api.held``) if they are not given. Raises ``InputError``.
    """
    reading = read(model, set)
    where, device = cluster_and_device(cluster, gpu)
    _train_in_16_bits(device)
    asked = _Pass(
        reading=reading,
        gpu=device,
        phase=word_of(Phase, "phase", phase),
        seq_len=seq_len,
        microbatch_size=microbatch_size,
        context_len=context_len,
        dtype=dtype,
        attention=attention,
        routing_skew=routing_skew,
    ).traced()
    spread = Spread(
        tp=size_of("tp", tp, 1),
        pp=size_of("pp", pp, 1),
        ep=size_of("ep", ep, 1),
        cp=size_of("cp", cp, 1),
        num_devices=num_devices,
        global_batch_size=global_batch_size,
        microbatch_size=asked.microbatch_size,
        zero_stage=zero_stage,
        virtual_stages=virtual_stages,
        sequence_parallel=sequence_parallel,
        recompute=recompute,
        headroom=None if headroom is None else checked_headroom(headroom),
    )
    if spread.ep > 1 and reading.shape.moe_ffn is None:
        raise InputError("ep", spread.ep, "the model has no experts", "1")
    if eager and reading.shape.traced is not None:
        must = f"{reading.shape.name} was traced with its kernels as they are; extract it again with --eager"
        raise InputError("eager", True, must)
    asked = replace(asked, optimizer=optimizer)
    own = own_calibration(calibration, device)
    if asked.phase is Phase.TRAIN:
        if kernels is not None:
            must = "names the serving framework, so it applies to inference; this is phase=train"
            raise InputError("kernels", kernels, must, "framework, for the trainer")
        on = where or usual_cluster(device)
        return _training(asked, spread, on, framework, own, eager, guessed=where is None)
    _refuse_plan(asked.phase, spread, cluster, framework, optimizer)
    return _inference(asked, spread, with_kernels_of(kernels, device, own), eager)


def _refuse_plan(
    phase: Phase, spread: Spread, cluster: ClusterLike | None, framework: str | None, optimizer: str | None
) -> None:
    """Reject a plan's arguments for inference, which is priced on one tensor-parallel group."""
    said: dict[str, object | None] = {
        "num_devices": spread.num_devices,
        "global_batch_size": spread.global_batch_size,
        "cp": spread.cp if spread.cp > 1 else None,
        "zero_stage": spread.zero_stage,
        "virtual_stages": spread.virtual_stages,
        "sequence_parallel": spread.sequence_parallel,
        "recompute": spread.recompute,
        "cluster": cluster,
        "framework": framework,
        "optimizer": optimizer,
    }
    for name, value in said.items():
        if value is not None:
            shown = value.name if isinstance(value, Cluster) else value
            raise InputError(name, shown, f"applies only to training; this is phase={phase.value}", "phase=train")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pass:
    """One pass of a model on a device, as given by the user."""

    reading: ModelReading
    gpu: Gpu
    phase: Phase
    seq_len: int | None
    microbatch_size: int | None
    context_len: int | None
    dtype: str | None
    attention: str
    routing_skew: float
    optimizer: str | None = None

    def traced(self) -> _Pass:
        """For a traced model, with what was not given filled in from the trace."""
        traced = self.reading.shape.traced
        if traced is None:
            return self
        return replace(
            self,
            dtype=self.dtype or traced.dtype.value,
            seq_len=self.seq_len or traced.seq_len,
            microbatch_size=self.microbatch_size or traced.microbatch_size,
        )

    @property
    def length(self) -> int:
        """Tokens of a sequence."""
        return size_of("seq_len", self.seq_len, usual_seq_len(self.reading.shape))


def _training(
    asked: _Pass,
    spread: Spread,
    cluster: Cluster,
    framework: str | None,
    own: Calibration | None,
    eager: bool,
    *,
    guessed: bool,
) -> Question:
    """One device's share of a training step; ``guessed``: on the device's usual cluster."""
    if size_of("context_len", asked.context_len, 0, least=0):
        must = "counts tokens in the KV cache, so it applies to prefill and decode; this is phase=train"
        raise InputError("context_len", asked.context_len, must, "0, or seq_len for longer sequences")
    devices, batch, microbatch = devices_and_batch(spread, asked.length)
    device_counts(devices, cluster)
    trainer = trainer_named(framework or default_trainer(cluster.gpus), asked.gpu)
    if spread.assumed:  # the question is about the shape as written: padded only as far as tp must divide it
        trainer = replace(trainer, vocab_multiple=min(trainer.vocab_multiple, 1))
    if eager:
        trainer = replace(trainer, fused_kernels=False)
    job, notes = training_job(
        asked.reading.shape,
        cluster.gpus,
        global_batch_size=batch,
        seq_len=asked.seq_len,
        dtype=asked.dtype,
        framework=trainer,
        attention=asked.attention,
        routing_skew=asked.routing_skew,
        optimizer=asked.optimizer or "adam",
    )
    held = held_plan(spread, job, cluster, devices, microbatch)
    axes = held.axes
    reading = asked.reading
    return Question(
        reading=asked.reading,
        workload=replace(workload_of(job, microbatch_size=microbatch), shape=asked.reading.shape),
        dims=ParallelDims(
            **{name: axes[name] for name in ("tp", "pp", "dp", "cp", "ep")},
            sequence_parallel=bool(axes["sequence_parallel"]),
        ),
        gpu=asked.gpu,
        calibration=own,
        held=held,
        eager=eager,
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *notes,
            *notes_of(spread, held),
            *(_own_links(cluster) if guessed and not spread.assumed else ()),
            *(_no_link(cluster.gpu) if guessed else ()),
            *((EAGER,) if eager else ()),
        ),
    )


def _own_links(cluster: Cluster) -> tuple[str, ...]:
    """The network assumed for a device that no cluster of the catalogue has."""
    if cluster.name in cluster_names():
        return ()
    if cluster.gpu.accelerator is not None:
        return (_chip_links(cluster),)
    beyond = float(cluster.tiers[-1].bytes_per_s) * 8 / GIGA
    nodes = f"nodes of {cluster.devices_per_node} devices on their own links"
    return (f"{nodes}, {beyond:g} Gb/s of each beyond (default; set --cluster)",)


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


def _inference(asked: _Pass, spread: Spread, own: Calibration | None, eager: bool) -> Question:
    """One pass on a tensor-parallel group of devices."""
    decodes, shape = asked.phase is Phase.DECODE, asked.reading.shape
    if decodes and shape.encoder_only:
        raise InputError("phase", "decode", "an encoder-only model does not decode", "train or prefill")
    dtype, dtype_notes = precision_of(asked.dtype, asked.gpu)
    context = size_of("context_len", asked.context_len, asked.length if decodes else 0, least=0)
    batch = size_of("microbatch_size", asked.microbatch_size, DEFAULT_MICROBATCH[asked.phase])
    workload = Workload(
        shape=shape,
        phase=asked.phase,
        microbatch_size=batch,
        seq_len=asked.length,
        context_len=context,
        dtype=dtype,
        attention_kernel=word_of(AttentionKernel, "attention", asked.attention),
        routing_skew=checked_skew(asked.routing_skew, shape),
    )
    dims = ParallelDims(tp=spread.tp, pp=spread.pp, ep=spread.ep)
    sizes = (
        ("microbatch_size", asked.microbatch_size, batch),
        *((("context_len", asked.context_len, context),) * decodes),
    )
    lengths = () if decodes else settled_seq_len(asked.seq_len, shape)[1]
    return Question(
        reading=asked.reading,
        workload=workload,
        dims=dims,
        gpu=asked.gpu,
        calibration=own,
        eager=eager,
        headroom=spread.headroom or 0.0,
        assumptions=(
            *asked.reading.assumptions,
            *asked.reading.notes,
            *dtype_notes,
            *(f"{name}={taken} (default)" for name, given, taken in sizes if given is None),
            *lengths,
            *((WIDE_CACHE,) if decodes and dtype.bytes < 2 else ()),
            *((EAGER,) if eager else ()),
        ),
    )


WIDE_CACHE = "keys and values in 16 bits; sartor serving takes a framework's own, in 8 bits on many GPUs"
EAGER = "eager: a memory-bound kernel takes at least the host's call; launches of GEMMs are hidden"
