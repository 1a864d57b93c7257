"""GPUs as described by their datasheets: dense peaks, memory, clocks, links, price, each with a source."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import SequenceMatcher
from typing import TYPE_CHECKING

from sartor.errors import InputError
from sartor.operators import DType

if TYPE_CHECKING:
    from sartor.hardware.accelerator import Accelerator


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device (one die where a card's dies are separate devices). Peaks are dense, rates in SI units.

    Construction rejects impossible values (sizes that are not positive and finite, a cache larger than the memory).
    Only ``hardware.selfcheck`` checks the consistency of catalogue entries, so that tests may use invented devices.
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

    def ridge_flops_per_byte(self, dtype: DType) -> float:
        """Arithmetic intensity above which a dense GEMM is compute-bound."""
        return self.peak(dtype) / self.hbm_bytes_per_s


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
_NOT_NEGATIVE = (
    "max_clock_hz",
    "link_bytes_per_s",
    "link_latency_s",
    "link_domain",
    "pcie_bytes_per_s",
    "host_link_bytes_per_s",
    "host_memory_bytes_per_s",
    "smem_bytes_per_sm",
    "memory_side_cache_bytes",
    "matrix_tile",
    "die_mm2",
    "process_nm",
)


def _require_number(name: str, value: object, *, positive: bool) -> None:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not ok or (isinstance(value, int | float) and (value < 0 or (positive and value == 0))):
        raise InputError(name, value, f"must be a finite number {'above' if positive else 'not below'} 0")


FIELD_NAMES = tuple(f.name for f in fields(Gpu) if f.name != "accelerator")
