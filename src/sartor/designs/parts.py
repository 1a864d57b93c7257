"""A model as the joint search sees it at one microbatch and one width: a first part, kinds of layers, a last part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from sartor.designs.question import DesignModel
from sartor.errors import InputError
from sartor.model.blocks import BlockKind, blocks, layer_order
from sartor.model.edit import edit_fields
from sartor.model.parallel import ParallelDims
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.operators import OperatorGraph
from sartor.step.activations import rows_of
from sartor.step.blocks import block_params
from sartor.step.chip_blocks import block_graphs, check_one_stack
from sartor.step.lockstep import WIDTH_BYTES, block_stash, boundary_bytes
from sartor.step.recipes import padded_vocab
from sartor.step.trainers.lockstep import LOCKSTEP
from sartor.units import ceil_div


class Split(NamedTuple):
    """How one copy of a model is cut within its layers: sequences at a time, tensor-parallel ``width``, and the copies
    that share the experts among them (1: each copy holds all)."""

    microbatch_size: int
    width: int
    expert_parallel: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """One layer of a kind, or what lies before or after the layers; operators of one microbatch on one device.

    ``in_turn``: the operators run one after another (no schedule to solve) and ``count`` of each is applied.
    """

    name: str
    forward: OperatorGraph
    backward: OperatorGraph
    param_bytes: float
    activation_bytes: float
    in_turn: bool = False
    expert_param_bytes: float = 0.0
    """The part of ``param_bytes`` that copies of one expert-parallel group do not share."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """``parts`` are first, kinds of layers, last; ``order`` names the kind of every layer (an index into ``parts``)."""

    split: Split
    parts: tuple[ModelPart, ...]
    order: tuple[int, ...]
    boundary_bytes: float

    @property
    def counts(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.order.count(k) for k in range(1, len(self.parts) - 1))


def design_job(model: DesignModel, global_batch_size: int) -> TrainingJob:
    """The training job a design runs: the model as the lockstep trainer has it, in 16 bits with Adam."""
    vocab = int(padded_vocab(model.shape, LOCKSTEP))
    shape = model.shape
    if vocab != shape.vocab_size:
        shape = replace(edit_fields(shape, {"vocab_size": vocab})[0], name=shape.name)
    return TrainingJob(shape=shape, seq_len=model.seq_len, global_batch_size=global_batch_size, trainer=LOCKSTEP)


def model_parts(model: DesignModel, split: Split, global_batch_size: int) -> ModelParts | None:
    """The parts of ``model`` on one of ``split.width`` tensor-parallel devices; None where it does not split so.

    Raises ``InputError`` for models of several stacks, whose layers are no chain.
    """
    job = design_job(model, global_batch_size)
    check_one_stack(job)
    dims = ParallelDims(tp=split.width, ep=split.expert_parallel, dp=split.expert_parallel)
    try:
        graphs = block_graphs(job, dims, split.microbatch_size)
    except InputError:
        return None
    rows = rows_of(job, TrainingPlan(dims=dims, microbatch_size=split.microbatch_size))
    logits = rows.tokens * ceil_div(job.shape.vocab_size, split.width) if job.shape.lm_head else 0
    known = blocks(job.shape)
    every = [
        ModelPart(
            name=block.name,
            forward=graph.forward,
            backward=graph.backward,
            param_bytes=WIDTH_BYTES * float(params.dense + params.expert + params.tied),
            expert_param_bytes=WIDTH_BYTES * float(params.expert),
            activation_bytes=float(block_stash(job, rows, block, logits)),
            in_turn=graph.in_turn,
        )
        for block, graph, params in zip(known, graphs, block_params(job, dims), strict=True)
    ]
    layers = [i for i, block in enumerate(known) if block.kind is BlockKind.LAYER]
    after = [part for i, part in enumerate(every) if i > layers[-1]]
    kind = {i: 1 + k for k, i in enumerate(layers)}
    return ModelParts(
        split=split,
        parts=(every[0], *(every[i] for i in layers), _together("head", after)),
        order=tuple(kind[int(i)] for i in layer_order(job.shape)),
        boundary_bytes=float(boundary_bytes(job, rows)),
    )


def _together(name: str, parts: Sequence[ModelPart]) -> ModelPart:
    """Parts that stand on the last stage in any case, as one: modules for later tokens go with the head."""

    def joined(graphs: Iterable[OperatorGraph]) -> OperatorGraph:
        each = tuple(graphs)
        return OperatorGraph(operators=tuple(op for graph in each for op in graph.operators), tokens=each[-1].tokens)

    return ModelPart(
        name=name,
        forward=joined(part.forward for part in parts),
        backward=joined(part.backward for part in parts),
        param_bytes=sum(part.param_bytes for part in parts),
        expert_param_bytes=sum(part.expert_param_bytes for part in parts),
        activation_bytes=sum(part.activation_bytes for part in parts),
        in_turn=True,
    )
