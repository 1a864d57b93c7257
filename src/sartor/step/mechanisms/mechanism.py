"""What a mechanism of the step is: where it acts, what it costs there, and the part of the step it is counted under.

A mechanism acts at one or more levels, each a hook. All arrays; plans are the last axis.

- ``at_block(block, total)``: `BlockShare` that it adds to one block's forward and backward of a microbatch; ``total``
  is what the mechanisms before it in the list add up to.
- ``at_stage(stage)``: `StageShare` that it adds to a microbatch on every distinct stage; None where it does nothing.
- ``at_pipeline(pipeline)``: seconds it adds to all microbatches' way through the pipeline [work rows].
- ``at_step(work, parts)``: seconds once a step [plans]; ``parts`` are the parts of the step so far, by key.

``limits`` are what it needs or forbids: a search removes the plans that break a `Condition`, lint and the writers of
launch files report it; ``job_limits`` are the same of a job under any plan, refused before the search. What a trainer
can do is a field of its record, which both read.

`sartor.step.mechanisms.MECHANISMS` lists them in order. The step, its timeline, and every report of its parts read that
list, so a new mechanism is one file and one line (CONTRIBUTING.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.errors import InputError
from sartor.model.training import Trainer, TrainingJob
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.results import BlockTimes
from sartor.units import Array, FloatArray, Floats

if TYPE_CHECKING:
    from sartor.step.pipeline import Pipelined
    from sartor.step.stage_seconds import StageSeconds, StepWork


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPart:
    """A part of the step's seconds, as every report names it."""

    key: str
    """In JSON, and in ``StepEstimate.parts``: ``tp_s``."""
    words: str
    of_operators: bool = False
    """Scales with the seconds of a microbatch's operators."""
    network: bool = False
    """As uncertain as the network's times."""
    log_sigma: float = 0.0
    """Standard deviation of ln(measured/predicted) of its own, if it is not the kernels' or the network's."""


COMPUTE = StepPart(key="compute_s", words="compute", of_operators=True)
"""What the slowest stage computes: its busy time that no other part claims, recomputation included."""
TENSOR = StepPart(key="tp_s", words="tensor-parallel communication", of_operators=True)
BUBBLE = StepPart(key="pp_bubble_s", words="pipeline bubble", of_operators=True)
TRANSFERS = StepPart(key="pp_transfer_s", words="pipeline transfers", network=True)
REPLICAS = StepPart(key="dp_exposed_s", words="exposed data-parallel communication", network=True)
EXPERTS = StepPart(key="ep_s", words="expert-parallel communication", of_operators=True)
CONTEXTS = StepPart(key="cp_s", words="context-parallel communication", of_operators=True)
OPTIMIZER = StepPart(key="optimizer_s", words="optimizer step", log_sigma=0.2)
"""Uncertainty assumed, from the gap between fused and unfused steps."""
OVERHEAD = StepPart(key="overhead_s", words="kernel launches, jitter, fixed costs")


Rows = dict[str, Array]
"""Columns of equal length by axis of a plan; one entry per candidate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """What a plan must satisfy: ``ok(rows)`` is True where a row does; ``reason`` is what is wrong elsewhere."""

    reason: str
    ok: Callable[[Rows], Array]
    of_search: bool = False
    """The search alone wants it, to leave out plans of no use; a run without it goes on."""


Limits = Iterator[Condition]


def num_microbatches(job: TrainingJob, rows: Rows) -> Array:
    """Microbatches of one pipeline in one step."""
    return np.asarray(job.global_batch_size // (rows["dp"] * rows["microbatch_size"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockWork:
    """One block (a kind of layer, the embedding, the head) in a microbatch, by distinct rows of plans."""

    times: BlockTimes
    trainer: Trainer
    c: TrainingCoefficients
    """With the block's own ``compute_factor``."""
    overlapped: bool
    """The schedule runs the experts' exchange beside another microbatch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShare:
    """Seconds added to a block for one microbatch."""

    forward_s: Floats = 0.0
    backward_s: Floats = 0.0
    """Without weight gradients."""
    wgrad_s: Floats = 0.0
    again_s: Floats = 0.0
    """Added where the whole block is computed again."""

    @property
    def seconds(self) -> Any:
        return self.forward_s + self.backward_s + self.wgrad_s

    def __add__(self, other: BlockShare) -> BlockShare:
        return BlockShare(
            forward_s=self.forward_s + other.forward_s,
            backward_s=self.backward_s + other.backward_s,
            wgrad_s=self.wgrad_s + other.wgrad_s,
            again_s=self.again_s + other.again_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageShare:
    """Seconds added to a microbatch on distinct stages [stages, work rows]."""

    forward_s: Floats = 0.0
    backward_s: Floats = 0.0
    first_s: Floats = 0.0
    """Exposed before a stage's first microbatch, once a step; ``last_s`` after its last one."""
    last_s: Floats = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mechanism:
    """One way in which a step takes time."""

    name: str
    part: StepPart
    fields: tuple[str, ...] = ()
    """Fields of the plan and the job, and switches of the trainer, that it depends on."""
    page: str = "concepts/training-step.md"
    """The docs page with its formula and sources."""
    hidden_behind: tuple[str, ...] = ()
    """Keys of the parts that it can run beside: only what they do not hide is counted."""
    event: str = ""
    """Its name on the timeline, if it acts at the step."""
    before: bool = False
    """Acts before a step's first microbatch; else after its last one."""
    limits: Mapping[str, Callable[[TrainingJob], Limits]] = field(default_factory=dict)
    """Conditions by the axis they are checked with: the last one they read. What concerns two mechanisms stands in the
    file of the later axis."""
    job_limits: Callable[[TrainingJob], Iterator[InputError]] | None = None
    """What no plan of the job can satisfy: its field, what must hold, and the nearest value that does."""
    at_block: Callable[[BlockWork, BlockShare], BlockShare] | None = None
    at_stage: Callable[[StageSeconds], StageShare | None] | None = None
    at_pipeline: Callable[[Pipelined], FloatArray] | None = None
    at_step: Callable[[StepWork, Mapping[str, FloatArray]], FloatArray] | None = None
    on_ranks: Callable[[StepWork], FloatArray] | None = None
    """For the timeline: seconds on every pipeline rank [ranks, plans] of ``at_step``, if ranks differ; the step waits
    for those that other ranks' work does not hide."""
