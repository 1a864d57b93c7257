"""A model in the joint search at one microbatch size and one width: a first part, kinds of layers, a last part."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf
from typing import NamedTuple, TypedDict

from sartor.designs.question import DesignModel, DesignQuestion
from sartor.errors import InputError
from sartor.hardware.accelerator import Accelerator
from sartor.model.lower.setting import contexts_divide, sequence_divides
from sartor.model.shape import BlockKind, layer_order
from sartor.model.training import Optimizer, Recipe, TrainingJob, TrainingPlan
from sartor.model.workload import ParallelDims, Workload
from sartor.operators import DType, OperatorGraph
from sartor.placement.problem import Edge, PlacedLayer, Width
from sartor.step.activations import rows_of
from sartor.step.block_times import BlockGraphs, check_one_stack, has_gaps, workload_graphs
from sartor.step.question import padded_shape, workload_of
from sartor.step.rank_activations import WIDTH_BYTES, block_stash, boundary_bytes
from sartor.step.serving.inference import served_bytes
from sartor.step.states import block_params
from sartor.step.trainers.lockstep import LOCKSTEP
from sartor.units import ceil_div


class CopySplit(NamedTuple):
    """How one copy of a model is split within its layers: sequences per microbatch, tensor-parallel ``width``, number
    of copies that share the experts (1: each copy has all), operand type of the linear layers, and devices that share
    a sequence."""

    microbatch_size: int
    width: int
    expert_parallel: int = 1
    dtype: DType = DType.BF16
    context_parallel: int = 1

    @property
    def devices(self) -> int:
        """Devices of a stage of one copy."""
        return self.width * self.context_parallel

    @property
    def dims(self) -> ParallelDims:
        """The degrees that a layer's operators depend on."""
        experts = self.expert_parallel
        return ParallelDims(tp=self.width, cp=self.context_parallel, ep=experts, dp=experts)

    @property
    def key(self) -> str:
        """``4.2.1``, the type if it is not 16 bits wide, and ``cp2`` if sequences are shared."""
        words = [str(degree) for degree in (self.microbatch_size, self.width, self.expert_parallel)]
        words += [] if self.dtype is DType.BF16 else [self.dtype.value]
        return ".".join([*words, *([f"cp{self.context_parallel}"] if self.context_parallel > 1 else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelPart:
    """One kind of layer, or the part before or after the layers: operators of one microbatch on one device.

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
    has_gaps: bool = False
    """Whether a run takes ``Accelerator.run_factor`` times the schedule: a layer in training."""

    def in_run(self, accelerator: Accelerator) -> float:
        """Seconds in a run over those of the schedule."""
        return accelerator.run_factor if self.has_gaps else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """A serving pass instead of a training step: bytes that each device holds (weights, key/value cache, working
    memory), tokens computed per sequence, and the latency limit of a pass."""

    device_bytes: float
    new_tokens: int
    latency_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelParts:
    """``parts`` are first, kinds of layers, last; ``order`` names the kind of every layer (an index into ``parts``)."""

    split: CopySplit
    parts: tuple[ModelPart, ...]
    order: tuple[int, ...]
    boundary_bytes: float
    tied_bytes: float = 0.0
    """The token table of embedding and head, counted in both: a single stage holds it once."""
    served: _Served | None = None

    @property
    def counts(self) -> tuple[int, ...]:
        """Layers of each kind."""
        return tuple(self.order.count(k) for k in range(1, len(self.parts) - 1))

    def width(self, seconds: Sequence[tuple[float, float]] = ()) -> Width:
        """The layers as a placement takes them, with the forward and backward ``seconds`` of every part (default: 0);
        the first part is layer -1."""
        kinds, split = (0, *self.order, len(self.parts) - 1), self.split
        seconds = seconds or [(0.0, 0.0)] * len(self.parts)
        layers = tuple(
            PlacedLayer(
                id=i - 1,
                param_bytes=self.parts[k].param_bytes,
                expert_param_bytes=self.parts[k].expert_param_bytes,
                activation_bytes=self.parts[k].activation_bytes,
                forward_s=seconds[k][0],
                backward_s=seconds[k][1],
                is_split=split.devices > 1,
            )
            for i, k in enumerate(kinds)
        )
        edges = (Edge(source=i - 1, dest=i, size_bytes=self.boundary_bytes) for i in range(len(kinds) - 1))
        return Width(
            tensor_parallel=split.width,
            context_parallel=split.context_parallel,
            expert_parallel=split.expert_parallel,
            layers=layers,
            edges=tuple(edges),
            tied_bytes=self.tied_bytes,
        )


RECIPES = {
    DType.BF16: Recipe.BF16,
    DType.FP8: Recipe.FP8_DELAYED,
    DType.MXFP8: Recipe.MXFP8,
    DType.NVFP4: Recipe.NVFP4,
}
"""Training recipe for each type that a space may name: linear layers in this type, the rest in 16 bits."""


def design_job(
    model: DesignModel, global_batch_size: int, dtype: DType = DType.BF16, optimizer: Optimizer = Optimizer.ADAM
) -> TrainingJob:
    """The training job of a design: the model with the lockstep trainer."""
    return TrainingJob(
        shape=padded_shape(model.shape, LOCKSTEP),
        seq_len=model.seq_len,
        global_batch_size=global_batch_size,
        recipe=RECIPES[dtype],
        trainer=LOCKSTEP,
        optimizer=optimizer,
    )


def model_parts(model: DesignModel, split: CopySplit, global_batch_size: int) -> ModelParts | None:
    """The parts of ``model`` on one device of a stage; None if it does not split like this.

    Raises ``InputError`` for models of several stacks, since their layers are not a chain.
    """
    job = design_job(model, global_batch_size, split.dtype)
    check_one_stack(job.shape)
    dims = split.dims
    tp, cp, tokens = split.width, split.context_parallel, model.seq_len
    if not (model.served or (contexts_divide(tokens, cp) and sequence_divides(tokens, tp, cp))):
        return None
    workload = _workload(model, job, split)
    try:
        graphs = workload_graphs(workload, dims)
        served = _served(model, workload, dims) if model.served else None
    except InputError:
        return None
    plan = TrainingPlan(dims=dims, microbatch_size=split.microbatch_size)
    part_bytes, sent, tied = ([_NOTHING] * len(graphs), 0.0, 0.0) if served else _trained(job, plan, graphs)
    block_parts = [
        ModelPart(
            name=graph.block.name,
            forward=graph.forward,
            backward=graph.backward,
            in_turn=graph.in_turn,
            has_gaps=not served and has_gaps(graph.block.kind, job.trainer),
            **held_there,
        )
        for graph, held_there in zip(graphs, part_bytes, strict=True)
    ]
    layers = [i for i, graph in enumerate(graphs) if graph.block.kind is BlockKind.LAYER]
    kind = {i: 1 + k for k, i in enumerate(layers)}
    return ModelParts(
        split=split,
        parts=(block_parts[0], *(block_parts[i] for i in layers), _together("head", block_parts[layers[-1] + 1 :])),
        order=tuple(kind[int(i)] for i in layer_order(job.shape)),
        boundary_bytes=sent,
        tied_bytes=tied,
        served=served,
    )


@lru_cache(maxsize=4096)
def _parts(model: DesignModel, split: CopySplit, global_batch_size: int) -> ModelParts | None:
    return model_parts(model, split, global_batch_size)


def parts_of(question: DesignQuestion, m: int, split: CopySplit) -> ModelParts | None:
    """The parts of a model, lowered once."""
    return _parts(question.models[m], split, question.global_batch_size)


def _workload(model: DesignModel, job: TrainingJob, split: CopySplit) -> Workload:
    """The workload of a device for one microbatch, or for one serving pass."""
    if not model.served:
        return workload_of(job, split.width, split.microbatch_size)
    return Workload(
        shape=job.shape,
        phase=model.phase,
        microbatch_size=split.microbatch_size,
        seq_len=model.seq_len,
        context_len=model.context_len,
        dtype=split.dtype,
    )


class _Held(TypedDict):
    """Bytes that a part keeps between steps, and until its backward pass."""

    param_bytes: float
    expert_param_bytes: float
    activation_bytes: float


_NOTHING = _Held(param_bytes=0.0, expert_param_bytes=0.0, activation_bytes=0.0)


def _trained(job: TrainingJob, plan: TrainingPlan, graphs: Sequence[BlockGraphs]) -> tuple[list[_Held], float, float]:
    """Bytes held in training by every block, those that a microbatch sends between two layers, and those of the token
    table if embedding and head share it."""
    all_params = block_params(job, plan.dims)
    rows = rows_of(job, plan)
    logits = rows.tokens * ceil_div(job.shape.vocab_size, plan.dims.tp) if job.shape.lm_head else 0
    part_bytes = [
        _Held(
            param_bytes=WIDTH_BYTES * float(params.dense + params.expert + params.tied),
            expert_param_bytes=WIDTH_BYTES * float(params.expert),
            activation_bytes=float(block_stash(job, rows, graph.block, logits)),
        )
        for graph, params in zip(graphs, all_params, strict=True)
    ]
    return part_bytes, float(boundary_bytes(job, rows)), WIDTH_BYTES * float(sum(params.tied for params in all_params))


def _served(model: DesignModel, workload: Workload, dims: ParallelDims) -> _Served:
    """Bytes that every device of a copy holds for serving, and the latency limit of a pass."""
    device_bytes = float(served_bytes(workload, dims))
    return _Served(device_bytes=device_bytes, new_tokens=int(workload.new_tokens), latency_s=model.latency_s or inf)


def _together(name: str, parts: Sequence[ModelPart]) -> ModelPart:
    """Parts that are always on the last stage, merged: modules for later tokens and the head."""

    def joined(graphs: Iterable[OperatorGraph]) -> OperatorGraph:
        members = tuple(graphs)
        return OperatorGraph(
            operators=tuple(op for graph in members for op in graph.operators), tokens=members[-1].tokens
        )

    return ModelPart(
        name=name,
        forward=joined(part.forward for part in parts),
        backward=joined(part.backward for part in parts),
        param_bytes=sum(part.param_bytes for part in parts),
        expert_param_bytes=sum(part.expert_param_bytes for part in parts),
        activation_bytes=sum(part.activation_bytes for part in parts),
        in_turn=True,
    )
