"""Calibration: what was learned about a device from measurements, as data with its source, date and fit error.

Coefficients are dimensionless (shares of a datasheet rate) or seconds, so that they carry over to a relative with
other rates. One TOML per GPU and dtype in ``calibration/`` holds what was fitted; ``generations.toml`` holds what is
assumed where nothing was: a generation's tile menu and typical shares.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.hardware.lending import per_sm, told_apart, within_power
from sartor.hardware.link_kin import nearest_links, nearest_rate
from sartor.hardware.network import NetworkCoefficients, network_coefficients
from sartor.hardware.own_rows import OwnRows
from sartor.hardware.scaling import REFERENCE, Rates, rescaled
from sartor.operators import DType
from sartor.units import MIB


class Clock(Enum):
    """``BOOST``: short runs, as the measured tables. ``SUSTAINED``: long compute-bound work under a power limit."""

    BOOST = "boost"
    SUSTAINED = "sustained"


SCALE_BLOCK = 128
"""Side of a weight block with one scale in block-scaled fp8 (DeepSeek-V3, arXiv 2412.19437, sec. 3.3.2)."""


FRESH_BYTES = 32 * MIB
"""A result larger than this comes from fresh pages each time: the greatest size that glibc's allocator keeps for reuse
(DEFAULT_MMAP_THRESHOLD_MAX, 4 * 1024 * 1024 * sizeof(long); mallopt(3), read 2026-11-21)."""


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
    """Extra fixed cost of a split product's reduction."""
    split_rate: float = 3.0
    """Rate at which partial sums are exchanged, in units of the streaming rate (they stay in L2)."""
    hbm_share: float = 0.9
    """Share of HBM bandwidth a product streams at."""
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
    quantize_s: float = 0.0
    """Launch of the kernel that narrows the first operand before the product; 0 where there is none."""
    quantize_bytes: float = 0.0
    """Traffic of that kernel per element of the first operand (read 2 bytes, write 1: 3)."""
    pack_tn: float = 0.0
    """Traffic of copying the second operand into a kernel's blocks before the product, per element of it, where the
    layout is TN; 0 where kernels read operands as they lie. Libraries for hosts' cores copy."""
    pack_nn: float = 0.0
    """The same of NN and NT."""
    pack_nt: float = 0.0
    """The same of the first operand of NT, which lies across its rows."""
    pack_columns: float = 0.0
    """Columns of the result that one copy of NT's first operand serves; wider ones copy it again. 0: one for all."""
    fresh_cost: float = 0.0
    """Traffic of a result that the allocator hands out as fresh pages (over ``FRESH_BYTES`` on a host), per byte of it,
    beyond its write."""
    sub_block_s: float = 0.0
    """Least time of a block-scaled product with k under one block (``SCALE_BLOCK``) or n under half of one, with an x86
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
    stream_rows: float = 0.0
    """Rows up to which a product reads its weights no slower than streaming kernels read theirs (1: a matrix times a
    vector), where the fit saw none so short; 0: it did."""
    throttle: float = 0.1
    """How much longer compute takes once the power limit has brought the clock down."""
    throttle_s: float = 1.0e-3
    """Compute time of one product at which half of that is seen in a short run."""
    log_sigma: float = 0.25
    """Standard deviation of ln(measured/predicted) of products longer than eight launches."""
    log_sigma_small: float = 0.35
    """The same of shorter ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupedCoefficients:
    """Grouped products of experts; symbols and fit in docs/concepts/moe.md."""

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
    """Share of a started wave that is paid."""
    hbm_share: float = 0.85
    overlap: float = 0.1
    """Share of the lesser of compute and memory time that is not hidden behind the greater."""
    masked: float = 0.3
    """Part of the traffic of rows of other devices' experts that is paid where a kernel only masks them."""
    dragged: float = 0.0
    """Part of those rows that is computed all the same where their token has a row here: a kernel that is handed whole
    tokens does all of each one's choices."""
    launch_s: float = 1.0e-5
    """One product's launch with its share of sorting tokens by expert."""
    log_sigma: float = 0.3
    log_sigma_small: float = 0.3
    """The same of products shorter than five launches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCoefficients:
    """Flash attention on a device; symbols and fit in docs/concepts/attention.md."""

    tile_q: int = 128
    """Query rows of a prefill block."""
    efficiency: tuple[tuple[int, float], ...] = ((64, 0.42), (128, 0.58), (256, 0.55))
    """(head_dim, share of peak) of the forward main loop; between them linear, outside flat."""
    backward: float = 0.75
    """Backward's share of peak over forward's (FlashAttention-2 and -3 report 0.7 to 0.85; not fitted here)."""
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
    """Added per key tile up to 32: the walk before splitting over SMs sets in, and the merge after it."""
    decode_hbm_share: float = 0.8
    decode_overlap: float = 0.2
    decode_launch_s: float = 6.0e-6
    decode_log_sigma: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBoundCoefficients:
    """Streaming kernels; symbols and fit in docs/concepts/memory-bound.md."""

    hbm_share: float = 0.85
    """Share of HBM bandwidth where ``kinds`` says nothing else."""
    kinds: tuple[tuple[str, float, float, float], ...] = ()
    """(kind or kernel, share of HBM bandwidth, s on top of a launch, log_sigma) of what was measured apart."""
    host_kinds: tuple[tuple[str, float, float, float], ...] = ()
    """The same where the host waits for each kernel: their start holds what it adds to the plainest kernel's call."""
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
    over_pcie: bool = False
    """Fitted on devices joined by PCIe alone."""
    log_sigma: float = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerCoefficients:
    """How the power limit bounds long runs; symbols and fit in docs/concepts/gemm.md, "Clock"."""

    flops_per_joule: float = 0.0
    """16-bit FLOPs per joule of the power limit at which the clock starts to fall; 0: nothing is known of it."""
    kept: float = 1.0
    """Share of the slowdown that is kept: between products run kernels that draw less."""


