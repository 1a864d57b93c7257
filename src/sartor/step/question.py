"""Builds a checked training job from a user's words (recipe, trainer, optimizer, sizes) and lists what was assumed.

Linear layers of attention, feed-forward parts and experts run in the recipe's type; router, attention itself, norms,
embedding, logits and loss keep a wide type (as in Transformer Engine and DeepSeek-V3, arXiv 2412.19437, sec. 3.3.1).
Weights are quantized once a step and kept (Transformer Engine); torchao quantizes them in every microbatch.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, TypeVar

import numpy as np

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.gpu import Gpu
from sartor.model.lower.setting import NARROWING, Kernels, Narrowing
from sartor.model.shape import TransformerShape
from sartor.model.training import (
    Accumulation,
    ContextParallel,
    Optimizer,
    Recipe,
    RecomputeModule,
    Trainer,
    TrainingJob,
)
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload, settled_seq_len, usual_seq_len
from sartor.operators import WEIGHT_ONLY_NAMES, DType
from sartor.run.fields import check_batch
from sartor.step.states import frozen_bytes, weight_bytes
from sartor.step.trainers import as_written, plausible_trainers, trainer_named
from sartor.units import Floats, Ints, round_up

_ANY_LAYOUT = frozenset({"blackwell", "cdna3", "cdna4"})
"""Generations that multiply FP8 in every layout, so per-tensor scaling needs no transposed copy."""

_PER_TENSOR = frozenset({Recipe.FP8_DELAYED, Recipe.FP8_CURRENT})

_NEXT = {
    Recipe.NVFP4: (Recipe.MXFP8, Recipe.FP8_BLOCK, Recipe.BF16, Recipe.FP16, Recipe.FP32),
    Recipe.MXFP4: (Recipe.NVFP4, Recipe.MXFP8, Recipe.BF16, Recipe.FP16, Recipe.FP32),
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


def kernels_of(job: TrainingJob, cluster: Cluster, *, spread: bool = True) -> Kernels:
    """The kernels that the job's trainer runs on a cluster, with or without expert parallelism (``spread``)."""
    trainer = job.trainer
    near = cluster.tiers[0].span or cluster.num_devices or cluster.devices_per_node
    return Kernels(
        fused=trainer.fused_kernels,
        narrowing=_narrowing(job, cluster.gpu),
        weight_gradients=job.trains_weights,
        widened_bytes=frozen_bytes(job),
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
        splits_experts=trainer.splits_experts or (trainer.splits_lone_experts and not spread),
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


MOST = 2**40

Word = TypeVar("Word", bound=Enum)


INFERENCE_ONLY = WEIGHT_ONLY_NAMES | {"int4": "int4_wo", "int8": "int8", "int4_wo": "int4_wo", "int8_wo": "int8_wo"}
"""Types in which no trainer multiplies, and how inference takes them."""


UNFUSED_GENERATIONS = ("pascal", "volta", "turing")
"""GPUs without kernels of FlashAttention 2, cuDNN's or Transformer Engine's fused attention, which begin with Ampere
(README of Dao-AILab/flash-attention 2; recalled 2026-11-30)."""


def usual_attention(trainer: Trainer, gpus: Sequence[Gpu]) -> AttentionKernel:
    """Fused where the trainer's kernels run: PyTorch's own (``fused_heads`` of 1) on every GPU, others since Ampere."""
    bare = trainer.fused_heads > 1 and any(gpu.generation in UNFUSED_GENERATIONS for gpu in gpus)
    return AttentionKernel.UNFUSED if bare else AttentionKernel.FLASH


def training_job(
    shape: TransformerShape,
    gpu: Gpu | Sequence[Gpu],
    *,
    global_batch_size: Ints,
    seq_len: Any = None,
    dtype: str | None = None,
    framework: str | Trainer | None = None,
    optimizer: str = "adam",
    attention: str | None = None,
    context_parallel: str | None = None,
    routing_skew: float = 1.0,
) -> tuple[TrainingJob, tuple[str, ...]]:
    """A job of ``global_batch_size`` sequences of ``seq_len`` tokens a step, and the assumptions made, as sentences.

    ``framework`` is a trainer's name, with its release after an @ if that matters (``nemo@26.06``, ``megatron@2021``);
    None is the usual one there (`plausible_trainers`). ``seq_len`` None is the model's longest, at most 4096. ``dtype``
    is a recipe (bf16, fp16, fp8, mxfp8, nvfp4, fp8_block, ...); None is the device's 16-bit type. ``attention`` None is
    `usual_attention`, ``context_parallel`` None the trainer's usual kind. If ``gpu`` is several, all must support the
    recipe. Raises ``InputError``.
    """
    gpus = (gpu,) if isinstance(gpu, Gpu) else tuple(gpu)
    batch = _size("global_batch_size", global_batch_size, "256")
    recipe, recipe_notes = _recipe(dtype, gpus)
    trainer = (
        framework
        if isinstance(framework, Trainer)
        else trainer_named(framework or plausible_trainers(gpus)[0], gpus[0])
    )
    padded, padding_notes = _padded(shape, trainer)
    if seq_len is not None:
        _size("seq_len", seq_len, str(usual_seq_len(shape)))
    length, length_notes = settled_seq_len(seq_len, shape)
    check_batch(batch, length)
    _check_contexts(context_parallel, trainer)
    job = TrainingJob(
        shape=padded,
        seq_len=length,
        global_batch_size=batch,
        recipe=recipe,
        optimizer=_word(Optimizer, "optimizer", optimizer),
        attention_kernel=_word(AttentionKernel, "attention", attention or usual_attention(trainer, gpus).value),
        context_parallel=(
            _word(ContextParallel, "context_parallel", context_parallel)
            if context_parallel
            else trainer.usual_context_parallel
        ),
        routing_skew=checked_skew(routing_skew, shape),
        trainer=trainer,
        recompute_modules=frozenset(trainer.always_again or {RecomputeModule.CORE_ATTN}),
    )
    return job, (
        *length_notes,
        *recipe_notes,
        *padding_notes,
        *_job_notes(job, gpus),
    )


def _check_contexts(word: str | None, trainer: Trainer) -> None:
    """Raise ``InputError`` for a kind of context parallelism that the trainer's layers are not scheduled with."""
    if trainer.lockstep and word not in (None, ContextParallel.RING.value):
        ring = ContextParallel.RING.value
        raise InputError("context_parallel", word, f"must be {ring} with {trainer.name}", ring)


def within_files(job: TrainingJob, writer: str) -> TrainingJob:
    """The job restricted to plans that launch files of ``writer`` can express."""
    trainer = as_written(job.trainer, writer)
    if job.optimizer in job.trainer.optimizers:  # a file that was read has said it
        trainer = replace(trainer, optimizers=tuple(dict.fromkeys((*trainer.optimizers, job.optimizer))))
    return replace(job, trainer=trainer, recompute_modules=job.recompute_modules | {*trainer.always_again})


def checked_skew(routing_skew: float, shape: TransformerShape) -> float:
    """Tokens of the busiest expert over the mean: every token visits it at most once, so it has at most experts / top-k
    times the mean. Raises ``InputError`` beyond."""
    field, part = "routing_skew", shape.moe_ffn
    if not isinstance(routing_skew, int | float | np.number) or not 1.0 <= routing_skew < math.inf:
        raise InputError(field, routing_skew, "is the largest expert's tokens over the mean: at least 1", "1")
    largest = float(np.min(part.num_experts / np.asarray(part.experts_per_token))) if part else math.inf
    if routing_skew > largest:
        reason = f"is at most {largest:g}, experts over experts per token: then every token visits the largest expert"
        raise InputError(field, routing_skew, reason, f"{largest:g}")
    return float(routing_skew)


def _recipe(dtype: str | None, gpus: Sequence[Gpu]) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe that a word names; plain ``fp8`` depends on the devices."""
    if dtype is None:
        own = [Recipe(gpu.default_dtype.value) for gpu in gpus]
        recipe = next((r for r in own if all(supports(r, gpu) for gpu in gpus)), own[0])
        for gpu in gpus:
            check_recipe(recipe, gpu)
        return recipe, (f"dtype={recipe.value} (default)",)
    names = {"bfloat16": "bf16", "float16": "fp16", "float32": "fp32", "fp8": _plain_fp8(gpus).value, "fp4": "nvfp4"}
    word = dtype.strip().lower().replace("-", "_")
    if word in INFERENCE_ONLY:
        must = f"is a type of inference (phase=decode, dtype={INFERENCE_ONLY[word]}), not of training"
        raise InputError("dtype", dtype, must, gpus[0].default_dtype.value)
    recipe = _word(Recipe, "dtype", names.get(word, word), extra=("fp8",))
    for gpu in gpus:
        _check(recipe, gpu, dtype)
    return recipe, ((f"dtype=fp8 read as {recipe.value}",) if word == "fp8" else ())


def _check(recipe: Recipe, gpu: Gpu, said: str) -> None:
    """``check_recipe`` with the user's field and word in the error."""
    try:
        check_recipe(recipe, gpu)
    except InputError as error:
        raise InputError("dtype", said, error.must, error.nearest) from None


def _plain_fp8(gpus: Sequence[Gpu]) -> Recipe:
    """MXFP8 if the devices scale blocks in hardware (NVIDIA from Blackwell on), else per-tensor scaling."""
    scale_blocks = all(DType.MXFP8 in gpu.peak_flops_per_s and gpu.accelerator is None for gpu in gpus)
    return Recipe.MXFP8 if scale_blocks else Recipe.FP8_DELAYED


def padded_shape(shape: TransformerShape, trainer: Trainer) -> TransformerShape:
    """The vocabulary as the trainer uses it: Megatron pads it, others do not."""
    return replace(shape, vocab_size=int(padded_vocab(shape, trainer)))


def _padded(shape: TransformerShape, trainer: Trainer) -> tuple[TransformerShape, tuple[str, ...]]:
    padded = padded_shape(shape, trainer)
    if padded.vocab_size == shape.vocab_size:
        return padded, ()
    return padded, (f"vocabulary of {shape.vocab_size} padded to {padded.vocab_size}, as {trainer.name} does",)


def _job_notes(job: TrainingJob, gpus: Sequence[Gpu]) -> tuple[str, ...]:
    last = " (the last stage recomputes nothing)" if job.trainer.lockstep else ""
    kernels = f"optimizer {job.optimizer.value}, {job.attention_kernel.value} attention"
    notes = [f"trainer {job.trainer.name}{last}, {kernels}"]
    fused, width = job.trainer.fused_heads, int(job.shape.head_dim)
    if job.attention_kernel is AttentionKernel.FLASH and width % fused:
        notes.append(
            f"flash attention, but {job.trainer.name} would run head_dim={width} unfused: its flash kernels need a"
            f" multiple of {fused} (--attention unfused prices that)"
        )
    old = [gpu.label for gpu in gpus if gpu.generation in UNFUSED_GENERATIONS]
    if old and job.attention_kernel is not usual_attention(job.trainer, gpus) is AttentionKernel.UNFUSED:
        notes.append(f"flash attention as stated, but no kernel of {job.trainer.name}'s runs on {old[0]}")
    if job.shape.moe_ffn is not None and job.routing_skew == 1.0:
        notes.append("tokens are routed evenly over experts (routing_skew=1)")
    if job.shape.encoder_only:
        notes.append("an encoder-only model is trained on whole sequences with a loss at every token")
    return tuple(notes)


def _word(enum: type[Word], field: str, word: str, extra: Iterable[str] = ()) -> Word:
    """The member of an enum that a word names."""
    for member in enum:
        if member.value.lower() == str(word).strip().lower().replace("-", "_"):
            return member
    words = (*(member.value for member in enum), *extra)
    raise InputError(field, word, f"must be one of {', '.join(words)}")


def _size(field: str, value: Floats, nearest: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InputError(field, value, "must be a whole number from 1 to 2^40", nearest)
    return value
