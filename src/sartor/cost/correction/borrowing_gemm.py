"""GEMM coefficients of a device and type: ``GEMM_RULES``, of which the first that finds something applies."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

from sartor.cost.correction.carrying import (
    DIE,
    OTHER_DIE,
    REFERENCE,
    Rates,
    borrowed,
    quantized_on,
    rescaled,
    widened,
    within_power,
)
from sartor.cost.correction.coefficients import GemmCoefficients, coefficients, table_of
from sartor.cost.correction.relatives import (
    OTHER_UNITS,
    SAME_SM,
    Found,
    Relative,
    borrowed_from,
    data_file,
    further,
    kin_entry,
    known_gpu,
    relative_of,
)
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType

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
"""Types that run on the same units at the same rate."""

SIBLING_LOG_SIGMA = 0.3
"""Least standard deviation of ln(measured / predicted) of a type priced by a sibling's fit on the same device: the
middle of twelve cases that tables can check (int8 and block-scaled fp8 by fp8, weight-only types by each other: 0.16
to 0.62)."""

OWN_OTHER_TYPE = {"lender": "own (another dtype)"}
"""What a record says of coefficients of another type of the same device (``Calibration.owner``)."""

JOINT_VENDOR = "NVIDIA"
"""The vendor whose generations the joint fit covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Borrower:
    """A request for GEMM coefficients."""

    gpu: Gpu
    dtype: DType
    relative: Relative
    few: bool = False
    """Only fits of tables that go down to one row."""

    @property
    def dtypes(self) -> tuple[DType, ...]:
        return (self.dtype, *SIBLINGS.get(self.dtype, ()))

    @property
    def section(self) -> str:
        return f"gemm.{self.dtype.value}"

    @property
    def general(self) -> str:
        """The vendor's device whose fp32 fit on general cores is borrowed; empty for other types."""
        lender: str = data_file("kin.toml").get("general_cores", {}).get(self.gpu.vendor, "")
        return lender if self.dtype is DType.FP32 and table_of(f"{lender}.fp32.toml") else ""


def gemm_coefficients(gpu: Gpu, dtype: DType, assumed: GemmCoefficients, *, few: bool = False) -> Found:
    """Coefficients of the device's GEMMs in ``dtype`` by the first rule that finds some, else ``assumed``. Without
    units for tf32 they are those in fp32. ``few``: for GEMMs of few rows, which sweeps of wide ones don't hold
    (``fewest_m``), so no rule takes those."""
    if dtype is DType.TF32 and dtype not in gpu.peak_flops_per_s:
        dtype = DType.FP32
    borrower = _Borrower(gpu=gpu, dtype=dtype, relative=relative_of(gpu), few=few)
    fits = (rule(borrower) for rule in GEMM_RULES)
    return next((fit for fit in fits if fit), Found(coefficients=assumed, record={}))


def _own_fit(borrower: _Borrower) -> Found | None:
    """1. The device's own fit, of the type; else of a sibling, which is not measured then."""
    fit = next(_fits(borrower.gpu.name, borrower.dtypes, borrower.few), None)
    if fit is None:
        return None
    dtype, table = fit
    if _alike(dtype, borrower.dtype):
        stated = {} if dtype is borrower.dtype else OWN_OTHER_TYPE
        return Found(coefficients=_gemm(table), own=True, record=_fit_record(table) | stated)
    return Found(coefficients=_sibling(_gemm(table)), record=_fit_record(table) | OWN_OTHER_TYPE)


def _joint_fit(borrower: _Borrower) -> Found | None:
    """2. The joint fit of all generations, for devices without a relative that has the same kind of SM."""
    return _joint(borrower, borrower.dtype, near="joint") if kin_entry(borrower.gpu).get("gemm") else None


def _relatives_fit(borrower: _Borrower) -> Found | None:
    """3. The relative's fit, of the type or of a sibling, else that of the relative's relative. Not of general cores:
    their clock under a power limit is part of a fit, so other dies take rule 4."""
    return _fit_of(borrower, borrower.relative) or (
        None if borrower.general else _fit_of(borrower, _two_away(borrower.relative))
    )


def _two_away(near: Relative) -> Relative:
    """The relative's own relative, widened by the larger of both steps."""
    far = relative_of(known_gpu(near.name)) if near.name else near
    return replace(far, widen=max(near.widen, far.widen))


