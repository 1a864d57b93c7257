"""Bytes of weights, gradients and optimizer states: per parameter, and of everything a pipeline rank holds.

Mixed-precision Adam holds 2 bytes of weight, a gradient, and an fp32 main weight and two moments: 16 bytes with a
16-bit gradient (Rajbhandari et al. 2020, sec. 3.1), 18 with an fp32 one (Megatron).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from sartor.hardware.gpu import Gpu
from sartor.model.lower.optimizer import (
    adapter_params,
    expert_params,
    largest_matrix,
    layer_params,
    outer_params,
    stack_params,
)
from sartor.model.lower.setting import Kernels, Setting
from sartor.model.shape import Block, BlockKind, Stack, TransformerShape, blocks, text_stacks
from sartor.model.training import Optimizer, Recipe, Trainer, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims, Workload
from sartor.step.stages import distinct_rows, entries
from sartor.units import GIB, BoolArray, Bools, FloatArray, Floats, IntArray, Ints, remembered, round_up


@dataclass(frozen=True, slots=True, kw_only=True)
class _StateBytes:
    """Bytes per parameter of one tensor-parallel rank; arrays over plans.

    With FSDP, stage 2 shards the fp32 weights and holds gathered 16-bit ones between forward and backward.
    """

    weight: Floats
    narrow: Floats
    """FP8 or FP4 copies of matrices in layers."""
    grad: Floats
    optimizer: Floats
    step: Floats
    """Temporaries during the optimizer's step."""
    step_blocks: Floats
    """Blocks of the allocator that are free again when the step peaks."""


def dense_states(
    job: TrainingJob, plan: TrainingPlan, gpu: Gpu, *, in_layer: bool = True, is_table: bool = False
) -> _StateBytes:
    """Bytes per parameter that is replicated over all of dp x cp."""
    return _states(job, plan, gpu, shard_devices(plan, plan.dims.dp * plan.dims.cp), in_layer, is_table)


def _expert_states(job: TrainingJob, plan: TrainingPlan, gpu: Gpu) -> _StateBytes:
    """Bytes per parameter of routed experts, which have fewer replicas."""
    return _states(job, plan, gpu, shard_devices(plan, expert_replicas(job, plan)), True)


def _shards_gradients(zero_stage: Floats, pp: Ints) -> Floats:
    """Whether gradients are reduced and sharded after every microbatch. ZeRO 2 with a pipeline keeps them whole and
    reduces them once, as do Megatron's distributed optimizer (megatron/core/distributed/param_and_grad_buffer.py) and
    PyTorch's pipelining, which synchronizes only in the last microbatch (torch/distributed/pipelining/stage.py,
    ``backward_maybe_with_nosync``); DeepSpeed's pipeline engine does not support ZeRO 2."""
    return np.greater_equal(zero_stage, 3) | (np.equal(zero_stage, 2) & np.equal(pp, 1))


