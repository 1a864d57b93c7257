"""A device's datasheet in SI units, and the contradictions for which it is refused.

GPUs as described by their datasheets: dense peaks, memory, clocks, links, price, each with a source.

Check that the numbers of a datasheet agree: a peak is cores x clock x FLOPs per core and cycle.

The most common error is a peak *with structured sparsity*, twice the dense one; the message says so. For generations
that are not in ``flops_per_cycle.toml``, only ratios between types are checked.

Alignment is minimum and preferred multiples of lengths for the matrix units. A length is the contiguous one of a stored
operand, in elements. Below ``minimum`` a GEMM leaves the fast path; between ``minimum`` and ``preferred`` it keeps the
fast path at a loss. The table only says where rules look and how severe a finding is; the cost model prices it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING

from sartor.bounded import packaged_toml
from sartor.errors import InputError
from sartor.operators import DType

if TYPE_CHECKING:
    from sartor.hardware.accelerator import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device (one die where a card's dies are separate devices). Peaks are dense, rates in SI units.

    Construction rejects impossible values (sizes that are not positive and finite, a cache larger than the memory).
    Only ``hardware.gpu`` checks the consistency of catalogue entries, so that tests may use invented devices.
    """

    name: str
    vendor: str
    generation: str
    """volta, turing, ampere, ada, hopper, blackwell, cdna2, cdna3, cdna4, tpu_v5p, ...: which kernels exist."""
    num_sms: int
    """SMs, compute units or cores that tiles run on; matrix engines on other devices."""
    peak_flops_per_s: Mapping[DType, float]
    """Dense matrix peaks, with sums in fp32 where the element type is 16 bits or narrower."""
    hbm_bytes: float
    hbm_bytes_per_s: float
    l2_bytes: float
    boost_clock_hz: float
    """Clock the dense matrix peaks are stated at."""
    tdp_w: float
    max_clock_hz: float = 0.0
    """Highest clock of the device; 0 if it is the boost clock."""
    compute_capability: str = ""
    link_bytes_per_s: float = 0.0
    """Scale-up link (NVLink, Infinity Fabric, ICI), one direction, all links of the device together."""
    link_latency_s: float = 2e-6
    devices_per_node: int = 8
    link_domain: int = 0
    """Devices one scale-up network joins (72 in an NVL72 rack, a TPU pod); 0: those of the node."""
    dies_per_card: int = 1
    """Devices sold as one card; every number here is per device."""
    pcie_bytes_per_s: float = 0.0
    """Host link, one direction."""
    host_link_bytes_per_s: float = 0.0
    """A faster link to a host on the same board (NVLink-C2C), one direction; 0: PCIe is the host link."""
    host_memory_bytes_per_s: float = 0.0
    """This device's share of such a host's memory, nominal; 0: a server's, shared by the node."""
    smem_bytes_per_sm: float = 0.0
    ecc_share: float = 0.0
    """Share of the memory that error correction takes: boards with GDDR6 keep the code beside the data."""
    memory_side_cache_bytes: float = 0.0
    """A cache between L2 and memory (AMD Infinity Cache); 0 if there is none."""
    fp32_accumulate_rate: float = 1.0
    """Tensor-core rate with fp32 accumulation of 8- and 16-bit GEMMs, relative to the full rate (0.5 on GeForce)."""
    tensor_core_rate: float = 1.0
    """Tensor-core rate of this product relative to its generation's (0.25 on the H20)."""
    host: str = ""
    """CPU on the same board (``grace``); empty if the server chooses it."""
    matrix_tile: int = 0
    """Side of the systolic array where there is one (128 or 256); 0 on GPUs."""
    die_mm2: float = 0.0
    """Area of the compute die; 0 if its vendor does not publish it."""
    process_nm: float = 0.0
    """Technology node by the foundry's name; 0 if unknown."""
    released: str = ""
    price_usd_per_hour: float | None = None
    price_source: str = ""
    price_date: str = ""
    aliases: tuple[str, ...] = ()
    sources: Mapping[str, str] = field(default_factory=dict)
    """Field name (or ``all``) -> document and date."""
    title: str = ""
    """Commercial name."""
    confidence: str = "high"
    """high, medium or low: how reliable the entry is; ``note`` says why."""
    note: str = ""
    accelerator: Accelerator | None = None
    """The template chip that this datasheet describes; its operators are priced by the template."""
    template_keys: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Keys that change prices and that the file of a user's own chip leaves at their defaults."""

    @property
    def label(self) -> str:
        """Short name (``A100 SXM4``): the title without vendor and memory size, or the name."""
        if self.accelerator is not None:
            return self.name
        return re.sub(r"^\w+ (Instinct |GeForce )?|( \d+ GB|[,(]).*", "", self.title).strip() or self.name

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            _require_number(name, getattr(self, name), positive=True)
        for name in _NOT_NEGATIVE:
            _require_number(name, getattr(self, name), positive=False)
        if not self.peak_flops_per_s:
            raise InputError("peak_flops_per_s", {}, "needs the dense peak of at least one data type", "bf16")
        for dtype, peak in self.peak_flops_per_s.items():
            _require_number(f"peak_flops_per_s.{dtype.value}", peak, positive=True)
        if self.l2_bytes >= self.hbm_bytes:
            raise InputError(
                "l2_bytes",
                self.l2_bytes,
                f"a cache must be smaller than the memory behind it, {self.hbm_bytes:.4g} bytes",
            )

    def peak(self, dtype: DType) -> float:
        """Dense peak [FLOP/s] for GEMMs of ``dtype``; ``InputError`` with the supported types."""
        if dtype not in self.peak_flops_per_s:
            have = ", ".join(sorted((d.value for d in self.peak_flops_per_s), key=lambda name: (len(name), name)))
            raise InputError("dtype", dtype.value, f"{self.name} has no matrix units for it", have)
        return self.peak_flops_per_s[dtype]

    @property
    def default_dtype(self) -> DType:
        """The 16-bit type for training: bf16 if supported, else fp16, else any other."""
        preferred = (DType.BF16, DType.FP16, DType.FP32)
        return next((d for d in preferred if d in self.peak_flops_per_s), next(iter(self.peak_flops_per_s)))

    def dtype_near(self, dtype: DType) -> DType:
        """The type with a matrix rate that is nearest to one without: in width, then in name."""
        alike = {d: SequenceMatcher(None, dtype.value, d.value).ratio() for d in self.peak_flops_per_s}
        return min(alike, key=lambda d: (abs(d.bytes - dtype.bytes), -alike[d]))

    @property
    def highest_clock_hz(self) -> float:
        """The clock of kernels that draw too little power to be slowed."""
        return self.max_clock_hz or self.boost_clock_hz

    @property
    def has_gddr(self) -> bool:
        """Whether the memory is GDDR, of whose rate kernels reach less than of HBM's."""
        if self.compute_capability:
            return self.compute_capability in _GDDR
        return self.generation in _GDDR_GENERATIONS

    def ridge_flops_per_byte(self, dtype: DType) -> float:
        """Arithmetic intensity above which a dense GEMM is compute-bound."""
        return self.peak(dtype) / self.hbm_bytes_per_s


