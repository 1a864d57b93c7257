"""Parameters of every block of a model that one device holds."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sartor.model.blocks import Block, BlockKind, blocks, text_stacks
from sartor.model.lower.optimizer import expert_params, layer_params, outer_params, stack_params
from sartor.model.lower.setting import Kernels, Setting
from sartor.model.shape import Stack, TransformerShape
from sartor.model.traced import traced_parts
from sartor.model.training import TrainingJob
from sartor.model.workload import ParallelDims, Workload
from sartor.units import Ints, remembered


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockParams:
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
    buffer_bytes: float = 0.0
    """Tensors besides the parameters."""


def block_params(job: TrainingJob, dims: ParallelDims) -> tuple[BlockParams, ...]:
    """Parameters of every block of ``job.shape`` (in the order of `blocks`) on one device of ``dims``, before sharding
    over data-parallel ranks. A LAYER block's are those of one layer."""
    return _params_of_blocks(job.shape, dims.tp, dims.ep, splits_experts=job.trainer.splits_experts)


@remembered
def _params_of_blocks(shape: TransformerShape, tp: Ints, ep: Ints, *, splits_experts: bool) -> tuple[BlockParams, ...]:
    dims, kernels = ParallelDims(tp=tp, ep=ep), Kernels(splits_experts=splits_experts)
    parts = tuple(_block_params(shape, dims, kernels, block) for block in blocks(shape))
    if shape.traced is None:
        return parts
    pairs = zip(parts, traced_parts(shape.traced), strict=True)
    return tuple(replace(p, trained=part.trained_share, buffer_bytes=part.buffer_bytes) for p, part in pairs)


def _block_params(shape: TransformerShape, dims: ParallelDims, kernels: Kernels, block: Block) -> BlockParams:
    setting = _setting(shape, dims, block.stack, kernels)
    if block.layer is not None:
        return _layer_params(setting, block)
    outer = dict(outer_params(setting, shape))
    tables: Ints = sum((stack_params(_setting(shape, dims, s), s) for s, _ in text_stacks(shape)), 0)
    norms = _final_norms(block.stack)
    if block.kind is BlockKind.EMBEDDING:
        return BlockParams(dense=outer["embedding"] + tables - norms)
    tied = shape.lm_head and shape.tied_embeddings
    return BlockParams(dense=outer["head"] + norms, tied=outer["embedding"] - _positions(shape) if tied else 0)


def _layer_params(setting: Setting, block: Block) -> BlockParams:
    assert block.layer is not None
    parts: Ints = sum((params for _, params in layer_params(setting, block.layer)), 0)
    experts: Ints = sum((expert_params(setting, part) for part in block.layer.all_ffns), 0)
    h = setting.hidden_size
    joining = 2 * h**2 + 2 * h if block.kind is BlockKind.MTP else 0
    return BlockParams(dense=parts - experts + joining, expert=experts)


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