BUILT = {"_trtllm": ("sglang_trtllm", "vllm_trtllm", "trtllm"), "_cutlass": ("trtllm",)}
"""Ends of families' names and families of the same library, nearest first: kernels that frameworks call as they are
built, FlashInfer's out of TensorRT-LLM. Triton's depend on tiles that each framework ships (docs/concepts/moe.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """All that is known of one device beyond its datasheet."""

    gpu: str
    gemm: Mapping[DType, GemmCoefficients]
    grouped: GroupedCoefficients = field(default_factory=GroupedCoefficients)
    """Of the middle of frameworks."""
    grouped_families: Mapping[str, GroupedCoefficients] = field(default_factory=dict)
    """The same by whose kernels run."""
    attention: AttentionCoefficients = field(default_factory=AttentionCoefficients)
    memory_bound: MemoryBoundCoefficients = field(default_factory=MemoryBoundCoefficients)
    collective: CollectiveCoefficients = field(default_factory=CollectiveCoefficients)
    power: PowerCoefficients = field(default_factory=PowerCoefficients)
    """Of the generation."""
    network: NetworkCoefficients = field(default_factory=NetworkCoefficients)
    """Of links between nodes, whatever the device."""
    calibrated: frozenset[str] = frozenset()
    """Sections fitted on this very device: ``gemm.bf16``, ``attention``, ..."""
    kin: str = ""
    """Device that stands in where this one has no fit of its own; empty when there is none."""
    kin_on_die: bool = False
    """Whether that is the same die with other memory or another power limit."""
    own_rows: Mapping[DType, OwnRows] = field(default_factory=dict)
    """What a user's own measured products say beyond coefficients."""
    provenance: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Per section: source, rows, date, fit and held-out errors."""

    def owner(self, section: str) -> str:
        """Whose fit a section's coefficients are: ``own``, ``own (another dtype)``, ``joint``, ``kin NAME`` or
        ``generation``, where nothing was fitted."""
        if section in self.calibrated:
            return "own"
        record = self.provenance.get(section)
        if not record:
            return "generation"
        return str(record.get("lender") or (f"kin {self.kin}" if self.kin else "own (another dtype)"))

    def with_kernels(self, family: str = "") -> Calibration:
        """The same with a framework family's grouped kernels (``trtllm``, ``sglang_triton``, ...) in place of the
        middle of families; where it has none of that name, with those it has of the same library (``BUILT``); else
        unchanged. From another die a library's are the better known: what a framework does beside them may not hold."""
        alike = next((names for end, names in BUILT.items() if family.endswith(end)), ())
        near = "grouped" in self.calibrated or self.kin_on_die
        names = (family, *alike) if near else (*alike, family)
        found = next((self.grouped_families[name] for name in names if name in self.grouped_families), None)
        return replace(self, grouped=found) if found else self

    def with_cold_weights(self) -> Calibration:
        """The same where no product finds its weights in L2: other products' have passed through it since."""
        if not any(c.weight_copies for c in self.gemm.values()):
            return self
        return replace(self, gemm={dtype: replace(c, weight_copies=0.0) for dtype, c in self.gemm.items()})