_GDDR = ("6.1", "7.5", "8.6", "8.9", "12.0")
_GDDR_GENERATIONS = ("turing", "ada", "blackwell_rtx")
"""Compute capabilities with GDDR memory (datasheets), and generations, for a datasheet that names no capability."""

_POSITIVE = (
    "num_sms",
    "hbm_bytes",
    "hbm_bytes_per_s",
    "l2_bytes",
    "boost_clock_hz",
    "tdp_w",
    "devices_per_node",
    "dies_per_card",
    "fp32_accumulate_rate",
    "tensor_core_rate",
)
_NOT_NEGATIVE = ("link_latency_s", *(f.name for f in fields(Gpu) if f.default == 0))
"""Numbers that may be 0: none of it."""


def _require_number(name: str, value: object, *, positive: bool) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or (isinstance(value, int | float) and (value < 0 or (positive and value == 0))):
        raise InputError(name, value, f"must be a finite number {'above' if positive else 'not below'} 0")


FIELD_NAMES = tuple(f.name for f in fields(Gpu) if f.name not in ("accelerator", "template_keys"))


TOLERANCE = 0.035
"""Datasheets round peaks to three digits and state them at clocks that differ by a few percent."""

MAX_OVER_BOOST = 1.2
"""Highest clock over the clock of the stated peaks: 1.16 on the H100 NVL, 1.00 to 1.08 elsewhere."""