def reductions(trainer: Trainer, zero_stage: Ints, pp: Ints, virtual_stages: Ints, microbatches: Ints) -> IntArray:
    """How often a step reduces a ZeRO 2 gradient: after every microbatch without a pipeline, after every pp
    microbatches of a chunk if the trainer ``reduces_rounds``, else once."""
    two, m = np.equal(zero_stage, 2), np.asarray(microbatches)
    rounds = two & _in_rounds(trainer, pp, virtual_stages)
    return np.where(rounds, -(-m // np.asarray(pp)), np.where(two & np.equal(pp, 1), m, 1))


def _in_rounds(trainer: Trainer, pp: Ints, virtual_stages: Ints) -> Bools:
    return np.greater(pp, 1) & np.greater(virtual_stages, 1) & trainer.reduces_rounds


WHOLE_CHUNKS = 2
"""Chunks per device with full gradients when these are reduced in rounds: the active one and the one being reduced."""


def _gradient(job: TrainingJob, plan: TrainingPlan, gradient: float, shards: Floats) -> Floats:
    """Bytes of gradient per parameter, full or sharded."""
    pp, v = plan.dims.pp, plan.virtual_stages
    gradient_bytes = np.where(_shards_gradients(plan.zero_stage, pp), gradient / shards, gradient)
    rounds = np.equal(plan.zero_stage, 2) & _in_rounds(job.trainer, pp, v)
    whole = np.minimum(WHOLE_CHUNKS / np.asarray(v), 1.0)
    return np.where(rounds, gradient * np.minimum(whole + 1.0 / shards, 1.0), gradient_bytes)


def weight_bytes(job: TrainingJob) -> float:
    """Bytes per weight as GEMM kernels read it, before quantization."""
    return 4.0 if job.recipe in (Recipe.FP32, Recipe.TF32) else 2.0


def frozen_bytes(job: TrainingJob) -> float:
    """Bytes of a frozen layer's weight that is held in 8 bits, with scales per row (LLM.int8, arXiv 2208.07339), or 4;
    0 where there is none."""
    if job.trains_weights or job.frozen_bits > 8:
        return 0.0
    return job.trainer.memory.frozen_4_bits / 8 if job.frozen_bits == 4 else 1.0


def main_bytes(job: TrainingJob) -> float:
    """Bytes of a weight that the optimizer updates, of an adapter's too; as wide as the kernels read it at least."""
    return max(job.trainer.main_dtype.bytes, weight_bytes(job))


def gathered_bytes(job: TrainingJob, *, in_layer: bool) -> float:
    """Bytes per weight as replicas gather it: as kernels read it, 8 bits if no wider weights are kept, 4 bits if frozen
    in 4 bits."""
    if in_layer and (frozen := frozen_bytes(job)):
        return frozen
    return job.recipe.dtype.bytes if _is_narrow(job, in_layer) else weight_bytes(job)


def _is_narrow(job: TrainingJob, in_layer: bool) -> bool:
    width, habits = job.recipe.dtype.bytes, job.trainer.habits
    once = not job.trains_weights and habits.narrow_weights  # no optimizer needs a frozen weight in 16 bits
    return in_layer and width < 2 and (once or (habits.narrow_primary and width >= 1))


def expert_replicas(job: TrainingJob, plan: TrainingPlan) -> Ints:
    """Devices that hold the same experts: dp x cp / ep, times the tensor ranks that do not share an expert."""
    d = plan.dims
    return np.maximum(d.dp * d.cp * d.tp // (job.trainer.expert_tp(d.tp, d.ep) * d.ep), 1)


def shard_devices(plan: TrainingPlan, replicas: Ints) -> Ints:
    """Devices over which ZeRO spreads what ``replicas`` devices hold alike. Sets of shards are the outermost part of
    all replicas, dense and expert ones (torchtitan's dp_replicate in both meshes of parallel_dims.py, 0.3.0; Megatron's
    instances of the distributed optimizer in parallel_state.py, 0.16.1): each spreads replicas / sets."""
    sets = np.where(np.equal(plan.shard_group, 0), 1, plan.dims.dp * plan.dims.cp // np.maximum(plan.shard_group, 1))
    devices: IntArray = np.maximum(np.asarray(replicas) // np.maximum(sets, 1), 1)
    return devices


def _narrow_copies(job: TrainingJob, gpu: Gpu) -> int:
    """Low-precision copies of a weight: one by rows and one by columns, or one for both if the device multiplies FP8 in
    every layout and the tensor has a single scale (Transformer Engine's ``is_non_tn_fp8_gemm_supported``: compute
    capability 10; read 2026-11-24)."""
    per_tensor = job.recipe in (Recipe.FP8_DELAYED, Recipe.FP8_CURRENT)
    return 1 if per_tensor and (gpu.generation == "blackwell" or not job.trainer.habits.keeps_transposes) else 2


def _adapter_states(job: TrainingJob, plan: TrainingPlan, gpu: Gpu) -> _StateBytes:
    """Bytes per parameter of adapters, which are trained in 16 or 32 bits."""
    recipe = job.recipe if job.recipe.dtype.bytes >= 2 else Recipe.BF16
    return dense_states(replace(job, lora_rank=0, trains_weights=True, frozen_bits=16, recipe=recipe), plan, gpu)


def _states(
    job: TrainingJob, plan: TrainingPlan, gpu: Gpu, shards: Floats, in_layer: bool, is_table: bool = False
) -> _StateBytes:
    """``is_table``: of the embedding, whose weights no matrix multiplication reads."""

    def spread(size: float, stage: int) -> Floats:
        return np.where(np.greater_equal(plan.zero_stage, stage), size / shards, size)

    habits, width = job.trainer.habits, weight_bytes(job)
    wide = habits.wide_weights and job.trains_weights  # frozen weights are loaded in the type that kernels read
    weight = main_bytes(job) if wide else width
    narrow_width, primary = job.recipe.dtype.bytes, _is_narrow(job, in_layer)
    weight = narrow_width if primary else weight
    weight = frozen_bytes(job) or weight if in_layer else weight
    gradient = _grad_bytes(job) if job.trains_weights else 0.0
    state_bytes = (_main_copy(job) + _moments(job, in_layer, is_table)) if job.trains_weights else 0.0
    copied = habits.narrow_weights and in_layer and narrow_width < 2
    narrow = narrow_width * (_narrow_copies(job, gpu) - primary) if copied else 0.0
    step = _step_bytes(job)
    blocks = habits.step_block_bytes if job.trains_weights and width < 4 else 0.0
    whole_between = np.equal(plan.zero_stage, 2) & wide
    casts = wide and habits.casts_weights and weight > width and not is_table
    cast = np.where(np.equal(plan.zero_stage, 0) & casts, width, 0.0)
    between = width * np.minimum(habits.most_chunks_gathered / np.asarray(plan.virtual_stages), 1.0)
    return _StateBytes(
        weight=np.where(whole_between, np.minimum(weight, between + weight / shards), spread(weight, 3)) + cast,
        narrow=np.where(np.greater_equal(plan.zero_stage, 3), 0.0, narrow),
        grad=_gradient(job, plan, gradient, shards),
        optimizer=np.where(plan.optimizer_offload, 0.0, spread(state_bytes, 1)),
        step=np.where(plan.optimizer_offload, 0.0, spread(step, 1)) + (habits.flat_grad_bytes if gradient else 0.0),
        step_blocks=np.where(np.greater_equal(plan.zero_stage, 3), 0.0, spread(blocks, 1)),
    )


def _step_bytes(job: TrainingJob) -> float:
    """Bytes per parameter of the shard that the optimizer's step holds for a while."""
    if not job.trains_weights or job.recipe in (Recipe.FP32, Recipe.TF32):
        return 0.0
    return job.trainer.memory.fp16_step_bytes if job.recipe is Recipe.FP16 else job.trainer.memory.bf16_step_bytes


def _main_copy(job: TrainingJob) -> float:
    """Bytes of the optimizer's own copy of a weight that kernels read in 16 bits or fewer."""
    habits = job.trainer.habits
    if habits.wide_weights or weight_bytes(job) == 4 or job.optimizer is Optimizer.NONE:
        return 0.0
    remainder = habits.main_remainders and job.recipe is not Recipe.FP16 and job.moments_dtype.bytes < 4
    return 2.0 if remainder else job.trainer.main_dtype.bytes


def _moments(job: TrainingJob, in_layer: bool, is_table: bool) -> float:
    """Bytes on the device of a parameter's moments, and of Adafactor's sums of rows and columns."""
    optimizer = job.optimizer
    if optimizer.is_paged:
        return 0.0
    sums = 8.0 / float(np.max(job.shape.hidden_size)) if optimizer is Optimizer.ADAFACTOR else 0.0
    narrow = optimizer.narrow_moment_bytes
    wide = narrow > 0 and is_table and job.trainer.memory.wide_table_moments
    each = 4.0 if wide else narrow or moment_bytes(job)
    return optimizer.moments(of_matrices=in_layer) * each + sums


def moment_bytes(job: TrainingJob) -> float:
    """Bytes of a moment; PyTorch's and JAX's optimizers create it in the type of the weight they update."""
    created = main_bytes(job) if job.trainer.habits.wide_weights else 4.0
    return min(job.moments_dtype.bytes, created)


def _grad_bytes(job: TrainingJob) -> float:
    """Bytes of gradient per parameter, before sharding."""
    habits = job.trainer.memory
    if job.recipe in (Recipe.FP32, Recipe.TF32):
        return 4.0
    if habits.wide_weights and main_bytes(job) < 4:
        return main_bytes(job)
    narrow = habits.bf16_grad_bytes if job.recipe is not Recipe.FP16 else 0.0
    return narrow or habits.grad_bytes or job.trainer.grad_dtype.bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _BlockParams:
    """Parameters of one layer (or of embedding, MTP module, head) that one device holds, over arrays of tp and ep.

    ``dense`` ones are replicated over all of dp x cp, ``expert`` ones over dp x cp / ep, or tp times as many devices if
    experts are not split by tp (``Trainer.splits_experts``). ``tied`` is the token table that the head shares with the
    embedding: it needs its own copy only if the two are on different stages.
    """

    dense: Ints
    expert: Ints = 0
    tied: Ints = 0
    trained: float = 1.0
    """Share of them that is trained: gradients and optimizer states are of these."""
    adapters: Ints = 0
    """Parameters of low-rank adapters beside them."""
    buffer_bytes: float = 0.0
    """Tensors besides the parameters."""


def block_params(job: TrainingJob, dims: ParallelDims) -> tuple[_BlockParams, ...]:
    """Parameters of every block of ``job.shape`` (in the order of `blocks`) on one device of ``dims``, before sharding
    over data-parallel ranks. A LAYER block's are those of one layer."""
    trainer, rows = job.trainer, table_rows(job, dims.tp)
    whole, split = (
        _params_of_blocks(job.shape, dims.tp, dims.ep, rows, splits_experts=splits)
        for splits in (trainer.splits_experts, trainer.splits_experts or trainer.splits_lone_experts)
    )
    if whole is not split:
        lone = np.equal(dims.ep, 1)
        pairs = zip(whole, split, strict=True)
        whole = tuple(replace(a, expert=np.where(lone, b.expert, a.expert)) for a, b in pairs)
    if not job.lora_rank:
        return whole
    return tuple(
        replace(p, adapters=adapter_params(job, dims, block)) for p, block in zip(whole, blocks(job.shape), strict=True)
    )


def table_rows(job: TrainingJob, tp: Ints) -> Ints:
    """Rows of the token table on all ranks of ``tp`` together: the vocabulary or, if tp does not divide it, the next
    multiple of tp and of what the trainer pads to, as its launch files pad it."""
    vocab, multiple = job.shape.vocab_size, job.trainer.vocab_multiple
    if not multiple or np.all(np.equal(vocab % tp, 0)):
        return vocab
    return np.where(np.equal(vocab % tp, 0), vocab, round_up(vocab, np.lcm(multiple, tp)))


@remembered
def _params_of_blocks(
    shape: TransformerShape, tp: Ints, ep: Ints, vocab_size: Ints, *, splits_experts: bool
) -> tuple[_BlockParams, ...]:
    shape = replace(shape, vocab_size=vocab_size)
    dims, kernels = ParallelDims(tp=tp, ep=ep), Kernels(splits_experts=splits_experts)
    parts = tuple(_block_params(shape, dims, kernels, block) for block in blocks(shape))
    if shape.traced is None:
        return parts
    from sartor.model.traced import traced_parts  # a traced model is rare

    pairs = zip(parts, traced_parts(shape.traced), strict=True)
    return tuple(replace(p, trained=part.trained_share, buffer_bytes=part.buffer_bytes) for p, part in pairs)


def _block_params(shape: TransformerShape, dims: ParallelDims, kernels: Kernels, block: Block) -> _BlockParams:
    setting = _setting(shape, dims, block.stack, kernels)
    if block.layer is not None:
        return _layer_params(setting, block)
    outer = dict(outer_params(setting, shape))
    tables: Ints = sum((stack_params(_setting(shape, dims, s), s) for s, _ in text_stacks(shape)), 0)
    norms = _final_norms(block.stack)
    if block.kind is BlockKind.EMBEDDING:
        return _BlockParams(dense=outer["embedding"] + tables - norms)
    tied = shape.lm_head and shape.tied_embeddings
    return _BlockParams(dense=outer["head"] + norms, tied=outer["embedding"] - _positions(shape) if tied else 0)


def _layer_params(setting: Setting, block: Block) -> _BlockParams:
    assert block.layer is not None
    parts: Ints = sum((params for _, params in layer_params(setting, block.layer)), 0)
    experts: Ints = sum((expert_params(setting, part) for part in block.layer.all_ffns), 0)
    h = setting.hidden_size
    joining = 2 * h**2 + 2 * h if block.kind is BlockKind.MTP else 0
    return _BlockParams(dense=parts - experts + joining, expert=experts)


def _final_norms(stack: Stack) -> Ints:
    return sum((norm.params(stack.hidden_size) for norm in stack.norms), 0)


def _positions(shape: TransformerShape) -> Ints:
    width = shape.hidden_size if shape.embedding_size is None else shape.embedding_size
    return shape.learned_positions * width


def _setting(shape: TransformerShape, dims: ParallelDims, stack: Stack, kernels: Kernels | None = None) -> Setting:
    return Setting(
        workload=Workload(shape=shape, seq_len=1),
        dims=dims,
        hidden_size=stack.hidden_size,
        seq_q=1,
        seq_kv=1,
        kernels=kernels or Kernels(),
    )


CONTEXT_BYTES: Mapping[str, float] = {
    "volta": 0.6e9,
    "turing": 0.5e9,
    "ampere": 0.9e9,
    "ada": 0.6e9,
    "hopper": 1.1e9,
    "blackwell": 1.3e9,
}
"""CUDA context with the kernels of PyTorch, cuBLAS and cuDNN loaded, by generation (recalled: nvidia-smi minus
``torch.cuda.memory_reserved`` of a fresh process that has run a matrix multiplication, CUDA 11-12)."""

OTHER_CONTEXT_BYTES = 0.8e9
"""Context of GPUs not listed (ROCm: recalled)."""
TPU_CONTEXT_BYTES: Mapping[str, float] = {
    "tpu_v4": 1.25 * GIB,
    "tpu_v5e": 0.25 * GIB,
    "tpu_v5p": 0.0,
    "tpu_v6e": 0.75 * GIB,
    "tpu_v7": 2.5 * GIB,
}
"""Memory that XLA leaves out: of 32, 16, 95, 32 and 192 GiB a program gets 30.75, 15.75, 95.74, 31.25 and 2 x 94.75
("Ran out of memory in memory space hbm. Used ... of 31.25G hbm", public logs, read 2026-11-30)."""
COMMUNICATOR_BYTES = 0.3e9
"""NCCL's channels and buffers for one group of devices (recalled: 16-24 channels of 4-10 MiB per peer)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBytes:
    """Bytes [devices, plans]."""

    weights: FloatArray
    narrow_weights: FloatArray
    grads: FloatArray
    optimizer: FloatArray
    step_peak: FloatArray
    """Extra bytes of the optimizer step, when no activations are kept."""
    step_blocks: FloatArray
    """Blocks that the optimizer's step leaves unused in the allocator at its peak."""
    gathered: FloatArray
    """Whole weights and gradients of layers that ZeRO 3 shards."""
    unsynced: FloatArray
    """Whole gradients that wait for the last microbatch under ZeRO 3 (``MemoryHabits.whole_grads``), where there are
    several."""
    placeholders: FloatArray
    """Stand-ins for weight gradients that were added to the main gradient."""
    buckets: FloatArray
    apart: FloatArray
    """Reserved beyond what is allocated: blocks that other streams than the kernels' free for themselves alone."""
    is_apart: FloatArray
    """[plans]: 1 where sharded gradients are in such blocks."""
    context: FloatArray
    """CUDA context, libraries and NCCL: outside the framework's allocator."""

    @property
    def states(self) -> FloatArray:
        return self.weights + self.narrow_weights + self.grads + self.optimizer


Params = list[tuple[Block, _BlockParams]]
"""Every block with its parameters on a device, for every plan."""


def held_bytes(job: TrainingJob, plan: TrainingPlan, gpu: Gpu, params: Params, counts: IntArray) -> HeldBytes:
    """Bytes of pipeline ranks that hold ``counts`` [devices, plans, blocks]; ``plan`` has flat arrays."""
    shape = (len(counts), len(plan.zero_stage))  # type: ignore[arg-type]
    habits, several = job.trainer.memory, np.greater(plan.dims.dp, 1)
    states = _held_states(job, plan, gpu, params, counts)
    return HeldBytes(
        **states,
        gathered=_gathered(job, plan, params, counts),
        unsynced=_unsynced(job, plan, params, counts),
        placeholders=_placeholders(job, plan, params, counts),
        buckets=np.broadcast_to(np.where(several, habits.buffer_bytes, 0.0), shape),
        **_apart(job, plan, params, counts, states["grads"]),
        context=np.broadcast_to(context_bytes(plan, gpu), shape),
    )


def params_of(job: TrainingJob, plan: TrainingPlan) -> Params:
    few, back = distinct_rows([plan.dims.tp, plan.dims.ep])
    params = block_params(job, ParallelDims(tp=few[0], ep=few[1]))
    whole = few[0] * 0
    sizes = ("dense", "expert", "tied", "adapters")
    full = [replace(p, **{name: getattr(p, name) + whole for name in sizes}) for p in params]
    return list(zip(blocks(job.shape), entries(tuple(full), back), strict=True))


OF_FROZEN_TOO = ("weights", "narrow_weights")
"""What is held of parameters that are not trained."""


def _held_states(
    job: TrainingJob, plan: TrainingPlan, gpu: Gpu, params: Params, counts: IntArray
) -> dict[str, FloatArray]:
    several = np.greater(plan.dims.pp, 1)
    states = (
        dense_states(job, plan, gpu),
        dense_states(job, plan, gpu, in_layer=False, is_table=True),
        dense_states(job, plan, gpu, in_layer=False),
        _expert_states(job, plan, gpu),
    )
    all_params, trained = (_counted(params, counts, several, trained=only) for only in (False, True))
    names = {
        "weights": "weight",
        "narrow_weights": "narrow",
        "grads": "grad",
        "optimizer": "optimizer",
        "step_peak": "step",
        "step_blocks": "step_blocks",
    }
    bytes_of = {
        name: sum(
            count * getattr(state, field)
            for count, state in zip(all_params if name in OF_FROZEN_TOO else trained, states, strict=True)
        )
        for name, field in names.items()
    }
    buffers = sum(counts[..., i] * _share(block) * p.buffer_bytes for i, (block, p) in enumerate(params))
    if job.trainer.memory.most_stepped < math.inf:
        in_turn = np.minimum(bytes_of["step_peak"], job.trainer.memory.most_stepped * _step_bytes(job))
        bytes_of["step_peak"] = np.where(np.equal(plan.zero_stage, 3), in_turn, bytes_of["step_peak"])
    bytes_of["weights"] = bytes_of["weights"] + buffers
    if job.lora_rank:
        adapters = sum(counts[..., i] * _share(block) * p.adapters for i, (block, p) in enumerate(params))
        of_adapters = _adapter_states(job, plan, gpu)
        bytes_of = {name: size + adapters * getattr(of_adapters, names[name]) for name, size in bytes_of.items()}
    return bytes_of


def _counted(
    params: Params, counts: IntArray, copies_table: BoolArray, *, trained: bool
) -> tuple[Floats, Floats, Floats, Floats]:
    """Parameters of devices [devices, plans], or those that are ``trained``: in layers, in the embedding, in the head,
    in experts. ``copies_table``: the head has its own copy of a tied embedding table."""
    layers: Floats = 0.0
    table: Floats = 0.0
    outer: Floats = 0.0
    experts: Floats = 0.0
    for i, (block, p) in enumerate(params):
        n = counts[..., i] * (p.trained if trained else 1.0)
        if block.kind is BlockKind.EMBEDDING:
            table = table + n * p.dense
            continue
        if block.layer is None:
            outer = outer + n * (p.dense + copies_table * p.tied)
            continue
        share = _share(block)
        layers = layers + n * share * p.dense
        experts = experts + n * share * p.expert
    return layers, table, outer, experts


def _share(block: Block) -> Floats:
    """Sets of weights per layer: fewer than 1 where layers share them."""
    return block.weight_sets / block.count if block.kind is BlockKind.LAYER else 1.0


def _largest(
    params: Params, plan: TrainingPlan, counts: IntArray, *, single_expert: bool, trained: bool = False
) -> FloatArray:
    """Parameters (or those ``trained``) of the largest kind of layer on every device, with all its experts or one."""
    best = np.zeros((len(counts), len(plan.zero_stage)))  # type: ignore[arg-type]
    for i, (block, p) in enumerate(params):
        if block.layer is None:
            continue
        experts: Floats = p.expert
        if single_expert:
            number = max((int(getattr(part, "num_experts", 1)) for part in block.layer.all_ffns), default=1)
            experts = experts / np.maximum(number // np.asarray(plan.dims.ep), 1)
        size = (p.dense + experts) * (p.trained if trained else 1.0)
        best = np.maximum(best, np.where(counts[..., i] > 0, size, 0.0))
    return best


def _gathered(job: TrainingJob, plan: TrainingPlan, params: Params, counts: IntArray) -> FloatArray:
    """ZeRO 3: gathered weights of the active layers, one layer's full gradients in 16 bits and, during reduction, in
    the reduction's type, and the tables of embedding and head, all the time or each where it is used; in lockstep
    weights and gradients of one block. ZeRO 2 with fp32 shards: those gradients of one layer, which the reduction
    copies (``foreach_reduce`` of torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py)."""
    is_3 = np.greater_equal(plan.zero_stage, 3)
    copied = np.equal(plan.zero_stage, 2) & job.trainer.memory.wide_weights
    if not (is_3 | copied).any():
        return np.zeros((len(counts), is_3.size))
    width, habits = weight_bytes(job), job.trainer.memory
    if job.trainer.lockstep:
        return np.where(is_3, _largest_block(params, plan, counts) * (width + job.trainer.grad_dtype.bytes), 0.0)
    tables = [counts[..., i] * 1.0 * p.dense for i, (block, p) in enumerate(params) if block.layer is None]
    outer = sum(tables) if habits.keeps_tables else np.max(np.broadcast_arrays(*tables), axis=0)
    grads = (width + job.trainer.grad_dtype.bytes) if job.trains_weights else 0.0
    layer = _largest(params, plan, counts, single_expert=False)
    live = np.maximum(layer * habits.layers_gathered / 2, habits.most_gathered)
    weights = np.minimum(layer * habits.layers_gathered, live)
    graded = _largest(params, plan, counts, single_expert=False, trained=True)
    of_grads = graded * habits.layers_graded * grads
    layers = weights * width + of_grads
    whole = layers + outer * width if habits.keeps_tables else np.maximum(layers, outer * width)
    return np.where(is_3, whole, np.where(copied, of_grads, 0.0))


def _apart(
    job: TrainingJob, plan: TrainingPlan, params: Params, counts: IntArray, grads: FloatArray
) -> dict[str, FloatArray]:
    """FSDP gathers weights and reduces gradients in streams of its own, and the allocator gives a stream's free blocks
    to no other: reserved are also the flat weights of the largest unit, the sharded gradients while none is there, and
    under a pipeline the shards beside the whole gradients (``foreach_all_gather`` and ``foreach_reduce`` of
    torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py, 2.13; ``_post_backward_hook`` of fsdp/_runtime_utils.py;
    read 2026-11-30)."""
    shards = shard_devices(plan, plan.dims.dp * plan.dims.cp)
    shard = np.greater_equal(plan.zero_stage, 2) & np.greater(shards, 1) & job.trainer.memory.own_streams
    separate = _widened(job, plan, params, counts)
    if shard.any():
        outer = sum(counts[..., i] * 1.0 * p.dense for i, (block, p) in enumerate(params) if block.layer is None)
        unit = np.maximum(_largest(params, plan, counts, single_expert=False), outer) * weight_bytes(job)
        beside = np.where(_shards_gradients(plan.zero_stage, plan.dims.pp), 0.0, grads / shards)
        separate = separate + np.where(shard, unit + beside, 0.0)
    return {"apart": separate, "is_apart": np.asarray(shard, dtype=np.float64)}


def _widened(job: TrainingJob, plan: TrainingPlan, params: Params, counts: IntArray) -> FloatArray:
    """Where 16-bit gradients are added to fp32 sums beside them, each is cast for that: a block as large as the largest
    gradient, usually the table's, that activations leave no room for (``update_hp_grads`` of DeepSpeed's
    runtime/bf16_optimizer.py, 0.19.8; read 2026-11-30)."""
    largest = np.zeros((len(counts), len(plan.zero_stage)))  # type: ignore[arg-type]
    if _grad_bytes(job) <= 4 or not job.trains_weights:
        return largest
    for i, (block, p) in enumerate(params):
        size = largest_matrix(job.shape) / np.asarray(plan.dims.tp) if block.layer is not None else p.dense + p.tied
        largest = np.maximum(largest, np.where(counts[..., i] > 0, size, 0.0))
    return 4 * largest


def _unsynced(job: TrainingJob, plan: TrainingPlan, params: Params, counts: IntArray) -> FloatArray:
    size: Floats = 0.0
    if job.trainer.memory.whole_grads:
        size = sum(counts[..., i] * (p.dense + p.expert + p.adapters) for i, (_, p) in enumerate(params))
    waiting = np.where(np.greater_equal(plan.zero_stage, 3), size * weight_bytes(job), 0.0)
    return np.asarray(waiting + np.zeros((len(counts), 1)))


def _largest_block(params: Params, plan: TrainingPlan, counts: IntArray) -> FloatArray:
    """Parameters of the largest block on every device, tables included."""
    best = np.zeros((len(counts), len(plan.zero_stage)))  # type: ignore[arg-type]
    for i, (_, p) in enumerate(params):
        best = np.maximum(best, np.where(counts[..., i] > 0, p.dense + p.expert + p.tied, 0.0))
    return best


def _placeholders(job: TrainingJob, plan: TrainingPlan, params: Params, counts: IntArray) -> FloatArray:
    if frozen_bytes(job):  # one matrix at a time is widened for its GEMM
        widened = largest_matrix(job.shape) * weight_bytes(job) / np.asarray(plan.dims.tp)
        return np.asarray(widened + np.zeros((len(counts), 1)))
    layer = _largest(params, plan, counts, single_expert=True, trained=True)
    return layer * weight_bytes(job) * (1 if job.trainer.memory.dummy_wgrad and job.trains_weights else 0)


def context_bytes(plan: TrainingPlan, gpu: Gpu) -> Floats:
    """CUDA context with libraries, and NCCL's buffers for every group a device belongs to."""
    d = plan.dims
    if gpu.accelerator is not None:
        return np.asarray(0.0)
    if gpu.generation.startswith("tpu"):
        return np.asarray(TPU_CONTEXT_BYTES.get(gpu.generation, 0.0))
    groups = sum(np.greater(degree, 1).astype(int) for degree in (d.tp, d.pp, d.dp, d.cp, d.ep))
    return CONTEXT_BYTES.get(gpu.generation, OTHER_CONTEXT_BYTES) + COMMUNICATOR_BYTES * groups
