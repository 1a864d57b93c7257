"""Whose coefficients a product takes: the device's own, a sibling dtype's, the joint fit's, a relative's, or what is
assumed of its generation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sartor.cost.correction.coefficients import GemmCoefficients
from sartor.cost.correction.kinship import DIE, OTHER_DIE, beyond, borrowed, kin_entry, lender_record, widened
from sartor.cost.correction.lending import within_power
from sartor.cost.correction.scaling import REFERENCE, Rates, rescaled
from sartor.cost.correction.tables import coefficients, table_of
from sartor.hardware.gpu import Gpu
from sartor.operators import DType


def product_coefficients(
    gpu: Gpu, kin: str, widen: float, dtype: DType, base: GemmCoefficients, general: str
) -> tuple[GemmCoefficients, str, Mapping[str, Any]]:
    """Coefficients, whose they are (empty: assumed or of no device in particular), and their record."""
    if dtype is DType.FP32 and widen > DIE and table_of(f"{general}.fp32.toml"):
        kin = ""  # clocks of general cores under a power limit are part of a fit: other dies take the general lender's
    for owner in (gpu.name, kin):
        joint = _joint(gpu, dtype) if owner != gpu.name else None
        if joint:
            return borrowed(joint[0], f"gemm.{dtype.value}", 1.0, "joint"), "", joint[1]
        for each in (dtype, *SIBLINGS.get(dtype, ())):
            table = table_of(f"{owner}.{each.value}.toml") if owner else None
            if table:
                found = coefficients(GemmCoefficients, table["gemm"])
                lent = found if owner == gpu.name else borrowed(found, f"gemm.{dtype.value}", widen)
                if owner != gpu.name and widen > OTHER_DIE and not found.throttle:
                    lent = within_power(lent, gpu, _general_per_joule(gpu), found.throttle_s)
                return lent, owner, table["provenance"]["gemm"]
    if dtype is DType.FP32 and table_of(f"{general}.fp32.toml"):  # nearer than one's own matrix units
        return _on_general_cores(gpu, beyond(kin, widen), widen, general)
    for owner, each in ((gpu.name, DType.BF16), (gpu.name, DType.FP16), (kin, DType.BF16), (kin, DType.FP16)):
        joint = _joint(gpu, each) if owner != gpu.name else None
        if joint:
            return borrowed(joint[0], f"gemm.{dtype.value}", OTHER_UNITS), "", joint[1]
        table = table_of(f"{owner}.{each.value}.toml") if owner else None
        if table:  # other units, the same memory, launches and tiles
            found = widened(coefficients(GemmCoefficients, table["gemm"]), 2.0)
            lent = found if owner == gpu.name else borrowed(found, f"gemm.{dtype.value}", widen)
            return lent, "", table["provenance"]["gemm"]
    return base, "", {}


SIBLINGS: dict[DType, tuple[DType, ...]] = {
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


def _on_general_cores(
    gpu: Gpu, relative: str, widen: float, general: str
) -> tuple[GemmCoefficients, str, Mapping[str, Any]]:
    """fp32 of a device without a fit of its own or of its kin: of a ``relative`` on the same die, else of the vendor's
    ``general`` lender with the clock that this device's power limit allows."""
    table = table_of(f"{relative}.fp32.toml") if relative else None
    if table:
        lent = borrowed(coefficients(GemmCoefficients, table["gemm"]), "gemm.fp32", widen)
        return lent, "", table["provenance"]["gemm"] | lender_record(relative)
    table = table_of(f"{general}.fp32.toml") or {}
    lent = borrowed(coefficients(GemmCoefficients, table["gemm"]), "gemm.fp32", 3.0)
    return within_power(lent, gpu, _general_per_joule(gpu)), "", table["provenance"]["gemm"] | lender_record(general)


def _general_per_joule(gpu: Gpu) -> float:
    return float((table_of("kin.toml") or {})["general_flops_per_joule"].get(gpu.generation, 0.0))


def _joint(gpu: Gpu, dtype: DType) -> tuple[GemmCoefficients, Mapping[str, Any]] | None:
    """The fit of all generations at once, or the one that leans on its kind of SM, on this device's datasheet: for
    devices that ``kin.toml`` says so of, and for those it does not know whose maker's generations were fitted. Its
    interval is what generations held out need."""
    asked, rates = kin_entry(gpu).get("gemm", ""), Rates.of(gpu)
    native = dtype in gpu.peak_flops_per_s
    if not asked or not native or rates is None or gpu.vendor != JOINT_VENDOR or gpu.generation in _own_menus():
        return None
    table = table_of(f"{asked}.toml") or {}
    alike = () if dtype is DType.FP8_BLOCK else SIBLINGS.get(dtype, ())  # its kernels are a framework's own
    kinds = ("_warp", "") if rates.flops_per_cycle < WARP_FLOPS_PER_CYCLE else ("",)
    found = next((table[d.value + kind] for d in (dtype, *alike) for kind in kinds if d.value + kind in table), None)
    if found is None:
        return None
    return rescaled(coefficients(GemmCoefficients, found["gemm"]), REFERENCE, rates), found["provenance"]


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
        name for name, entry in (table_of("generations.toml") or {}).items() if "tiles" in entry.get("gemm", ())
    )