def _fit_of(borrower: _Borrower, relative: Relative) -> Found | None:
    dtype, table = next(_fits(relative.name, borrower.dtypes, borrower.few), (borrower.dtype, None))
    if table is None or (
        borrower.general and not relative.same_die and not _like_one_die(borrower.gpu, known_gpu(relative.name))
    ):
        return None
    fit = _gemm(table)
    carried = borrowed(fit, borrower.section, relative.widen)
    carried = quantized_on(carried, known_gpu(relative.name), borrower.gpu) if relative.widen <= OTHER_DIE else carried
    carried = carried if _alike(dtype, borrower.dtype) else _sibling(carried)
    if relative.widen > OTHER_DIE and not fit.throttle:
        carried = within_power(carried, borrower.gpu, _general_per_joule(borrower.gpu), fit.throttle_s)
    lender = borrowed_from(relative.name) if relative.name != borrower.relative.name else {}
    return Found(coefficients=carried, record=_fit_record(table) | lender)


def _general_of_die(borrower: _Borrower) -> str:
    """The device of the same die whose fp32 fit is borrowed: that of ``kin.toml``, or the relative's relative."""
    near = data_file("kin.toml").get(borrower.relative.name, {}) if borrower.relative.same_die else {}
    named = (entry["general"] for entry in (kin_entry(borrower.gpu), near) if "general" in entry)
    return next(named, "") or further(borrower.relative)


def _like_one_die(gpu: Gpu, relative: Gpu) -> bool:
    """Whether two datasheets are of one die at one power limit, under another name."""
    same = gpu.generation == relative.generation and gpu.num_sms == relative.num_sms
    pairs = ((gpu.boost_clock_hz, relative.boost_clock_hz), (gpu.tdp_w, relative.tdp_w))
    return same and all(abs(value / reference - 1) < SAME_SM for value, reference in pairs if reference)


def _general_cores(borrower: _Borrower) -> Found | None:
    """4. fp32: a relative's relative on the same die, else the vendor's device for general cores at the clock that this
    device's power limit allows: nearer than the device's own matrix units."""
    further, gpu = _general_of_die(borrower), borrower.gpu
    table = next(_tables(further, (DType.FP32,)), None)
    if borrower.general and table:
        carried = borrowed(_gemm(table), borrower.section, max(borrower.relative.widen, DIE))
        return Found(coefficients=carried, record=_fit_record(table) | borrowed_from(further))
    table = next(_tables(borrower.general, (DType.FP32,)), None)
    if table is None:
        return None
    carried = within_power(borrowed(_gemm(table), borrower.section, OTHER_UNITS), gpu, _general_per_joule(gpu))
    return Found(coefficients=carried, record=_fit_record(table) | borrowed_from(borrower.general))


def _joint_for_few(borrower: _Borrower) -> Found | None:
    """5. Few rows, where neither the device nor a relative was measured with them: the joint fit. From V100's fewest
    rows (22,016 columns, 4,096 long) it is 6% off the sweeps' fit, Volta's assumptions 21% (2026-11-27)."""
    return _joint(borrower, borrower.dtype) if borrower.few else None


def _own_16_bits(borrower: _Borrower) -> Found | None:
    """6. The device's own 16-bit fit, twice as wide: other units, but the same memory, launches and tiles."""
    table = next(_tables(borrower.gpu.name, (DType.BF16, DType.FP16), borrower.few), None)
    carried = widened(_menu_of(borrower, _gemm(table)), 2.0) if table else None
    return Found(coefficients=carried, record=_fit_record(table) | OWN_OTHER_TYPE) if table else None


def _menu_of(borrower: _Borrower, c: GemmCoefficients) -> GemmCoefficients:
    """A 16-bit fit for tf32: where records say so, only some of its tiles (``kin.toml``)."""
    if borrower.dtype is not DType.TF32:
        return c
    menu = data_file("kin.toml").get("tf32_tiles", {}).get(borrower.gpu.generation, ())
    tiles = tuple(tile for tile in c.tiles if list(tile[:2]) in menu)
    return replace(c, tiles=tiles) if tiles else c


