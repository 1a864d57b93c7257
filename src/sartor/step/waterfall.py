"""Memory waterfall of every stage of one plan: theory, then allocated, then reserved, then device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import partial

from sartor.hardware.cluster import Cluster
from sartor.model.training import TrainingJob, TrainingPlan
from sartor.step.footprint import every_stage, usable_bytes
from sartor.step.stage_bytes import StageBytes


class MemoryLevel(Enum):
    """What a byte is counted by; each level includes those before it."""

    THEORY = "theory"
    """From model and plan: states and activations kept for backward."""
    ALLOCATED = "allocated"
    """Allocated to tensors at the peak (``torch.cuda.max_memory_allocated``)."""
    RESERVED = "reserved"
    """Reserved by the framework's allocator (``max_memory_reserved``)."""
    DEVICE = "device"
    """What nvidia-smi shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPart:
    """One bar of the waterfall: ``size_bytes`` on top of the parts before it."""

    name: str
    level: MemoryLevel
    size_bytes: float
    what: str
    """A description."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """One pipeline rank, part by part, at its peak."""

    stage: int
    moment: str
    """When memory peaks: ``backward`` (activations), ``loss`` (logits) or ``optimizer step``."""
    parts: tuple[MemoryPart, ...]

    def total_bytes(self, level: MemoryLevel = MemoryLevel.DEVICE) -> float:
        """Sum of all parts up to ``level``."""
        upto = list(MemoryLevel)[: list(MemoryLevel).index(level) + 1]
        return sum(part.size_bytes for part in self.parts if part.level in upto)

    def part_bytes(self, *names: str) -> float:
        """Sum of the named parts; parts that the stage does not have count nothing."""
        return sum(part.size_bytes for part in self.parts if part.name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waterfall:
    """All stages of one plan, and the memory that a device can use."""

    stages: tuple[StageMemory, ...]
    usable_bytes: float

    @property
    def fullest(self) -> StageMemory:
        return max(self.stages, key=lambda stage: stage.total_bytes())

    @property
    def fits(self) -> bool:
        return self.fullest.total_bytes() <= self.usable_bytes


def waterfall(job: TrainingJob, plan: TrainingPlan, cluster: Cluster) -> Waterfall:
    """Bytes of every stage of one plan, part by part; its fullest stage's totals are those of `footprint`.

    >>> from sartor.hardware.cluster_catalog import load_cluster
    >>> from sartor.model.zoo import load_model
    >>> job = TrainingJob(shape=load_model("llama-3.1-8b"), seq_len=8192, global_batch_size=128)
    >>> found = waterfall(job, TrainingPlan(num_microbatches=128), load_cluster("dgx-h100"))
    >>> found.fits, [part.name for part in found.fullest.parts if part.level is MemoryLevel.THEORY]
    (False, ['weights', 'gradients', 'optimizer', 'activations', 'loss'])
    """
    ranks = every_stage(job, plan, cluster)
    stages = tuple(_stage(ranks, i) for i in range(len(ranks.device)))
    return Waterfall(stages=stages, usable_bytes=usable_bytes(cluster))


_THEORY = (
    ("weights", "weights", "weights as the kernels read them"),
    ("narrow_weights", "narrow weights", "8- or 4-bit copies of the layers' weights, row-wise and column-wise"),
    ("grads", "gradients", "the buffer gradients are summed and reduced in"),
    ("optimizer", "optimizer", "fp32 main weights and moments"),
    ("layers_kept", "activations", "kept by the layers for backward, all microbatches in flight"),
    ("head_kept", "loss", "inputs of the head and probabilities of the vocabulary, kept for backward"),
)


def _stage(stages: StageBytes, i: int) -> StageMemory:
    size_of = partial(_bytes_of, stages, i)
    steps = bool(stages.steps[i, 0])
    gone = ("layers_kept", "head_kept") if steps else ()
    parts = [
        MemoryPart(name=name, level=MemoryLevel.THEORY, size_bytes=size_of(field), what=what)
        for field, name, what in _THEORY
        if field not in gone
    ]
    parts += _working(stages, i, steps)
    parts.append(
        _part("gaps", MemoryLevel.RESERVED, size_of("reserved") - size_of("allocated"), "held by the allocator, unused")
    )
    parts.append(_part("context", MemoryLevel.DEVICE, size_of("context"), "driver, libraries and NCCL's buffers"))
    moment = "optimizer step" if steps else "loss" if size_of("head_peak") > size_of("layer_peak") else "backward"
    shown = tuple(part for part in parts if part.size_bytes > 0)
    return StageMemory(stage=int(stages.device[i]), moment=moment, parts=shown)


def _bytes_of(stages: StageBytes, i: int, name: str) -> float:
    record = next(record_of for record_of in (stages.held, stages.kept, stages) if hasattr(record_of, name))
    return float(getattr(record, name)[i, 0])


def _working(stages: StageBytes, i: int, steps: bool) -> list[MemoryPart]:
    """Allocated bytes at the peak beyond theory."""
    size_of = partial(_bytes_of, stages, i)
    level, buffers = MemoryLevel.ALLOCATED, "communication buckets, transfers between stages, library workspaces"
    if steps:
        step = _part("optimizer step", level, size_of("step_peak"), "fp32 copies of the shard's gradients")
        return [step, _part("buffers", level, size_of("buffers"), buffers)]
    if size_of("head_peak") > size_of("layer_peak"):
        peak = _part("logits", level, size_of("head_peak"), "logits and their gradients beyond what is kept of them")
    else:
        what = "backward of the fullest layer, with what is computed again for it"
        peak = _part("layer at work", level, size_of("layer_peak"), what)
    whole = "whole weights and gradients of the layers at work, which ZeRO 3 shards"
    return [
        peak,
        _part("gathered weights", level, size_of("gathered"), whole),
        _part("placeholders", level, size_of("placeholders"), "stand-ins for weight gradients already added up"),
        _part("buffers", level, size_of("buffers"), buffers),
    ]


def _part(name: str, level: MemoryLevel, size_bytes: float, what: str) -> MemoryPart:
    return MemoryPart(name=name, level=level, size_bytes=size_bytes, what=what)
