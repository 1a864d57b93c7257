"""Attribution of a run's time: its parts, and the losses that could be avoided."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sartor.cost.cost import Source
from sartor.operators import Attention, Gemm


class PartKind(Enum):
    """Where the time of a step goes; every instant is counted once."""

    MATMUL = "matmul"
    SLOW_COMPUTE = "slow_compute"
    """Time of matrix multiplications and attention beyond the prediction for their sizes."""
    SHAPE = "shape"
    """Loss of a matrix multiplication with sizes that are not multiples of tensor-core or tile sizes."""
    TILES = "tiles"
    """Loss of matrix multiplications in partly filled tiles and waves, at predicted speed."""
    ATTENTION = "attention"
    CONVOLUTION = "convolution"
    EMBEDDING = "embedding"
    MEMORY_BOUND = "memory_bound"
    UNFUSED = "unfused"
    """Memory-bound kernels one after another, beyond what one fused kernel would take."""
    RECOMPUTE = "recompute"
    OPTIMIZER = "optimizer"
    COMMUNICATION = "communication"
    """Exposed communication: no compute runs beside it."""
    BUBBLE = "bubble"
    """Waiting for another pipeline stage: sends and receives beyond their transfer time."""
    SLOW_LINK = "slow_link"
    """Exposed communication beyond what the links need."""
    STRAGGLER = "straggler"
    """Exposed communication spent waiting for a slower rank."""
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
    """What to change, if the part is a loss."""
    gain_s: float = 0.0
    """Seconds per step that the change would save."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive kernels of one kind, in seconds since the start of their step."""

    lane: str
    """``compute`` or ``communication``; both may run at once."""
    kind: str
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedKernels:
    """All kernels of one operator and size: measured and predicted seconds over the whole trace, and predicted seconds
    with sizes padded to multiples."""

    operator: Gemm | Attention
    seconds: float
    predicted_s: float
    padded_s: float
    padded: str
    """The padded size; empty if no padding is needed."""
    count: int
    unfilled_s: float = 0.0
    """The part of ``predicted_s`` spent in partly filled tiles and waves."""
    log_sigma: float = 0.0
    """Uncertainty of the prediction."""
    source: Source = Source.ANALYTIC

    @property
    def name(self) -> str:
        """Kind and sizes, in words."""
        return self.operator.name

    @property
    def flops(self) -> float:
        return self.count * float(self.operator.flops)