def load_calibration(gpu: Gpu, dtype: DType | None = None) -> Calibration:
    """What is known of ``gpu``: its own fits, else its kin's with a wider interval, else its generation's assumptions.

    ``dtype`` asks for GEMM coefficients of that dtype to be present (they always are for dtypes the device has a
    peak for). A dtype without a fit takes the device's fit of a sibling (fp16 and bf16 share units), then the joint fit
    of all generations where the device's own has none (``kin.toml`` says ``joint``), then the kin's, then a 16-bit fit
    with twice the interval.
    """
    kin, widen = _kin(gpu)
    base = _generation(gpu.generation)
    general = (_read("kin.toml") or {}).get("general_cores", {}).get(gpu.vendor, "")
    gemm, calibrated, provenance = {}, set(), {}
    for each in dict.fromkeys([*gpu.peak_flops_per_s, *([dtype] if dtype else [])]):
        gemm[each], owner, record = _gemm(gpu, kin, widen, each, base.get(f"gemm_{each.value}", base["gemm"]), general)
        provenance[f"gemm.{each.value}"] = record
        if owner == gpu.name:
            calibrated.add(f"gemm.{each.value}")
    sections: dict[str, Any] = {}
    for name in _DEVICE_SECTIONS:
        lender, factor = _link_kin(gpu) if name == "collective" else (kin, widen)
        if name == "memory_bound":
            sections[name], owner, provenance[name] = _streaming(gpu, kin, widen, base[name])
        else:
            sections[name], owner, provenance[name] = _section(gpu.name, lender, factor, name, base[name])
        if owner == gpu.name:
            calibrated.add(name)
    if "collective" not in calibrated:
        sections["collective"] = collectives_on(
            sections["collective"], pcie=gpu.link_bytes_per_s <= gpu.pcie_bytes_per_s
        )
    sections["power"] = base["power"]
    sections["grouped_families"] = _families(gpu.name, kin, widen)
    sections["network"] = network_coefficients((_read("training.toml") or {}).get("network", {}))
    return Calibration(
        gpu=gpu.name,
        gemm=gemm,
        kin=kin,
        kin_on_die=widen <= DIE,
        calibrated=frozenset(calibrated),
        provenance=provenance,
        **sections,
    )


def collectives_on(found: CollectiveCoefficients, *, pcie: bool, bytes_per_s: float = 0.0) -> CollectiveCoefficients:
    """``found`` where it was fitted on such links; else those of the nearest NVLink generation (``bytes_per_s`` of it
    given), or what is assumed of PCIe: NVLink's shares say nothing of PCIe, whose devices share the host's bridges."""
    if found.over_pcie == pcie:
        return found
    lender, widen = nearest_rate(bytes_per_s, _lenders()) if bytes_per_s and not pcie else ("", 1.0)
    if lender:
        table = _read(f"{lender}.toml") or {}
        return _lent(_coefficients(CollectiveCoefficients, table["collective"]), "collective", widen)  # type: ignore[no-any-return]
    return _generation("pcie" if pcie else "default")["collective"]  # type: ignore[no-any-return]


