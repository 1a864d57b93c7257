"""How a training recipe runs: the type of its GEMMs, who quantizes operands, and whether a device supports it.

Linear layers of attention, feed-forward parts and experts run in the recipe's type; router, attention itself, norms,
embedding, logits and loss keep a wide type (as in Transformer Engine and DeepSeek-V3, arXiv 2412.19437, sec. 3.3.1).
Weights are quantized once a step and kept (Transformer Engine); torchao quantizes them in every microbatch.
"""

from __future__ import annotations

from dataclasses import replace

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.model.lower.setting import NARROWING, Kernels, Narrowing
from sartor.model.shape import TransformerShape
from sartor.model.trainer import Accumulation, Trainer
from sartor.model.training import Recipe, TrainingJob
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import DType
from sartor.step.states import FOUR_BIT_BYTES, frozen_in_4_bits, weight_bytes
from sartor.units import Ints, round_up

_ANY_LAYOUT = frozenset({"blackwell", "cdna3", "cdna4"})
"""Generations that multiply FP8 in every layout, so per-tensor scaling needs no transposed copy."""

_PER_TENSOR = frozenset({Recipe.FP8_DELAYED, Recipe.FP8_CURRENT})

_NEXT = {
    Recipe.NVFP4: (Recipe.MXFP8, Recipe.FP8_BLOCK, Recipe.BF16, Recipe.FP16, Recipe.FP32),
    Recipe.MXFP8: (Recipe.FP8_BLOCK, Recipe.BF16, Recipe.FP16, Recipe.FP32),
    Recipe.BF16: (Recipe.FP16, Recipe.FP32),
    Recipe.FP16: (Recipe.BF16, Recipe.FP32),
    Recipe.TF32: (Recipe.FP32, Recipe.BF16, Recipe.FP16),
    Recipe.FP32: (Recipe.TF32, Recipe.BF16, Recipe.FP16),
}
"""The recipes closest to each, best first; 8-bit ones step up to 16 bits."""


def check_recipe(recipe: Recipe, gpu: Gpu) -> None:
    """Raise ``InputError``, naming the nearest supported recipe, if the device has no matrix units for this one."""
    if supports(recipe, gpu):
        return
    others = _NEXT.get(recipe, (Recipe.BF16, Recipe.FP16, Recipe.FP32))
    nearest = next((other.value for other in others if supports(other, gpu)), "")
    raise InputError("recipe", recipe.value, f"{gpu.name} has no matrix units for it", nearest)


def supports(recipe: Recipe, gpu: Gpu) -> bool:
    """Whether the datasheet states a rate for the recipe's type (block-scaled FP8 runs on FP8 units)."""
    needed = DType.FP8 if recipe is Recipe.FP8_BLOCK else recipe.dtype
    return needed in gpu.peak_flops_per_s


def kernels_of(job: TrainingJob, cluster: Cluster) -> Kernels:
    """The kernels that the job's trainer runs on a cluster."""
    trainer = job.trainer
    near = cluster.tiers[0].span or cluster.num_devices or cluster.devices_per_node
    return Kernels(
        fused=trainer.fused_kernels,
        narrowing=_narrowing(job, cluster.gpu),
        weight_gradients=job.trains_weights,
        widened_bytes=FOUR_BIT_BYTES if frozen_in_4_bits(job) else 0.0,
        accumulates=trainer.adds_gradients is Accumulation.FUSED,
        gradient_bytes=_gradient_bytes(job),
        strided_heads=trainer.strided_heads and DType.FP32 in cluster.gpu.peak_flops_per_s,
        grouped_apart=True,
        expert_bias_apart=not (trainer.fused_experts or trainer.one_program),
        fused_experts=trainer.fused_experts,
        pads_experts=trainer.pads_experts,
        main_grad=trainer.grad_dtype,
        context_parallel=job.context_parallel,
        dispatch_once_per=near if trainer.dispatch_once else 0,
        splits_experts=trainer.splits_experts,
    )


def _gradient_bytes(job: TrainingJob) -> float:
    """Bytes per parameter of adding a 16-bit gradient to the accumulation buffer: the gradient and the sum read, the
    sum written. Trainers that shard gradients (FSDP) copy it into the buffer they reduce instead."""
    passes = {Accumulation.ADDED: 2, Accumulation.COPIED: 1}.get(job.trainer.adds_gradients, 0)
    if not passes or not job.trains_weights:
        return 0.0
    return weight_bytes(job) + passes * job.trainer.grad_dtype.bytes


def padded_vocab(shape: TransformerShape, trainer: Trainer, tp: Ints = 1) -> Ints:
    """Rows of the token table in the trainer: Megatron pads it to a multiple of 128 for every tensor rank (its
    ``make_vocab_size_divisible_by``); other trainers do not."""
    vocab, multiple = shape.vocab_size, trainer.vocab_multiple
    return round_up(vocab, multiple * tp) if multiple else vocab


def as_trained(job: TrainingJob, dims: ParallelDims) -> TransformerShape:
    """The shape with the vocabulary that the trainer pads for this split."""
    return replace(job.shape, vocab_size=padded_vocab(job.shape, job.trainer, dims.tp))


def workload_of(job: TrainingJob, tp: Ints = 1, microbatch_size: Ints = 1) -> Workload:
    """One microbatch of the job."""
    return Workload(
        shape=replace(job.shape, vocab_size=padded_vocab(job.shape, job.trainer, tp)),
        microbatch_size=microbatch_size,
        phase=Phase.TRAIN,
        seq_len=job.seq_len,
        dtype=job.recipe.dtype,
        attention_kernel=job.attention_kernel,
        dropout=job.dropout,
        routing_skew=job.routing_skew,
        document_len=job.document_len,
    )


def _narrowing(job: TrainingJob, gpu: Gpu) -> Narrowing | None:
    usual = NARROWING.get(job.recipe)
    if usual is None:
        return None
    copies = 1 if job.recipe in _PER_TENSOR and gpu.generation in _ANY_LAYOUT else usual.copies
    return replace(usual, copies=copies, weights=job.trainer.narrows_each_microbatch)
