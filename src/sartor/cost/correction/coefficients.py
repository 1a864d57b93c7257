"""What is learned of a device, family by family.

Coefficients are dimensionless (shares of a datasheet rate) or seconds, so that they carry over to a relative with other
rates.

The package's tables of them: a file per device and dtype, and what is assumed of generations.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, TypeAlias, TypeVar

from sartor.json_types import JsonDict, JsonMap
from sartor.units import MIB

SCALE_BLOCK = 128
"""Side of a weight block with one scale in block-scaled fp8 (DeepSeek-V3, arXiv 2412.19437, sec. 3.3.2)."""


FRESH_BYTES = 32 * MIB
"""A result larger than this comes from fresh pages each time: the greatest size that glibc's allocator keeps for reuse
(DEFAULT_MMAP_THRESHOLD_MAX, 4 * 1024 * 1024 * sizeof(long); mallopt(3), read 2026-11-21)."""


RAGGED = 16
"""Columns of a result that aiter's fast kernels on MI355X write together: 32 bytes."""


COOPERATIVE, ADDING = 16, 64
"""Rows and columns of a result that one block of such a kernel computes, and the multiple of columns from which on
blocks add to results in memory (rows of MI308X: 32, 100, 160 and 200 columns are never theirs)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmCoefficients:
    """What the GEMM model needs to know about a device and dtype; symbols and fit in docs/concepts/gemm.md."""

    tiles: tuple[tuple[int, int, float], ...]
    """Output tiles (tile_m, tile_n) a library chooses from, and the share of peak each sustains in its main loop."""
    max_split: float = 16.0
    """Most parts k is split into so that blocks fill the SMs."""
    step_bytes: int = 128
    """Contiguous bytes of k that one main-loop step covers."""
    feed_bytes_per_clock: float = 64.0
    """Operand bytes one SM can take in per cycle of the boost clock."""
    step_s: float = 0.0
    """Least duration of one main-loop step (latency when nothing hides it)."""
    wave_s: float = 1.5e-6
    """Pipeline fill of one wave."""
    tile_s: float = 1.0e-6
    """Epilogue of one wave of 128 x 256 tiles; smaller tiles in proportion."""
    launch_s: float = 2.0e-6
    """From one kernel's end to the next one's start in graph replay."""
    split_s: float = 1.5e-6
    """Extra fixed cost of a split GEMM's reduction."""
    split_rate: float = 3.0
    """Rate at which partial sums are exchanged, in units of the streaming rate (they stay in L2)."""
    split_columns: float = 0.0
    """Columns of which n must be a multiple for k to be split, as the kernels that split it take no others; 0: any."""
    whole_columns: bool = False
    """Whether a tile's columns must divide n, as kernels write whole tiles; if none of the menu does, all are taken."""
    stream_k_cost: float = 0.0
    """Extra main-loop time where all steps are dealt evenly to the SMs (stream-K)."""
    stream_k_fills: float = 0.0
    """Fills and epilogues that this adds to those of the waves. 0: k is split within one wave only (split-K)."""
    hbm_share: float = 0.9
    """Share of HBM bandwidth a GEMM streams at."""
    write_cost: float = 1.5
    """Cost of a byte written over one read."""
    overlap: float = 0.15
    """Share of the lesser of compute and memory time that is not hidden behind the greater."""
    l2_share: float = 0.0
    """Share of L2 in which the first operand (activations) is found on arrival."""
    weight_copies: float = 0.0
    """Copies of the second operand that short runs turn through: where all of them fit in L2 they are read from there.
    0: it always comes from memory."""
    l2_rate: float = 0.3
    """Rate at which L2 is read, over 64 bytes per SM and cycle."""
    copies: float = 0.0
    """Copies of operands and result that short runs turn through: where all of them fit in the memory-side cache they
    are read there. 0: always from memory."""
    turned_share: float = 1.0
    """Share of memory's time that bytes found in the memory-side cache take."""
    turned_step: float = 1.0
    """Share of ``step_s`` that a step takes whose operands are found there."""
    out_part: float = 0.0
    """Part of L2 in which a result stays: so many of its bytes are written at L2's rate. 0: all at memory's."""
    quantize_s: float = 0.0
    """Launch of the kernel that narrows the first operand before the GEMM; 0 where there is none."""
    quantize_more_s: float = 0.0
    """Added to that launch with many elements: of three frameworks one narrows few elements soonest, another many."""
    quantize_half: float = 1e6
    """Elements at which half of that is added."""
    quantize_bytes: float = 0.0
    """Traffic of that kernel per element of the first operand (read 2 bytes, write 1: 3)."""
    quantize_pace: float = 1.0
    """Factor on the time per byte of that kernel, if the SMs of a relative set its speed instead of memory."""
    pack_tn: float = 0.0
    """Traffic of copying the second operand into a kernel's blocks before the GEMM, per element, in layout TN; 0 if
    kernels read operands in place. CPU libraries copy."""
    pack_nn: float = 0.0
    """The same of NN and NT."""
    pack_nt: float = 0.0
    """The same for the first operand of NT, which is not contiguous along its rows."""
    pack_columns: float = 0.0
    """Columns of the result that one copy of NT's first operand serves; wider ones copy it again. 0: one for all."""
    fresh_cost: float = 0.0
    """Traffic of a result in newly allocated pages (over ``FRESH_BYTES`` on a host), per byte, in addition to its
    write."""
    sub_block_s: float = 0.0
    """Least time of a block-scaled GEMM with k under one block (``SCALE_BLOCK``) or n under half of one, with an x86
    host: the fast kernels refuse it and what runs instead is bound by the host. Median of such rows."""
    sub_block_log_sigma: float = 0.25
    """Standard deviation of ln(measured/predicted) of those."""
    half_block_s: float = 0.0
    """The same where n is half a block and more: another kernel, bound by the host as well."""
    half_block_few_s: float = 0.0
    """The same of fewer than 32 rows, which run a third kernel on Hopper."""
    half_block_log_sigma: float = 0.25
    input_penalty: tuple[float, ...] = (1.22, 1.22, 0.41, 0.41, 0.05, 0.01, 0.01, 0.0)
    """Extra main-loop time per input operand, by alignment of its contiguous length: 1, 2, 4, ..., 128 bytes."""
    output_penalty: tuple[float, ...] = (0.44, 0.44, 0.15, 0.15, 0.01, 0.0, 0.0, 0.0)
    coarse_share: float = 0.0
    """Share of the GEMMs whose first operand is aligned to 16 bytes only that take the fastest coarse tile
    (``coarse_tiles``) instead of the fastest: libraries have fewer kernels for those. 0: not measured."""
    ragged: tuple[tuple[float, float], ...] = ()
    """(rows, s per element of k) of the kernel that takes results whose columns are no multiple of ``RAGGED``: it does
    not split k, so such a GEMM lasts at least so long; in between linear. Empty: nothing was measured."""
    cooperative_s: float = 0.0
    """s per element of k of a kernel whose waves share out k for one result of ``COOPERATIVE`` squared (aiter's opus
    "wkc"). Where it can add to results in memory (columns in multiples of ``ADDING``), blocks share out k as well, for
    nothing; where not, no kernel splits k. 0: there is none."""
    stream_rows: float = 0.0
    """Rows up to which a GEMM reads its weights no slower than streaming kernels read theirs (1: a matrix times a
    vector), where the fit saw none so short; 0: it did."""
    throttle: float = 0.1
    """How much longer compute takes once the power limit has brought the clock down."""
    throttle_s: float = 1.0e-3
    """Compute time of one GEMM at which half of that is seen in a short run."""
    log_sigma: float = 0.25
    """Standard deviation of ln(measured/predicted) of GEMMs longer than eight launches."""
    log_sigma_small: float = 0.35
    """The same of shorter ones."""
    batched_log_sigma: float = 0.25
    """The same for batched GEMMs, at least; 0 if the fit has enough of those. Default: no table has any (V100's and
    MI250X's sweeps need 0.36 and 0.35, A100's 0.14: in between; lab/fit_gemm.py)."""
    penalty_log_sigma: float = 0.5
    """Standard deviation of the cost of misaligned operands, relative to ln of that cost: an estimate if the cost is
    assumed, 0.02 if sweeps measured it."""
    ragged_log_sigma: float = 0.0
    """Standard deviation of ln(measured/predicted) that misaligned operands add in any case, if a library's fast
    kernels reject them and another's run; 0 if sweeps show that this does not happen, or ``penalty_log_sigma`` covers
    it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedCoefficients:
    """Grouped GEMMs of experts; symbols and fit in docs/concepts/moe.md."""

    tile_n: int = 128
    tile_m_most: int = 256
    """Tallest tile."""
    efficiency: float = 0.85
    """Share of peak of a tile of unbounded height; one of ``half_tile`` rows reaches half of it."""
    half_tile: float = 16.0
    feed_bytes_per_clock: float = 64.0
    """Operand bytes one SM can take in per cycle of the boost clock."""
    tile_s: float = 1.0e-6
    """Fill and epilogue of a 128 x 128 tile; others in proportion."""
    tail: float = 0.7
    """Share of a started wave that costs time."""
    hbm_share: float = 0.85
    overlap: float = 0.1
    """Share of the lesser of compute and memory time that is not hidden behind the greater."""
    masked: float = 0.3
    """Share of the traffic for rows of other devices' experts that a masking kernel still causes."""
    dragged: float = 0.0
    """Share of those rows that is computed anyway if their token has a row here: a kernel that gets whole tokens
    computes all choices of each."""
    launch_s: float = 1.0e-5
    """One GEMM's launch with its share of sorting tokens by expert."""
    log_sigma: float = 0.3
    log_sigma_small: float = 0.3
    """The same of GEMMs shorter than five launches."""
    narrow_sigma: float = 0.6
    """The same of types of fewer than 16 bits, at least. As it is, no table held such experts: what fp8, fp8_block and
    nvfp4 GEMMs of 40 us and more need when priced by the 16-bit fit of their device at their own peak (0.57, 0.61,
    0.61, medians of 18 devices and types; gemm_lowbit.parquet, 2026-11-21)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCoefficients:
    """Flash attention on a device; symbols and fit in docs/concepts/attention.md."""

    tile_q: int = 128
    """Query rows of a prefill block."""
    efficiency: tuple[tuple[int, float], ...] = ((64, 0.42), (128, 0.58), (256, 0.55))
    """(head_dim, share of peak) of the forward main loop; between them linear, outside flat."""
    head_step: int = 32
    """Kernels are compiled for head dimensions in multiples of this (FlashAttention-2, -3: 32); others are padded."""
    partial_gradients: bool = False
    """Whether backward sums dQ in memory in fp32, and where heads share keys writes every query head's dK and dV."""
    backward: float = 0.75
    """Backward's share of peak over forward's (FlashAttention-2 and -3 report 0.7 to 0.85; not fitted here)."""
    backward_fitted: bool = False
    """Whether backward's coefficients were fitted to measurements, and ``log_sigma`` is of its times too."""
    step_s: float = 2.0e-7
    """Least duration of one key/value step of a block."""
    block_s: float = 1.0e-6
    """Start and epilogue of a block."""
    hbm_share: float = 0.75
    overlap: float = 0.2
    """Share of the lesser of compute and memory time that is not hidden behind the greater."""
    launch_s: float = 6.0e-6
    log_sigma: float = 0.3
    decode_tile_q: int = 16
    """Query rows that one decode block takes together (heads of a group)."""
    decode_block_s: float = 1.5e-6
    decode_step_s: float = 1.0e-7
    """Added per key tile up to 32: the serial steps before the split over SMs starts, and the merge after it."""
    decode_hbm_share: float = 0.8
    decode_overlap: float = 0.2
    decode_launch_s: float = 6.0e-6
    decode_log_sigma: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLaw:
    """Memory-bound kernels of any GPU of a vendor, by its datasheet (cost/gpu/memory_bound.py)."""

    hbm_share: float
    """Share of HBM bandwidth that the plainest kernel reaches."""
    gddr_share: float
    """The same of GDDR."""
    l2_part: float
    """Part of L2 that serves a kernel's first bytes."""
    l2_bytes_per_cycle: float
    """Of one SM, from L2."""
    again_from: float = 1.0
    """Part of L2 that rows in flight may fill before their second read leaves it."""
    again_span: float = 0.0
    """ln of the factor on that at which all of the second read does; 0: these kernels do not read twice."""
    hidden_s: float = 0.0
    """What of a kernel passes while its host is still busy with the call."""
    kinds: tuple[tuple[str, float, float, float, float], ...] = ()
    """(kernel or kind, cycles of one SM per element read or written, s to start, cycles per column of a row,
    log_sigma); the start is that of the middle host, or at a clock of 1 GHz where kernels were timed alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchStreams:
    """PyTorch's own memory-bound kernels, by a GPU's datasheet (cost/gpu/memory_bound.py)."""

    hbm_share: float
    """Share of HBM bandwidth that an elementwise kernel reaches."""
    launch_s: float
    """From one kernel's end to the next one's first byte."""
    again_from: float
    """Part of L2 that rows in flight may fill before their next read leaves it."""
    again_span: float
    """ln of the factor on that at which all of it does."""
    kinds: tuple[tuple[str, float, float, float, float], ...]
    """(kernel, cycles of one SM per element moved, cycles per row, s beyond the launches, log_sigma); ``plain`` are
    those not named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBoundCoefficients:
    """Streaming kernels; symbols and fit in docs/concepts/memory-bound.md."""

    framework: str = ""
    """The software whose kernels ``kinds`` are, as tables name it."""
    hbm_share: float = 0.85
    """Share of HBM bandwidth for kernels not in ``kinds``."""
    kinds: tuple[tuple[str, float, float, float], ...] = ()
    """(kind or kernel, share of HBM bandwidth, s on top of a launch, log_sigma) of separately measured kernels."""
    host_kinds: tuple[tuple[str, float, float, float], ...] = ()
    """The same if the host waits for each kernel: the start includes what it adds to the simplest kernel's call."""
    l2_part: float = 0.5
    """Part of L2 that serves a kernel's first bytes."""
    l2_speedup: float = 2.0
    """Rate inside L2 over HBM's."""
    launch_s: float = 2.5e-6
    """From one kernel's end to the next one's start when launches are queued or replayed."""
    eager_launch_s: float = 2.5e-5
    """The same when the host waits for each kernel."""
    eager_kinds: tuple[tuple[str, float, float, float, float, float], ...] = ()
    """(kernel, bytes of an element, least s, s before the first byte, share of HBM bandwidth, log_sigma) of kernels
    measured one by one from the host; others take ``eager_launch_s``."""
    alone: StreamLaw | None = None
    """The law of all measured devices, for kernels that ``kinds`` lacks."""
    called: StreamLaw | None = None
    """The same where the host waits for each kernel, for those that ``host_kinds`` lacks; its calls alone where
    ``torch_streams`` has the kernels' time."""
    log_sigma: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveCoefficients:
    """Collectives inside a node; symbols and fit in docs/concepts/collectives.md."""

    link_share: float = 0.72
    """Share of the scale-up link rate a large message reaches."""
    all_reduce_share: float = 0.8
    """The same for all-reduce, where switches may reduce in flight (NVLink SHARP)."""
    small_group_loss: float = 0.8
    """The share falls by this over the square of the group size: a pair does not use all links."""
    hop_s: float = 1.0e-6
    launch_s: float = 5.0e-6
    pipeline: float = 0.6
    kinds: tuple[tuple[str, float, float, float, float], ...] = ()
    """(kind, share of the link rate, s of a launch, s of a hop, log_sigma) of collectives fitted one by one."""
    direct: tuple[tuple[str, float, float, float, float, float, float], ...] = (
        ("custom", 4.2e-6, 7e-8, 0.55, 3e-6, 0.6, 0.3),
        ("trtllm", 2.9e-6, 7e-8, 0.55, 5e-6, 0.6, 0.3),
    )
    """All-reduce kernels that read peers' memory: (library, launch s, s per peer, share of the link rate in one shot,
    s of a second synchronisation, share in two shots, log_sigma). Default: the H200's fit, rounded."""
    eager_s: float = 2.1e-5
    """Least time of a custom all-reduce that the host launches: the call, its checks and a copy."""
    whole_tree: bool = False
    """Small buffers are reduced whole along a tree where that is quicker than a ring: on a chip's own links."""
    over_pcie: bool = False
    """Fitted on devices connected only by PCIe."""
    log_sigma: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCoefficients:
    """How the power limit bounds long runs; symbols and fit in docs/concepts/gemm.md, "Clock"."""

    flops_per_joule: float = 0.0
    """16-bit FLOPs per joule of the power limit at which the clock starts to fall; 0: nothing is known of it."""
    kept: float = 1.0
    """Share of the slowdown that is kept: between GEMMs run kernels that draw less."""
    step_flops_per_joule: float = 0.0
    """The same of a step, whose kernels share one clock: that of GEMMs at the peak."""