def calibration_files() -> dict[str, dict[str, Any]]:
    """Every device's calibration in the package, by file name without its ending: ``a100_sxm.bf16``, ..."""
    folder = resources.files("sartor.hardware").joinpath("calibration")
    names = sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml"))
    tables = {name.removesuffix(".toml"): _read(name) or {} for name in names}
    return {name: table for name, table in tables.items() if "provenance" in table and name != "training"}


_SECTIONS: dict[str, type] = {
    "gemm": GemmCoefficients,
    "grouped": GroupedCoefficients,
    "attention": AttentionCoefficients,
    "memory_bound": MemoryBoundCoefficients,
    "collective": CollectiveCoefficients,
    "power": PowerCoefficients,
}

_DEVICE_SECTIONS = ("grouped", "attention", "memory_bound", "collective")
"""Sections of a device's own file, whatever the dtype."""

_SIBLINGS: dict[DType, tuple[DType, ...]] = {
    DType.FP16: (DType.BF16,),
    DType.BF16: (DType.FP16,),
    DType.FP8_BLOCK: (DType.FP8,),
    DType.MXFP8: (DType.FP8, DType.FP8_BLOCK),
    DType.MXFP4: (DType.NVFP4,),
    DType.INT8: (DType.FP8,),
    DType.INT8_WO: (DType.INT4_WO,),
    DType.INT4_WO: (DType.INT8_WO,),
}
"""Formats that run on the same units at the same rate."""


def _gemm(
    gpu: Gpu, kin: str, widen: float, dtype: DType, base: GemmCoefficients, general: str
) -> tuple[GemmCoefficients, str, Mapping[str, Any]]:
    """Coefficients, whose they are (empty: assumed or of no device in particular), and their record."""
    if dtype is DType.FP32 and widen > DIE and _read(f"{general}.fp32.toml"):
        kin = ""  # clocks of general cores under a power limit are part of a fit: other dies take the general lender's
    for owner in (gpu.name, kin):
        joint = _joint(gpu, dtype) if owner != gpu.name else None
        if joint:
            return _lent(joint[0], f"gemm.{dtype.value}", 1.0, "joint"), "", joint[1]
        for each in (dtype, *_SIBLINGS.get(dtype, ())):
            table = _read(f"{owner}.{each.value}.toml") if owner else None
            if table:
                found = _coefficients(GemmCoefficients, table["gemm"])
                lent = found if owner == gpu.name else _lent(found, f"gemm.{dtype.value}", widen)
                if owner != gpu.name and widen > OTHER_DIE and not found.throttle:
                    lent = within_power(lent, gpu, _general_per_joule(gpu), found.throttle_s)
                return lent, owner, table["provenance"]["gemm"]
    if dtype is DType.FP32 and _read(f"{general}.fp32.toml"):  # nearer than one's own matrix units
        return _on_general_cores(gpu, _beyond(kin, widen), widen, general)
    for owner, each in ((gpu.name, DType.BF16), (gpu.name, DType.FP16), (kin, DType.BF16), (kin, DType.FP16)):
        joint = _joint(gpu, each) if owner != gpu.name else None
        if joint:
            return _lent(joint[0], f"gemm.{dtype.value}", OTHER_UNITS), "", joint[1]
        table = _read(f"{owner}.{each.value}.toml") if owner else None
        if table:  # other units, the same memory, launches and tiles
            found = _widened(_coefficients(GemmCoefficients, table["gemm"]), 2.0)
            lent = found if owner == gpu.name else _lent(found, f"gemm.{dtype.value}", widen)
            return lent, "", table["provenance"]["gemm"]
    return base, "", {}


