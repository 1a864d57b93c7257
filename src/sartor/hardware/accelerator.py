"""Accelerators as a template: tensor cores, vector cores, buffers, and memory stacks by generation.

The template is that of Wang et al., "Integrated Hardware Architecture and Device Placement Search" (PHAZE), ICML 2024,
made wider: lanes of vector cores apart from the array's width, private buffers of any size, memory in stacks, links.
docs/concepts/accelerator.md draws it and gives the source of each field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from functools import cache
from typing import Any

import numpy as np

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.operators import DType
from sartor.units import GIB, GIGA, KIB, MEGA, MIB, MICRO, Array, Floats, Ints, plain


class Memory(Enum):
    """Generations of off-chip memory."""

    HBM2 = "hbm2"
    HBM2E = "hbm2e"
    HBM3 = "hbm3"
    HBM3E = "hbm3e"
    HBM4 = "hbm4"
    LPDDR4X = "lpddr4x"
    LPDDR5 = "lpddr5"

    @property
    def stack(self) -> _MemoryStack:
        """One stack of this generation, from its standard and vendors."""
        return _stacks()[self.value]


@dataclass(frozen=True, slots=True, kw_only=True)
class _MemoryStack:
    """One stack: capacity, peak rate, energy of moving a bit, and the interface's width."""

    bytes: float
    bytes_per_s: float
    energy_pj_per_bit: float
    width_bits: int
    source: str
    uncertain: str = ""
    """Uncertain parts of the entry; empty if none."""


@cache
def _stacks() -> dict[str, _MemoryStack]:
    """Stacks by the generation's name."""
    table = packaged_toml("hardware", "memory.toml")
    return {
        name: _MemoryStack(bytes=row.pop("gib") * GIB, bytes_per_s=row.pop("gb_per_s") * GIGA, **row)
        for name, row in table.items()
    }


class Dataflow(Enum):
    """The operand that stays in the array while the others stream through it."""

    WEIGHT_STATIONARY = "weight_stationary"
    OUTPUT_STATIONARY = "output_stationary"
    INPUT_STATIONARY = "input_stationary"


SUSTAINED_SHARES = ("sustained_share", "sustained_hbm_share", "sustained_link_share")
"""What long work sustains of the peak rates of arrays, memory and links."""

IN_LONG_RUNS = {
    **dict.fromkeys(SUSTAINED_SHARES, 1.0),
    "run_factor": 1.0,
    "softmax_overlap": 1.0,
    "operator_start_s": 0.0,
}
"""Fields that part a chip in a long run from its datasheet, with their values in the published template."""

NODES_NM = (22, 16, 7, 5, 3)
"""Technology nodes of the area and energy models; 12 nm counts as 16 nm."""

