"""The nouns of an attribution: parts of a run's time, and what a better run would not have spent."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sartor.cost.cost import Source
from sartor.operators import Attention, Gemm


class PartKind(Enum):
    """Where the time of a step goes; every instant belongs to one."""

    MATMUL = "matmul"
    SLOW_COMPUTE = "slow_compute"
    """Matrix multiplications and attention beyond the predicted time of their sizes."""
    SHAPE = "shape"
    """What a matrix multiplication loses by sizes that tensor cores or tiles do not divide."""
    TILES = "tiles"
    """What matrix multiplications spend at the edges of part-filled tiles and waves, at predicted speed."""
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    EMBEDDING = "embedding"
    MEMORY_BOUND = "memory_bound"
    UNFUSED = "unfused"
    """Memory-bound kernels one after another, beyond what one fused kernel would take."""
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    """Exposed: nothing computes beside it."""
    BUBBLE = "bubble"
    """Waiting for another pipeline stage: sends and receives beyond what their bytes take."""
    SLOW_LINK = "slow_link"
    """Exposed, and beyond what the links allow."""
    STRAGGLER = "straggler"
    """Exposed, waiting for a rank that computes longer."""
    COPIES = "copies"
    HOST_GAP = "host_gap"
    """Nothing runs: the device waits for the host."""
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePart:
    """One part of the mean step."""

    kind: PartKind
    seconds: float
    evidence: tuple[str, ...] = ()
    fix: str = ""
    """What to change, where the part is a loss."""
    gain_s: float = 0.0
    """Seconds per step that the change would save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Kernels of one kind that run one after another, in seconds since their step began."""

    lane: str
    """``compute`` or ``communication``; both may run at once."""
    kind: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedKernels:
    """All kernels of one operator and size: measured and predicted seconds of the whole span, and those with sizes
    padded where they are ragged."""

    operator: Gemm | Attention
    seconds: float
    predicted_s: float
    padded_s: float
    padded: str
    """The padded size; empty where nothing is ragged."""
    count: int
    unfilled_s: float = 0.0
    """Of ``predicted_s``, what part-filled tiles and waves take."""
    log_sigma: float = 0.0
    """Of the prediction."""
    source: Source = Source.ANALYTIC

    @property
    def name(self) -> str:
        """Kind and sizes, in words."""
        return self.operator.name

    @property
    def flops(self) -> float:
        return self.count * float(self.operator.flops)