def _on_general_cores(
    gpu: Gpu, relative: str, widen: float, general: str
) -> tuple[GemmCoefficients, str, Mapping[str, Any]]:
    """fp32 of a device without a fit of its own or of its kin: of a ``relative`` on the same die, else of the vendor's
    ``general`` lender with the clock that this device's power limit allows."""
    table = _read(f"{relative}.fp32.toml") if relative else None
    if table:
        lent = _lent(_coefficients(GemmCoefficients, table["gemm"]), "gemm.fp32", widen)
        return lent, "", table["provenance"]["gemm"] | _from(relative)
    table = _read(f"{general}.fp32.toml") or {}
    lent = _lent(_coefficients(GemmCoefficients, table["gemm"]), "gemm.fp32", 3.0)
    return within_power(lent, gpu, _general_per_joule(gpu)), "", table["provenance"]["gemm"] | _from(general)


def _general_per_joule(gpu: Gpu) -> float:
    return float((_read("kin.toml") or {})["general_flops_per_joule"].get(gpu.generation, 0.0))


def _beyond(kin: str, widen: float) -> str:
    """The relative of a relative on the same die; empty where there is none."""
    entry = (_read("kin.toml") or {}).get(kin, {})
    return str(entry["of"]) if max(widen, entry.get("widen", 9.0)) <= DIE else ""


def _joint(gpu: Gpu, dtype: DType) -> tuple[GemmCoefficients, Mapping[str, Any]] | None:
    """The fit of all generations at once, or the one that leans on its kind of SM, on this device's datasheet: for
    devices that ``kin.toml`` says so of, and for those it does not know whose maker's generations were fitted. Its
    interval is what generations held out need."""
    asked, rates = _kin_entry(gpu).get("gemm", ""), Rates.of(gpu)
    native = dtype in gpu.peak_flops_per_s
    if not asked or not native or rates is None or gpu.vendor != JOINT_VENDOR or gpu.generation in _own_menus():
        return None
    table = _read(f"{asked}.toml") or {}
    alike = () if dtype is DType.FP8_BLOCK else _SIBLINGS.get(dtype, ())  # its kernels are a framework's own
    kinds = ("_warp", "") if rates.flops_per_cycle < WARP_FLOPS_PER_CYCLE else ("",)
    found = next((table[d.value + kind] for d in (dtype, *alike) for kind in kinds if d.value + kind in table), None)
    if found is None:
        return None
    return rescaled(_coefficients(GemmCoefficients, found["gemm"]), REFERENCE, rates), found["provenance"]


OTHER_UNITS = 3.0
"""Widening of a joint fit of 16-bit products for a type it was not made of: as from another generation."""

WARP_FLOPS_PER_CYCLE = 2200.0
"""SMs of fewer 16-bit FLOPs per cycle feed tensor cores from their warps' registers (mma.sync: Ampere, Ada, Blackwell
RTX; Hopper and Blackwell read shared memory): they take the joint fit that leans on their like."""

JOINT_VENDOR = "NVIDIA"
"""Whose generations the joint fit was made of."""


@cache
def _own_menus() -> frozenset[str]:
    """Generations whose tiles are assumed to be others than those fitted."""
    return frozenset(
        name for name, entry in (_read("generations.toml") or {}).items() if "tiles" in entry.get("gemm", ())
    )


def _families(gpu: str, kin: str, widen: float) -> dict[str, GroupedCoefficients]:
    for owner in (gpu, kin):
        table = (_read(f"{owner}.toml") if owner else None) or {}
        if "grouped_families" in table:
            found = {name: _coefficients(GroupedCoefficients, v) for name, v in table["grouped_families"].items()}
            return {name: each if owner == gpu else _lent(each, "grouped", widen) for name, each in found.items()}
    return {}


