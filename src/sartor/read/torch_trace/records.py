"""The records of a trace: one for every operator PyTorch dispatched, without torch's own types."""

from __future__ import annotations

from dataclasses import dataclass, field

from sartor.json_types import JsonDict
from sartor.operators import Pass


@dataclass(slots=True, kw_only=True)
class Read:
    """A tensor that an operator read: its producer (a record's index; -1: a parameter or input) and its size."""

    producer: int
    storage: int
    """Distinguishes tensors of one producer, and parameters from each other."""
    shape: tuple[int, ...]
    bytes: float
    """Bytes of the elements in memory: expanded dimensions are read once."""
    tensor: tuple[int, int] = (0, -1)
    """Its memory: the storage, and the record that allocated it."""
    whole_bytes: float = 0.0
    """Bytes of that memory, of which this may be a view."""
    param: str = ""
    held: bool = False
    """Whether it is a parameter or a buffer."""
    varies: bool = False
    """Whether it depends on the model's inputs; only then it grows with the batch."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One dispatched operator. ``path`` is the module it ran in; for a backward operator, that of the forward one.

    ``facts`` are what its kind needs besides shapes: strides of a product's operands, heads of an attention.
    """

    call: str
    path: str
    pass_: Pass
    """Forward, backward or recompute."""
    reads: tuple[Read, ...]
    outputs: tuple[tuple[int, ...], ...]
    output_bytes: float
    dtype: str
    facts: JsonDict = field(default_factory=dict)
    twin: int = -1
    """For a backward operator, the index of the forward record."""

    @property
    def backward(self) -> bool:
        return self.pass_ is Pass.BACKWARD

    @property
    def varies(self) -> bool:
        return any(read.varies for read in self.reads)


@dataclass(slots=True, kw_only=True)
class Saved:
    """A tensor that autograd keeps until backward: the module that kept it first, its producer, bytes of its memory."""

    path: str
    producer: int
    bytes: float
    varies: bool