def _others_16_bits(borrower: _Borrower) -> Found | None:
    """7. Rule 6 with the joint fit, else with the relative's, else with that of the relative's relative."""
    wide = (DType.BF16, DType.FP16)
    joint = next(filter(None, (_joint(borrower, dtype, widen=OTHER_UNITS) for dtype in wide)), None)
    if joint:
        return joint
    for relative in (borrower.relative, _two_away(borrower.relative)):
        for table in _tables(relative.name, wide, borrower.few):
            carried = borrowed(widened(_menu_of(borrower, _gemm(table)), 2.0), borrower.section, relative.widen)
            return Found(coefficients=carried, record=_fit_record(table) | borrowed_from(relative.name))
    return None


GEMM_RULES: tuple[Callable[[_Borrower], Found | None], ...] = (
    _own_fit,
    _joint_fit,
    _relatives_fit,
    _general_cores,
    _joint_for_few,
    _own_16_bits,
    _others_16_bits,
)


def _joint(borrower: _Borrower, dtype: DType, widen: float = 1.0, near: str = "") -> Found | None:
    """The fit of all generations (or the variant for this kind of SM) on this device's datasheet: for devices with such
    an entry in ``kin.toml``, and for unknown devices of the vendor whose generations were fitted. Its interval is what
    held-out generations need."""
    gpu = borrower.gpu
    name, rates = kin_entry(gpu).get("gemm", "") or ("joint" if borrower.few else ""), Rates.of(gpu)
    if not name or dtype not in gpu.peak_flops_per_s or rates is None or gpu.vendor != JOINT_VENDOR:
        return None
    if not borrower.few and gpu.generation in _generations_with_own_tiles():
        return None
    table = data_file(f"{name}.toml")
    alike = () if dtype is DType.FP8_BLOCK else SIBLINGS.get(dtype, ())  # fp8_block kernels are a framework's own
    kinds = ("_warp", "") if rates.by_warps else ("",)
    fit = next((table[d.value + kind] for d in (dtype, *alike) for kind in kinds if d.value + kind in table), None)
    if fit is None:
        return None
    carried = borrowed(rescaled(_gemm(fit), REFERENCE, rates), borrower.section, widen, near)
    return Found(coefficients=replace(carried, **_STATIC) if dtype is DType.INT8 else carried, record=fit["provenance"])


_STATIC: JsonDict = {"quantize_s": 0.0, "quantize_bytes": 0.0, "quantize_more_s": 0.0}
"""int8 is smooth-quant, whose scales are known beforehand: no kernel narrows (0.1 byte an element in A100's own fit,
3.6 to 4.6 in fp8's). A100's from another generation is 20% off without, 25% with (2026-11-26)."""


@cache
def _generations_with_own_tiles() -> frozenset[str]:
    """Generations with their own assumed tiles, different from the fitted ones."""
    return frozenset(name for name, entry in data_file("generations.toml").items() if "tiles" in entry.get("gemm", ()))


def _general_per_joule(gpu: Gpu) -> float:
    return float(data_file("kin.toml")["general_flops_per_joule"].get(gpu.generation, 0.0))


def _tables(owner: str, dtypes: Iterable[DType], few: bool = False) -> Iterator[JsonMap]:
    """The existing fits of a device in these types; ``few``: those that go down to one row."""
    return (table for _, table in _fits(owner, dtypes, few))


def _fits(owner: str, dtypes: Iterable[DType], few: bool = False) -> Iterator[tuple[DType, JsonMap]]:
    """The same fits with their types."""
    named = ((dtype, table_of(f"{owner}.{dtype.value}.toml")) for dtype in dtypes if owner)
    return ((dtype, table) for dtype, table in named if table and not (few and fewest_m(_fit_record(table)) > 1))


def fewest_m(record: JsonMap) -> float:
    """The fewest rows of the GEMMs that a fit is of."""
    return float(record.get("fewest_m", 1))


def _alike(fitted: DType, dtype: DType) -> bool:
    """Whether a fit of one type is one of the other: both 16-bit floats run the same kernels."""
    return fitted is dtype or {fitted, dtype} == {DType.BF16, DType.FP16}


def _sibling(fit: GemmCoefficients) -> GemmCoefficients:
    """A fit of another type of the same units, as uncertain as measured siblings are."""
    return widened(fit, 1.0, {"": SIBLING_LOG_SIGMA})


def _gemm(table: JsonMap) -> GemmCoefficients:
    return coefficients(GemmCoefficients, table["gemm"])


def _fit_record(table: JsonMap) -> JsonDict:
    return dict(table["provenance"]["gemm"])