PUBLISHED_CLOCK_HZ = 1050 * MEGA
"""Clock of the published template: 1.05 GHz (TPU v4; the public code says 1.05e6, reference/phaze.md sec. 10.1)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accelerator:
    """One chip. A field typed ``Ints`` or ``Floats`` may be an array: many candidates that broadcast together.

    A tensor core is ``array_rows`` x ``array_cols`` multiply-accumulators with a private buffer; weight-stationary,
    rows contract (k) and columns produce (n). A vector core is ``vector_lanes`` lanes with a private buffer. All share
    the global buffer, the memory stacks and the links.

    Raises ``InputError`` when a size is not positive and finite, a count is not whole, or a node is unknown.

    >>> Accelerator.from_template(num_tensor_cores=8, num_vector_cores=2, width=128, depth=128, global_buffer_mib=128)
    ... # doctest: +ELLIPSIS
    Accelerator(name='', num_tensor_cores=8, ...)
    """

    name: str = ""
    num_tensor_cores: Ints
    array_rows: Ints
    array_cols: Ints
    num_vector_cores: Ints
    vector_lanes: Ints
    tensor_core_sram_bytes: Ints
    vector_core_sram_bytes: Ints
    global_buffer_bytes: Ints
    clock_hz: Floats
    num_dies: Ints = 1
    """Compute dies of the package, taken as equal: all cores, lanes and buffers together are spread over them."""
    num_io_dies: Ints = 0
    """Dies under the compute dies that carry the global buffer, memory interfaces, links and host interface (four in
    MI300X); 0: each compute die carries its share."""
    io_node_nm: int = 0
    """Technology node of the I/O dies; 0: ``node_nm``."""
    die_to_die_bytes_per_s: Floats = 0.0
    """Link of one compute die to the rest of the package, one direction: 5 TB/s in B200 (NVIDIA, 2024)."""
    memory: Memory = Memory.HBM2
    num_stacks: Ints = 4
    stack_bytes: Floats = 0.0
    """Capacity of one stack; 0: that of its generation."""
    stack_bytes_per_s: Floats = 0.0
    """Peak rate of one stack; 0: that of its generation."""
    num_links: Ints = 6
    link_bytes_per_s: Floats = 50 * GIGA
    """One link, one direction."""
    link_latency_s: Floats = 1 * MICRO
    scale_up_devices: Ints = 0
    """Neighbours that the links join (a node, a rack, a pod); 0: all devices."""
    scale_out_bytes_per_s: Floats = 0.0
    """Bandwidth of one device to devices beyond ``scale_up_devices``, one direction."""
    scale_out_latency_s: Floats = 4 * MICRO
    """Latency of one hop in that network: InfiniBand's in ``hardware.cluster_catalog``."""
    dtype: DType = DType.BF16
    """Widest operand the arrays multiply in one cycle; sums are kept in ``accumulator_bytes``."""
    packed_dtype: DType | None = None
    """Narrowest type that is packed: as many operands as fit in one ``dtype`` operand are multiplied in its place and
    added (two fp8 or four fp4 for one of 16 bits, as on H100, B200 and MI355X). None: no packing."""
    accumulator_bytes: float = 4.0
    registers_bytes_per_mac: float = 32.0
    registers_bytes_per_lane: float = 12.0
    bank_bytes_per_cycle: Floats = 128.0
    """Bandwidth of one MiB of the global buffer per cycle: 5120 bytes of 40 MiB on A100 (NVIDIA A100 whitepaper, 2020,
    p. 29). A buffer under 1 MiB counts as one bank."""
    control_share: float = 0.25
    """Control area of a lane relative to a GPU's, which schedules many threads; a core scheduled ahead of time needs
    less. A quarter is an assumption."""
    special_cycles: float = 0.0
    """Lanes over units for exponentials, divisions and roots that work beside them: 128 over 16 on H100. 0: no such
    units, in the published template, whose lanes take 10 cycles for an exponential."""
    backward_passes: int = 1
    """Passes of attention's backward: two where one walks queries for the gradients of keys and values, the other keys
    for those of queries, as kernels of TPUs do (jax.experimental.pallas); one pass adds to the latter from many cores.
    1 in the published template, which has no fused attention."""
    buffer_add_share: float = 0.0
    """Share of the global buffer's rate at which it adds to what it holds: a half in GPUs, whose atomic sums are read
    and written. 0: what is added is not counted, as in the published template."""
    load_bytes: float = 0.0
    """Bytes of an operand's row that a core loads at once: rows that are no multiple of it arrive in pieces (16 on
    GPUs of NVIDIA). 0: any row, in the published template, whose operands are laid out for the arrays."""
    sustained_share: float = 1.0
    """Share of the arrays' peak rate that long matrix multiplications sustain, since clocks fall under full load and
    arrays wait for operands. 1 in the published template."""
    sustained_hbm_share: float = 1.0
    """Share of the memory's peak rate that streams sustain, since rows are opened and refreshed between bursts. 1 in
    the published template."""
    sustained_link_share: float = 1.0
    """Share of the links' rate (and of the network's beyond them) that large collectives sustain: headers, unequal
    arrival, the library's copies. 1 in the published template."""
    run_factor: float = 1.0
    """Seconds of a layer in a training run over those of its schedule: gaps between operators, unequal arrival. 1 in
    the published template."""
    softmax_overlap: float = 1.0
    """Share of fused attention's softmax that runs beside its products: a core that holds one block of scores at a time
    has none, as softmax stands between two products. 1 in the published template, whose softmax is fused with none."""
    operator_start_s: float = 0.0
    """Time from one operator's end to the next one's first result: launch, first operands, last results. 0 in the
    published template, which is scheduled ahead of time."""
    node_nm: int = 22
    dataflow: Dataflow = Dataflow.WEIGHT_STATIONARY
    title: str = ""
    note: str = ""
    confidence: str = "high"
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name (or ``all``) -> document and date."""

    @property
    def label(self) -> str:
        """Name for people."""
        return self.name or "this chip"

    def __post_init__(self) -> None:
        for name in _COUNTS:
            _require(name, getattr(self, name), whole=True)
        _require("backward_passes", self.backward_passes, whole=True)
        for name in _RATES:
            _require(name, getattr(self, name))
        for name in MAY_BE_NONE:
            whole = name in ("num_links", "scale_up_devices", "num_io_dies")
            _require(name, getattr(self, name), positive=False, whole=whole)
        if np.any((np.asarray(self.scale_up_devices) > 0) & (np.asarray(self.scale_out_bytes_per_s) <= 0)):
            must = f"must be above 0 where links join {np.max(self.scale_up_devices)} devices alone"
            raise InputError("scale_out_gb_per_s", 0, must, "50")
        for name in (*SUSTAINED_SHARES, "softmax_overlap", "buffer_add_share"):
            if np.max(getattr(self, name)) > 1:
                raise InputError(name, getattr(self, name), "must be at most 1", "1")
        several = np.asarray(self.num_dies) + np.asarray(self.num_io_dies)
        if np.any((several > 1) & (np.asarray(self.die_to_die_bytes_per_s) <= 0)):
            must = f"must be above 0 where {np.max(several)} dies share a package"
            raise InputError("die_to_die_gb_per_s", 0, must, "5000")
        for name in ("node_nm", "io_node_nm") if self.io_node_nm else ("node_nm",):
            if (node := getattr(self, name)) not in NODES_NM:
                raise InputError(name, node, "no area or energy is known for it", _near_node(node))

    @classmethod
    def from_template(
        cls,
        *,
        num_tensor_cores: Ints,
        num_vector_cores: Ints,
        width: Ints,
        depth: Ints,
        global_buffer_mib: Floats,
        vector_lanes: Ints | None = None,
        **others: Any,
    ) -> Accelerator:
        """The published template's point (n_tc, n_vc, w, d, w_vc, GLB): arrays of ``depth`` rows and ``width`` columns,
        as many lanes as columns unless said otherwise, private buffers of max(1 KiB, 16 w d) and max(1 KiB, 16 w_vc)
        bytes, 1.05 GHz, 16 bits, 22 nm (reference/phaze.md sec. 3). ``others`` are fields of ``Accelerator``."""
        lanes = width if vector_lanes is None else vector_lanes
        defaults: JsonDict = {
            "tensor_core_sram_bytes": template_tensor_core_sram(width, depth),
            "vector_core_sram_bytes": template_vector_core_sram(lanes),
            "clock_hz": PUBLISHED_CLOCK_HZ,
        }
        with np.errstate(over="ignore"):  # infinite bytes are refused like too many
            buffer_bytes = np.asarray(global_buffer_mib) * MIB
        return cls(
            num_tensor_cores=num_tensor_cores,
            num_vector_cores=num_vector_cores,
            array_rows=depth,
            array_cols=width,
            vector_lanes=lanes,
            global_buffer_bytes=_whole(buffer_bytes),
            **{**defaults, **others},
        )

    @property
    def hbm_bytes(self) -> Floats:
        """Capacity of all stacks."""
        return self.num_stacks * _or_generation(self.stack_bytes, self.memory.stack.bytes)

    @property
    def hbm_bytes_per_s(self) -> Floats:
        """Peak rate of all stacks."""
        return self.num_stacks * _or_generation(self.stack_bytes_per_s, self.memory.stack.bytes_per_s)

    @property
    def streamed_bytes_per_s(self) -> Floats:
        """What streams sustain of the memory's peak rate."""
        return self.hbm_bytes_per_s * self.sustained_hbm_share

    @property
    def peak_flops_per_s(self) -> Floats:
        """2 FLOP per multiply-accumulator and cycle."""
        return 2.0 * self.num_tensor_cores * self.array_rows * self.array_cols * self.clock_hz

    def packing(self, dtype: DType) -> int:
        """Number of operands of a type that are multiplied in the place of one ``dtype`` operand."""
        narrowest = _bits(self.packed_dtype or self.dtype)
        return max(_bits(self.dtype) // _bits(dtype), 1) if _bits(dtype) >= narrowest else 1

    def multiplies(self, dtype: DType) -> bool:
        """Whether the arrays support a type: their own, or one that they pack."""
        return _bits(self.packed_dtype or self.dtype) <= _bits(dtype) <= _bits(self.dtype)

    @property
    def tensor_port_bytes_per_s(self) -> Floats:
        """Bandwidth of one tensor core to or from the global buffer: one element per row and column and cycle."""
        return (1.0 * self.array_rows + self.array_cols) * self.dtype.bytes * self.clock_hz

    @property
    def vector_port_bytes_per_s(self) -> Floats:
        """Bandwidth of one vector core to and from the global buffer: two operands and a result per lane."""
        return 3.0 * self.vector_lanes * self.dtype.bytes * self.clock_hz

    @property
    def global_buffer_bytes_per_s(self) -> Floats:
        """Bandwidth of the global buffer to all cores: that of its banks, or of the links to I/O dies that carry it."""
        banks = np.maximum(np.asarray(self.global_buffer_bytes) / MIB, 1.0)
        rate = banks * self.bank_bytes_per_cycle * self.clock_hz
        if self.stacked.any():
            rate = np.where(self.stacked, np.minimum(rate, self.num_dies * self.die_to_die_bytes_per_s), rate)
        return float(rate) if np.ndim(rate) == 0 else rate

    @property
    def stacked(self) -> Array:
        """Whether compute dies stand on I/O dies."""
        return np.asarray(self.num_io_dies) > 0

    @property
    def exchanged_bytes_per_s(self) -> Floats:
        """Rate at which every compute die gets all of an operand of which it has its own share, from the others beside
        it; infinite for one die, and over I/O dies, which hold what all of them read."""
        dies = np.asarray(self.num_dies, dtype=np.float64)
        with np.errstate(divide="ignore", invalid="ignore"):
            rate = np.where(self.stacked | (dies == 1), np.inf, self.die_to_die_bytes_per_s * dies / (dies - 1))
        return float(rate) if rate.ndim == 0 else rate

    @property
    def delivered_bytes_per_s(self) -> Floats:
        """Bandwidth between the global buffer and all cores: their ports, or the banks if these are slower."""
        tensor, vector = self.tensor_port_bytes_per_s, self.vector_port_bytes_per_s
        ports = self.num_tensor_cores * tensor + self.num_vector_cores * vector
        rate = np.minimum(ports, self.global_buffer_bytes_per_s)
        return float(rate) if np.ndim(rate) == 0 else rate

    @property
    def network_bytes_per_s(self) -> Floats:
        """All links, one direction."""
        return 1.0 * self.num_links * self.link_bytes_per_s

    def reach(self, devices: Ints) -> tuple[Floats, Floats]:
        """Sustained bandwidth and latency of a hop in a ring of ``devices`` neighbours: those of the links if they join
        them all, else those of the network beyond, which some hop of every ring must cross."""
        inside = (np.asarray(self.scale_up_devices) == 0) | (np.asarray(devices) <= self.scale_up_devices)
        rate = np.where(inside, self.network_bytes_per_s, self.scale_out_bytes_per_s)
        rate = np.where((rate == 0) & (np.asarray(devices) <= 1), _NOTHING_TO_SEND, rate)
        return plain(rate * self.sustained_link_share), plain(
            np.where(inside, self.link_latency_s, self.scale_out_latency_s)
        )

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the candidates: ``()`` for one accelerator."""
        return np.broadcast_shapes(*(np.shape(getattr(self, name)) for name in ARRAY_FIELDS))


def template_tensor_core_sram(width: Ints, depth: Ints) -> Ints:
    """max(1 KiB, 16 w d) bytes (reference/phaze.md sec. 3)."""
    return _whole(np.maximum(KIB, 16 * np.asarray(width) * np.asarray(depth)))


def template_vector_core_sram(lanes: Ints) -> Ints:
    """max(1 KiB, 16 w_vc) bytes (reference/phaze.md sec. 3)."""
    return _whole(np.maximum(KIB, 16 * np.asarray(lanes)))


_NOTHING_TO_SEND = 1e18
"""Bandwidth of a ring of one chip without links [bytes/s]: it sends nothing, so that any high rate gives its time."""
_COUNTS = (
    "num_tensor_cores",
    "array_rows",
    "array_cols",
    "num_vector_cores",
    "vector_lanes",
    "tensor_core_sram_bytes",
    "vector_core_sram_bytes",
    "global_buffer_bytes",
    "num_stacks",
    "num_dies",
)
_RATES = (
    "clock_hz",
    "link_bytes_per_s",
    "accumulator_bytes",
    "bank_bytes_per_cycle",
    "control_share",
    *SUSTAINED_SHARES,
    "run_factor",
)
ARRAY_FIELDS = (
    *_COUNTS,
    "clock_hz",
    "stack_bytes",
    "stack_bytes_per_s",
    "num_links",
    "link_bytes_per_s",
    "link_latency_s",
    "scale_up_devices",
    "scale_out_bytes_per_s",
    "scale_out_latency_s",
    "bank_bytes_per_cycle",
    "num_io_dies",
    "die_to_die_bytes_per_s",
)
"""Fields that may be arrays."""
MAY_BE_NONE = (
    *(n for n in ARRAY_FIELDS if n not in (*_COUNTS, *_RATES)),
    "softmax_overlap",
    "operator_start_s",
    "load_bytes",
)
"""Fields that may be 0: none of it, or that of the memory's own stacks."""
FIELD_NAMES = tuple(f.name for f in fields(Accelerator))


def _bits(dtype: DType) -> int:
    """Bits of one element, without its share of a block's scale."""
    return int(8 * dtype.bytes)


def _require(name: str, value: Any, *, positive: bool = True, whole: bool = False) -> None:
    if type(value) in (int, float) and 0 < value < np.inf and not (whole and value % 1):
        return  # most are plain numbers
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise InputError(name, value, "must be a number or an array of numbers")
    worst = array.min() if array.size else 0
    if not np.isfinite(array).all() or worst < 0 or (positive and worst <= 0):
        bad = value if array.ndim == 0 else float(worst)
        raise InputError(name, bad, f"must be finite and {'above' if positive else 'not below'} 0")
    if whole and array.dtype.kind == "f" and (array != np.floor(array)).any():
        bad = float(array[array != np.floor(array)].flat[0]) if array.ndim else float(array)
        raise InputError(name, bad, "must be whole", f"{np.floor(bad):.0f} or {np.ceil(bad):.0f}")


def _near_node(node: Floats) -> str:
    """The two nodes nearest in ratio."""
    is_number = isinstance(node, int | float) and np.isfinite(node) and node > 0
    nearest = sorted(NODES_NM, key=lambda n: max(n / node, node / n)) if is_number else NODES_NM
    return " or ".join(str(n) for n in nearest[:2])


def _or_generation(stated: Floats, generation: float) -> Floats:
    rate = np.where(np.asarray(stated) > 0, stated, generation)
    return float(rate) if rate.ndim == 0 else rate


def _whole(value: object) -> Ints:
    array = np.asarray(value)
    if (over := np.abs(array) >= 2.0**62).any():
        must_be = f"must be below {2**62 // MIB:,}, which is 4 EiB"
        raise InputError("global_buffer_mib", float(array[over].flat[0] / MIB), must_be)
    rounded = array.astype(np.int64)
    if (rounded != array).any():
        raise InputError("global_buffer_mib", float(array.flat[0] / MIB), "must be a whole number of bytes")
    return int(rounded) if rounded.ndim == 0 else rounded