def _section(gpu: str, kin: str, widen: float, name: str, base: Any) -> tuple[Any, str, Mapping[str, Any]]:
    for owner in (gpu, kin):
        table = _read(f"{owner}.toml") if owner else None
        if table and name in table:
            found = _coefficients(_SECTIONS[name], table[name])
            record = table["provenance"][name]
            return (found, owner, record) if owner == gpu else (_lent(found, name, widen), owner, record | _from(owner))
    return base, "", {}


def _streaming(
    gpu: Gpu, kin: str, widen: float, base: MemoryBoundCoefficients
) -> tuple[MemoryBoundCoefficients, str, Mapping[str, Any]]:
    """Memory-bound kernels: the device's own, else a relative's, carried by the datasheet (``hardware/lending.py``).

    Kernels timed alone and those the host waits for are two tables, and a device may have one of them only. The other
    is its relative's, then: of kernels the host waits for, the vendor's ``host_kernels``; of kernels alone, where no
    relative has any, its own ones' shares without what the host adds.
    """
    held = [each for each in (gpu.name, kin, _beyond(kin, widen)) if _streams(each)]
    owner = held[0] if held else ""
    found, record = base, dict[str, Any]()
    if owner:
        found = _streams_on(gpu, owner, widen)
        record = (_read(f"{owner}.toml") or {})["provenance"]["memory_bound"] | (
            _from(owner) if owner != gpu.name else {}
        )
    own = bool(found.host_kinds)
    if own and not found.kinds:
        others = [each for each in held[1:] if "kinds" in _streams(each)]
        found = replace(found, kinds=_streams_on(gpu, others[0], widen).kinds if others else ())
    waited = (_read("kin.toml") or {}).get("host_kernels", {}).get(gpu.vendor, "")
    if not own and waited:
        found = replace(found, host_kinds=_streams_on(gpu, waited, 3.0).host_kinds)
    found = told_apart(found, waited_is_own=own)
    return found, owner, record


def _streams(owner: str) -> Mapping[str, Any]:
    """What a device's own file says of memory-bound kernels; nothing where there is none."""
    found: Mapping[str, Any] = ((_read(f"{owner}.toml") if owner else None) or {}).get("memory_bound", {})
    return found


def _streams_on(gpu: Gpu, owner: str, widen: float) -> MemoryBoundCoefficients:
    found: MemoryBoundCoefficients = _coefficients(MemoryBoundCoefficients, _streams(owner))
    if owner == gpu.name:
        return found
    carried: MemoryBoundCoefficients = per_sm(_lent(found, "memory_bound", widen), load_gpu(owner), gpu)
    return carried


def _from(owner: str) -> Mapping[str, str]:
    return {"lender": f"kin {owner}"}


def _lent(found: Any, section: str, widen: float, near: str = "") -> Any:
    """Another device's coefficients, as uncertain as devices held out of the fits were (``lent.toml``; docs/kin.md)."""
    near = near or ("die" if widen <= DIE else "generation" if widen <= OTHER_DIE else "other")
    floors = (_read("kin.toml") or {}).get("floors", {}).get(near, {})
    judged = (_read("lent.toml") or {}).get(near, {})
    keys = {part: f"{section}{name}" for part, name in _PARTS_OF_SECTIONS.items()}
    times = {part: judged[key]["times"] for part, key in keys.items() if key in judged}
    least = {part: judged.get(key, {}).get("least", floors.get(key, 0.0)) for part, key in keys.items()}
    return _widened(found, widen, least, times)


DIE = 1.35
"""Another memory or power limit on the same die widens by this much at most (``kin.toml``), another die by more."""

OTHER_DIE = 2.5
"""Another die of the generation widens by this much at most, another generation by more. A fit that saw no power limit
(sweeps of V100) is slowed on another generation's device as its general cores are: T4 has 70 W for V100's 300."""

_PARTS_OF_SECTIONS = {"": "", "decode_": ".decode", "sub_block_": ".sub_block", "half_block_": ".half_block"}
"""Beginning of a standard deviation's field, and how its floor's key ends."""