RIDGE_RANGE = (10.0, 800.0)
"""Valid FLOP/byte of the widest matrix type of 16 bits or more: H20 has 37, TPU v6e 560; a sparse peak is outside."""

HOST_RIDGE_RANGE = (0.5, 800.0)
"""The same for a host's cores (generation ``cpu``): an old desktop has 3, cores with matrix units a few hundred."""


def check_gpu(gpu: Gpu) -> Gpu:
    """The device itself, or ``InputError`` with its first contradiction."""
    for error in _contradictions(gpu):
        raise error
    return gpu


def _contradictions(gpu: Gpu) -> Iterator[InputError]:
    """Every pair of stated numbers that cannot both be true."""
    yield from _clocks_apart(gpu)
    yield from _peaks_off_the_clock(gpu)
    yield from _narrow_slower_than_wide(gpu)
    yield from _fp8_off_bf16(gpu)
    yield from _ridge_out_of_range(gpu)


def flops_per_sm_cycle(gpu: Gpu) -> Mapping[DType, float]:
    """Dense FLOPs of one SM (CU, core, matrix engine) per cycle, by type; empty for unknown generations."""
    key = f"{gpu.generation}/{gpu.compute_capability}"
    table = _flops_per_cycle().get(key, _flops_per_cycle().get(gpu.generation, {}))
    vector = (DType.FP64, DType.FP32)
    return {
        dtype: rate
        * (1.0 if dtype in vector else gpu.tensor_core_rate)
        * (gpu.fp32_accumulate_rate if dtype in _SUMMED_IN_FP32 else 1.0)
        for dtype, rate in table.items()
    }


def _clocks_apart(gpu: Gpu) -> Iterator[InputError]:
    boost, highest = gpu.boost_clock_hz / 1e6, gpu.max_clock_hz / 1e6
    if highest and not boost <= highest <= MAX_OVER_BOOST * boost:
        must = f"the highest clock lies between the boost clock and {MAX_OVER_BOOST} times it, {boost:g} MHz"
        yield InputError("max_clock_mhz", highest, must, f"{boost:g}")


def _peaks_off_the_clock(gpu: Gpu) -> Iterator[InputError]:
    low_hz, high_hz = gpu.boost_clock_hz, max(gpu.boost_clock_hz, gpu.max_clock_hz)
    for dtype, rate in flops_per_sm_cycle(gpu).items():
        peak = gpu.peak_flops_per_s.get(dtype)
        if peak is None:
            continue
        low, high = (gpu.num_sms * hz * rate for hz in (low_hz, high_hz))
        if low * (1 - TOLERANCE) <= peak <= high * (1 + TOLERANCE):
            continue
        field, tflops, nearest = f"peak_dense_tflops.{dtype.value}", peak / 1e12, f"{low / 1e12:.4g}"
        cores = f"{gpu.num_sms} SMs x {low_hz / 1e6:g} MHz x {rate:g} FLOP per cycle"
        if 2 * low * (1 - TOLERANCE) <= peak <= 2 * high * (1 + TOLERANCE):
            yield InputError(field, tflops, f"is twice {cores}, a peak with sparsity; state the dense one", nearest)
        else:
            yield InputError(field, tflops, f"must agree with {cores} of {gpu.generation}", nearest)