Coefficients: TypeAlias = (
    GemmCoefficients
    | GroupedCoefficients
    | AttentionCoefficients
    | MemoryBoundCoefficients
    | CollectiveCoefficients
    | PowerCoefficients
    | StreamLaw
    | TorchStreams
)
AnyCoefficients = TypeVar("AnyCoefficients", bound=Coefficients)
"""One of these families (a function returns the one it gets)."""


SECTIONS: dict[str, type[Coefficients]] = {
    "gemm": GemmCoefficients,
    "grouped": GroupedCoefficients,
    "attention": AttentionCoefficients,
    "memory_bound": MemoryBoundCoefficients,
    "collective": CollectiveCoefficients,
    "power": PowerCoefficients,
}


def calibration_files() -> dict[str, JsonDict]:
    """Every device's calibration in the package, by file name without its ending: ``a100_sxm.bf16``, ..."""
    folder = resources.files("sartor.cost.correction").joinpath("data")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    tables = {name.removesuffix(".toml"): table_of(name) or {} for name in names}
    return {name: table for name, table in tables.items() if "provenance" in table and name != "training"}


def generation(name: str) -> JsonDict:
    """What is assumed of a generation's devices, by section (``gemm``, ``gemm_fp32``, ``attention``, ...)."""
    table = table_of("generations.toml") or {}
    entry, default = table.get(name, {}), table["default"]
    sections = {key: coefficients(kind, default.get(key, {}) | entry.get(key, {})) for key, kind in SECTIONS.items()}
    by_dtype = {key: entry["gemm"] | values for key, values in entry.items() if key.startswith("gemm_")}  # of one dtype
    return sections | {
        key: coefficients(GemmCoefficients, default["gemm"] | values) for key, values in by_dtype.items()
    }


def coefficients(kind: type[AnyCoefficients], values: JsonMap) -> AnyCoefficients:
    """A section's values as its class of coefficients; lists become tuples."""
    return kind(**{key: _tuples(value) for key, value in values.items()})


def _tuples(value: object) -> Any:
    return tuple(_tuples(entry) for entry in value) if isinstance(value, list) else value


def table_of(name: str) -> JsonDict | None:
    """A file of the package's calibrations as a table, or None where there is none of that name."""
    return _read(name)


def has_table(name: str) -> bool:
    """Whether the package's calibrations have a file of that name, which is not read: parsing one takes 2 ms."""
    return resources.files("sartor.cost.correction").joinpath("data").joinpath(name).is_file()


@cache
def _read(name: str) -> JsonDict | None:
    file = resources.files("sartor.cost.correction").joinpath("data").joinpath(name)
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
