"""The mechanisms of a training step, one file each, in the order in which they act and are reported.

`block_times`, `stage_seconds`, `pipeline` and `step` fold over the list, each with its own hook; `timeline` walks it
for one plan. CONTRIBUTING.md says how to add one.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules

from sartor.step.mechanisms.compute import COMPUTING
from sartor.step.mechanisms.context_exchange import CONTEXT_EXCHANGE
from sartor.step.mechanisms.expert_exchange import EXPERT_EXCHANGE
from sartor.step.mechanisms.gradient_reduction import GRADIENT_REDUCTION
from sartor.step.mechanisms.host_launches import HOST_LAUNCHES
from sartor.step.mechanisms.mechanism import Mechanism, StepPart
from sartor.step.mechanisms.offload import OFFLOADING
from sartor.step.mechanisms.optimizer import OPTIMIZER_STEP
from sartor.step.mechanisms.parameter_gathers import PARAMETER_GATHERS
from sartor.step.mechanisms.pipeline_bubble import PIPELINE_BUBBLE
from sartor.step.mechanisms.pipeline_transfers import PIPELINE_TRANSFERS
from sartor.step.mechanisms.recompute import RECOMPUTING
from sartor.step.mechanisms.sharded_weights import SHARDED_WEIGHTS
from sartor.step.mechanisms.tensor_traffic import TENSOR_TRAFFIC
from sartor.step.mechanisms.waiting import WAITING

_IN_ORDER = (
    COMPUTING,
    RECOMPUTING,
    TENSOR_TRAFFIC,
    PIPELINE_BUBBLE,
    PIPELINE_TRANSFERS,
    SHARDED_WEIGHTS,
    PARAMETER_GATHERS,
    GRADIENT_REDUCTION,
    EXPERT_EXCHANGE,
    CONTEXT_EXCHANGE,
    OPTIMIZER_STEP,
    HOST_LAUNCHES,  # after all that a block does: launches hide behind it
    OFFLOADING,
    WAITING,  # after all that a device does: devices wait for the slowest
)


def _others() -> Iterator[Mechanism]:
    """The mechanisms of files in this folder that the list does not name, by the names of their files."""
    for module in (import_module(f"{__name__}.{file.name}") for file in iter_modules(__path__)):
        values = vars(module).values()
        yield from (value for value in values if isinstance(value, Mechanism) and value not in _IN_ORDER)


MECHANISMS: tuple[Mechanism, ...] = (*_IN_ORDER[:-1], *_others(), WAITING)
"""Every mechanism; one without a place in the list acts after all but the waiting for the slowest device."""


def parts() -> tuple[StepPart, ...]:
    """The parts of a step, each once, in order."""
    return tuple({mechanism.part.key: mechanism.part for mechanism in MECHANISMS}.values())


def part_words() -> dict[str, str]:
    """What reports call each part, by its key."""
    return {part.key: part.words for part in parts()}


def acting(level: str) -> tuple[Mechanism, ...]:
    """The mechanisms that have the hook ``level`` (``at_block``, ...)."""
    return tuple(mechanism for mechanism in MECHANISMS if getattr(mechanism, level) is not None)