def _narrow_slower_than_wide(gpu: Gpu) -> Iterator[InputError]:
    stated = [dtype for dtype in _WIDE_TO_NARROW if dtype in gpu.peak_flops_per_s]
    for wide, narrow in pairwise(stated):
        if gpu.peak_flops_per_s[narrow] < gpu.peak_flops_per_s[wide] * (1 - TOLERANCE):
            yield InputError(
                f"peak_dense_tflops.{narrow.value}",
                gpu.peak_flops_per_s[narrow] / 1e12,
                f"a narrower type cannot be slower than {wide.value}",
                f"{gpu.peak_flops_per_s[wide] / 1e12:.4g}",
            )


def _fp8_off_bf16(gpu: Gpu) -> Iterator[InputError]:
    """FP8 must run at the 16-bit rate (Gaudi 3, Trainium 1) or at twice it, as dense FP8 does on all products."""
    fp8, bf16 = gpu.peak_flops_per_s.get(DType.FP8), gpu.peak_flops_per_s.get(DType.BF16)
    if fp8 and bf16 and not any(abs(fp8 / bf16 - times) <= times * TOLERANCE for times in (1, 2)):
        yield InputError(
            "peak_dense_tflops.fp8",
            fp8 / 1e12,
            "a dense fp8 peak is once or twice the bf16 one"
            + ("; four times it is a peak with sparsity" if abs(fp8 / bf16 - 4) < 0.2 else ""),
            f"{2 * bf16 / 1e12:.4g}",
        )


def _ridge_out_of_range(gpu: Gpu) -> Iterator[InputError]:
    low, high = HOST_RIDGE_RANGE if gpu.generation == "cpu" else RIDGE_RANGE
    ridge = gpu.ridge_flops_per_byte(gpu.default_dtype)
    if not low <= ridge <= high:
        yield InputError(
            "hbm_gb_per_s",
            round(gpu.hbm_bytes_per_s / 1e9, 3),
            f"gives a ridge of {ridge:.3g} FLOP/byte with the {gpu.default_dtype.value} peak, "
            f"outside {low:g} to {high:g} of all devices known; check units and sparsity",
        )


_SUMMED_IN_FP32 = (DType.TF32, DType.BF16, DType.FP16, DType.FP8, DType.MXFP8)
_WIDE_TO_NARROW = (DType.FP32, DType.TF32, DType.FP16, DType.FP8, DType.NVFP4)


