"""A model as the joint search sees it at one microbatch and one width: a first part, kinds of layers, a last part."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

from sartor.designs.question import DesignModel
from sartor.errors import InputError
from sartor.model.blocks import BlockKind, blocks, layer_order
from sartor.model.defaults import VOCAB_MULTIPLE
from sartor.model.edit import edit_fields
from sartor.model.lower import lower
from sartor.model.lower.layer_graph import lower_layer
from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.model.workload import Workload
from sartor.operators import OperatorGraph, Pass, Role
from sartor.step.activations import layer_activations, rows_of
from sartor.step.blocks import block_params
from sartor.units import round_up

PARAM_BYTES = 2.0
"""Of a weight as it is multiplied and sent."""


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


def model_parts(model: DesignModel, split: Split, global_batch_size: int) -> ModelParts | None:
    """The parts of ``model`` on one of ``split.width`` tensor-parallel devices; None where it does not split so.

    Raises ``InputError`` for models of several stacks, whose layers are no chain.
    """
    microbatch_size, width, experts = split
    shape = padded(model.shape, width)
    if len([stack for stack in shape.stacks if stack.is_text]) > 1:
        raise InputError("model", model.name, "must be one stack of layers here; an encoder with a decoder is not")
    workload = Workload(shape=shape, microbatch_size=microbatch_size, seq_len=model.seq_len)
    dims = ParallelDims(tp=width, ep=experts, dp=experts)
    try:
        whole = lower(workload, dims)
    except InputError:
        return None
    job = TrainingJob(shape=shape, seq_len=model.seq_len, global_batch_size=global_batch_size)
    known, params = blocks(shape), block_params(job, dims)
    layers = [i for i, block in enumerate(known) if block.kind is BlockKind.LAYER]
    rows = rows_of(job, TrainingPlan(dims=dims, microbatch_size=microbatch_size))
    outer_bytes = float(rows.outer) * float(shape.hidden_size) * PARAM_BYTES
    middle = []
    for run, i in enumerate(layers):
        graph, block = lower_layer(workload, dims, run), known[i]
        assert block.layer is not None
        middle.append(
            ModelPart(
                name=block.name,
                forward=graph.forward,
                backward=graph.backward,
                param_bytes=PARAM_BYTES * float(params[i].dense + params[i].expert),
                expert_param_bytes=PARAM_BYTES * float(params[i].expert),
                activation_bytes=float(layer_activations(rows, block.layer, shape.hidden_size).whole),
            )
        )
    ends = [i for i in range(len(known)) if i not in layers]
    held = [PARAM_BYTES * float(params[i].dense + params[i].expert + params[i].tied) for i in ends]
    shared = PARAM_BYTES * sum(float(params[i].expert) for i in ends)
    first = _end("embedding", whole, ends[:1], held[0], outer_bytes)
    last = _end("head", whole, ends[1:], sum(held[1:]), 2 * outer_bytes + _logit_bytes(whole))
    last = replace(last, expert_param_bytes=shared)
    kind = {i: 1 + k for k, i in enumerate(layers)}
    return ModelParts(
        split=split,
        parts=(first, *middle, last),
        order=tuple(kind[int(i)] for i in layer_order(shape)),
        boundary_bytes=outer_bytes,
    )


def padded(shape: TransformerShape, width: int) -> TransformerShape:
    """The shape with a vocabulary that splits over the width."""
    vocab = int(round_up(int(shape.vocab_size), VOCAB_MULTIPLE * width))
    if vocab == shape.vocab_size:
        return shape
    return replace(edit_fields(shape, {"vocab_size": vocab})[0], name=shape.name)


def _end(name: str, graph: OperatorGraph, blocks_: list[int], param_bytes: float, activation_bytes: float) -> ModelPart:
    """What lies outside the layers: a module for later tokens goes with the head."""
    operators = [op for op in graph.operators if op.block in blocks_ and op.pass_ is not Pass.OPTIMIZER]
    forward = tuple(op for op in operators if op.pass_ is Pass.FORWARD)
    backward = tuple(op for op in operators if op.pass_ is not Pass.FORWARD)
    return ModelPart(
        name=name,
        forward=OperatorGraph(operators=forward, tokens=graph.tokens),
        backward=OperatorGraph(operators=backward, tokens=graph.tokens),
        param_bytes=param_bytes,
        activation_bytes=activation_bytes,
        in_turn=True,
    )


def _logit_bytes(graph: OperatorGraph) -> float:
    """Logits in 16 bits and their probabilities in fp32, kept for the one microbatch that the last stage works on."""
    losses = [op for op in graph.operators if op.role is Role.LOSS and op.pass_ is Pass.FORWARD]
    return sum(6.0 * float(getattr(op, "rows", 0)) * float(getattr(op, "cols", 0)) for op in losses)