def _widened(
    found: Any, factor: float, least: Mapping[str, float] | None = None, times: Mapping[str, float] | None = None
) -> Any:
    """The same coefficients with every standard deviation ``factor`` times as wide, and not below ``least``; both
    ``least`` and ``times``, which stands in for ``factor``, go by the beginning of a field."""
    floors, factors = least or {}, times or {}

    def width(sigma: float, part: str) -> float:
        return max(sigma * factors.get(part, factor), floors.get(part, 0.0))

    wider: dict[str, Any] = {}
    for each in fields(found):
        before, sigma, _ = each.name.partition("log_sigma")
        if sigma:
            wider[each.name] = width(getattr(found, each.name), before)
    for name in _WITH_SIGMA:
        if hasattr(found, name):
            wider[name] = tuple((*row[:-1], width(row[-1], "")) for row in getattr(found, name))
    return replace(found, **wider)


_WITH_SIGMA = ("kinds", "host_kinds", "eager_kinds", "direct")
"""Fields of rows that end in a standard deviation of their own."""


def _kin(gpu: Gpu) -> tuple[str, float]:
    """The calibrated device this one borrows from, and how much wider its intervals are then."""
    entry = _kin_entry(gpu)
    return entry.get("of", ""), float(entry.get("widen", 1.0))


def _link_kin(gpu: Gpu) -> tuple[str, float]:
    """Whose collectives this device borrows and how much wider: ``kin.toml`` may name it (``links``), else the nearest
    of its ``lenders`` by the links' own facts."""
    entry = _kin_entry(gpu)
    if "links" in entry:
        return str(entry["links"]), float(entry["widen"])
    return nearest_links(gpu, _lenders())


def _lenders() -> list[str]:
    names = (_read("kin.toml") or {}).get("links", {}).get("lenders", ())
    return [name for name in names if _read(f"{name}.toml")]


def _kin_entry(gpu: Gpu) -> Mapping[str, Any]:
    """What ``kin.toml`` says of the device, or of its generation's relative where it does not know the device: products
    by the joint fit then, unless the SMs are of the relative's kind."""
    table = _read("kin.toml") or {}
    if gpu.name in table or any(_read(f"{gpu.name}{end}.toml") for end in ("", ".bf16", ".fp16", ".fp32")):
        return table.get(gpu.name, {})  # type: ignore[no-any-return]
    relative, rates = table.get("generation", {}).get(gpu.generation), Rates.of(gpu)
    if not relative or not rates or gpu.vendor != relative["vendor"]:
        return {"gemm": "joint"}
    alike = abs(rates.flops_per_cycle / relative["flops_per_cycle"] - 1) < SAME_SM
    return {"of": relative["of"], "widen": SAME_GENERATION, "gemm": "" if alike else "joint"}


SAME_GENERATION = 1.8
"""Widening for another die of the same generation (``kin.toml``)."""
SAME_SM = 0.1
"""FLOPs per cycle of two SMs of one kind differ by less: 1 to 2% by rounded peaks, 100% between kinds."""


def _generation(name: str) -> dict[str, Any]:
    table = _read("generations.toml") or {}
    entry, default = table.get(name, {}), table["default"]
    found = {key: _coefficients(kind, default.get(key, {}) | entry.get(key, {})) for key, kind in _SECTIONS.items()}
    own = {key: entry["gemm"] | values for key, values in entry.items() if key.startswith("gemm_")}  # of one dtype
    return found | {key: _coefficients(GemmCoefficients, default["gemm"] | values) for key, values in own.items()}


def _coefficients(kind: type, values: Mapping[str, Any]) -> Any:
    return kind(**{key: _tuples(value) for key, value in values.items()})


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


@cache
def _read(name: str) -> dict[str, Any] | None:
    file = resources.files("sartor.hardware").joinpath("calibration").joinpath(name)
    return tomllib.loads(file.read_text(encoding="utf-8")) if file.is_file() else None