@cache
def _flops_per_cycle() -> Mapping[str, Mapping[DType, float]]:
    """Dense FLOPs per SM and cycle (2 per multiply-add), by generation or generation/compute capability."""
    table = packaged_toml("hardware", "flops_per_cycle.toml")
    return {key: {DType(name): float(rate) for name, rate in row.items()} for key, row in table.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """Multiples for lengths of one data type on one device, in elements."""

    minimum: int
    """Lengths that are not a multiple of it leave the fast path."""
    preferred: int
    """Larger multiples gain nothing more."""
    cliff: bool = True
    """Missing ``minimum`` is a steep loss (NVIDIA's tensor cores); False for a gradual one."""
    graded: bool = True
    """Missing ``preferred`` is a measurable loss; False if the device hardly notices (AMD)."""
    scale_block: int = 1
    """Elements along k (and n where they are stored so) that share a scale."""
    source: str = ""


def alignment_of(gpu: Gpu, dtype: DType) -> Alignment:
    """The alignment of ``gpu`` for ``dtype``; unknown generations and types follow the 16- and 128-byte rule."""
    if gpu.matrix_tile:
        return _systolic(gpu, dtype, gpu.matrix_tile)
    generations = (*_guides(), *_SYSTOLIC)
    family = next((name for name in generations if gpu.generation.lower().startswith(name)), _family_by_vendor(gpu))
    if family in _SYSTOLIC:
        return _systolic(gpu, dtype, _SYSTOLIC[family])
    return _guides().get(family, {}).get(dtype) or _by_bytes(dtype)


def flash_head_dims(gpu: Gpu) -> tuple[int, ...]:
    """Head dimensions that the generation's flash attention is compiled for, ascending; others are padded to the
    next."""
    return _FLASH_HEAD_DIMS.get(gpu.generation, _FLASH_DEFAULT)


_BLOCKS: Mapping[DType, int] = MappingProxyType(
    {DType.FP8: 16, DType.FP8_BLOCK: 128, DType.MXFP8: 32, DType.MXFP4: 32, DType.NVFP4: 32}
)
"""FP8: leading dimensions % 16; MX and NVFP4: last dimension % 32 (NVIDIA/TransformerEngine PR 2894, issue 2966, 2025);
fp8_block: 128 x 128 weight blocks (DeepSeek-V3 config.json, weight_block_size, 2024-12)."""


def _by_bytes(dtype: DType) -> Alignment:
    """16 bytes to reach the fast path, 128 for full speed: the rule of arXiv 2401.14489 for A100."""
    bits = round(8 * dtype.bytes)  # without the share of a scale
    return Alignment(
        minimum=max(1, 16 * 8 // bits),
        preferred=max(1, 128 * 8 // bits),
        scale_block=_BLOCKS.get(dtype, 1),
        source="16- and 128-byte rule, arXiv 2401.14489 (2024-01)",
    )


@cache
def _guides() -> Mapping[str, Mapping[DType, Alignment]]:
    """What guides say of lengths, by generation; one whose name begins another's stands after it."""
    guides: dict[str, dict[DType, Alignment]] = {}
    for row in packaged_toml("hardware", "alignment.toml")["guide"]:
        family = guides.setdefault(row["generation"], {})
        about = {name: row[name] for name in ("source", "cliff", "graded") if name in row}
        family |= {dtype: replace(rule, **about) for dtype, rule in guides.get(row.get("like", ""), {}).items()}
        for name, (low, high) in row.get("multiples", {}).items():
            dtype = DType(name)
            family[dtype] = Alignment(minimum=low, preferred=high, scale_block=_BLOCKS.get(dtype, 1), **about)
    return guides


_SYSTOLIC: Mapping[str, int] = MappingProxyType({"tpu": 128, "trainium": 128, "inferentia": 128, "gaudi": 128})


def _systolic(gpu: Gpu, dtype: DType, side: int) -> Alignment:
    """A systolic array pads to its own side: no steep loss, but every padded lane costs time."""
    lengths = (
        "the chip's own description" if gpu.accelerator else "codesign.md section 2.1, vendor guides; from memory, 2024"
    )
    return Alignment(
        minimum=1,
        preferred=side,
        cliff=False,
        scale_block=_BLOCKS.get(dtype, 1),
        source=f"side of the matrix unit, {side} ({lengths})",
    )


def _family_by_vendor(gpu: Gpu) -> str:
    return {"amd": "cdna", "google": "tpu", "aws": "trainium", "amazon": "trainium"}.get(gpu.vendor.lower(), "")


FLASH_MULTIPLE = 8
"""Head dimensions that flash attention takes without copies: 16 bytes of a 16-bit type (flash_attn_interface.py pads
others to it, flash-attention 2.7; ``check_cudnn_tensor_shapes`` in PyTorch's sdp_utils.cpp)."""
_FLASH_DEFAULT = (32, 64, 96, 128, 192, 256)
"""Dao-AILab/flash-attention, csrc/flash_attn kernels of 2.x (2023-07): head dimensions up to 256."""
_FLASH_HEAD_DIMS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "hopper": (64, 96, 128, 192, 256),
        "blackwell": (64, 96, 128, 192, 256),
    }
)
"""Dao-AILab/flash-attention, hopper/ (FlashAttention-3, 2024-07); FA2 to FA4 from the reference digest."""
