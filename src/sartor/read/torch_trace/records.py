"""What a trace consists of: one record for every operator PyTorch dispatched, without torch's own types."""

from __future__ import annotations

from dataclasses import dataclass, field

from sartor.json_types import JsonDict


@dataclass(slots=True, kw_only=True)
class Read:
    """A tensor that an operator read: who made it (a record's index, -1: a parameter or input) and how large it is."""

    producer: int
    storage: int
    """Tells tensors of one producer apart, and parameters from each other."""
    shape: tuple[int, ...]
    bytes: float
    """Of the elements it really has: expanded dimensions are read once."""
    param: str = ""
    varies: bool = False
    """Whether it depends on the model's inputs: if not, it does not grow with the batch."""


@dataclass(slots=True, kw_only=True)
class Record:
    """One dispatched operator. ``path`` is the module it ran in; of backward operators the module of the forward one.

    ``facts`` are what its kind needs beside shapes: strides of a product's operands, heads of an attention.
    """

    call: str
    path: str
    backward: bool
    reads: tuple[Read, ...]
    outputs: tuple[tuple[int, ...], ...]
    output_bytes: float
    dtype: str
    facts: JsonDict = field(default_factory=dict)
    twin: int = -1
    """Of a backward operator, the record of the forward one."""

    @property
    def varies(self) -> bool:
        return any(read.varies for read in self.reads)
