"""Which measured device an unmeasured one borrows its calibration from: the first rule that finds something applies.

A measured device (``data/h200_sxm.toml``, ``h200_sxm.bf16.toml``, ...) uses its own fits. What it lacks it borrows:

=================  =====================================================================================
GEMMs of a type    ``GEMM_RULES``: its own fit, the joint fit of all generations, its relative's fit, ...
collectives        those of the device whose links are most alike
streaming kernels  the law of all measured devices; other vendors' its relative's
attention          its relative's; of another generation, the median of all that were measured
MoE                its relative's; of another generation, that of like SMs, else the nearest earlier one's
anything else      assumptions for its generation (``generations.toml``)
=================  =====================================================================================

``data/kin.toml`` lists every device's relative; a device that is not in the file gets its generation's. ``carrying``
converts the values. Accuracy of each kind of borrowing: docs/kin.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np

from sartor.cost.correction.carrying import (
    DIE,
    OTHER_DIE,
    REFERENCE,
    Rates,
    attention_on,
    between,
    borrowed,
    experts_on,
    per_sm,
    quantized_on,
    rescaled,
    widened,
    with_calls,
    within_power,
)
from sartor.cost.correction.coefficients import (
    AttentionCoefficients,
    CollectiveCoefficients,
    GemmCoefficients,
    GroupedCoefficients,
    MemoryBoundCoefficients,
    StreamLaw,
    TorchStreams,
)
from sartor.cost.correction.tables import SECTIONS, coefficients, generation, table_of
from sartor.cost.gpu.stream_law import GIGAHERTZ, clock_hz, memory_is_gddr
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType
from sartor.units import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Relative:
    """The measured device that another borrows from (no name: there is none), and how much wider its intervals get."""

    name: str = ""
    widen: float = 1.0

    @property
    def same_die(self) -> bool:
        """Differs at most in memory or power limit."""
        return self.widen <= DIE


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """Coefficients that a rule found."""

    coefficients: Any
    own: bool = False
    """Whether they were fitted on this very device and type."""
    record: JsonMap
    """Their source, rows, date and errors; empty if nothing was fitted."""


# ------------------------------------------------------------------------------------------------ whose relative


SAME_GENERATION = 1.8
"""Widening for another die of the same generation (``kin.toml``)."""

SAME_SM = 0.1
"""FLOPs per cycle of two SMs of one kind differ by less: 1 to 2% from rounding, 100% between kinds."""


def relative_of(gpu: Gpu) -> Relative:
    """The measured device that ``gpu`` borrows from."""
    entry = _entry(gpu)
    return Relative(name=entry.get("of", ""), widen=float(entry.get("widen", 1.0)))


def _entry(gpu: Gpu) -> JsonMap:
    """The ``kin.toml`` entry of the device. An unknown device gets its generation's relative, and for GEMMs the joint
    fit unless its SMs are like the relative's."""
    table = _file("kin.toml")
    if gpu.name in table or any(table_of(f"{gpu.name}{end}.toml") for end in ("", ".bf16", ".fp16", ".fp32")):
        return table.get(gpu.name, {})  # type: ignore[no-any-return]
    relative, rates = table.get("generation", {}).get(gpu.generation), Rates.of(gpu)
    if not relative or not rates or gpu.vendor != relative["vendor"]:
        return {"gemm": "joint"}
    alike = abs(rates.flops_per_cycle / relative["flops_per_cycle"] - 1) < SAME_SM
    return {"of": relative["of"], "widen": SAME_GENERATION, "gemm": "" if alike else "joint"}


def _further(relative: Relative) -> str:
    """The relative's own relative if all three have the same die; else empty."""
    entry = _file("kin.toml").get(relative.name, {})
    return str(entry["of"]) if max(relative.widen, entry.get("widen", 9.0)) <= DIE else ""


# ------------------------------------------------------------------------------------------------ GEMMs


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

OTHER_UNITS = 3.0
"""Widening of a joint fit of 16-bit GEMMs for other types: as from another generation."""

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
        lender: str = _file("kin.toml").get("general_cores", {}).get(self.gpu.vendor, "")
        return lender if self.dtype is DType.FP32 and table_of(f"{lender}.fp32.toml") else ""


def gemm_coefficients(gpu: Gpu, dtype: DType, assumed: GemmCoefficients, *, few: bool = False) -> Found:
    """Coefficients of the device's GEMMs in ``dtype`` by the first rule that finds some, else ``assumed``. Without
    units for tf32 they are those in fp32. ``few``: for GEMMs of few rows, which sweeps of wide ones don't hold
    (``fewest_m``), so no rule takes those."""
    if dtype is DType.TF32 and dtype not in gpu.peak_flops_per_s:
        dtype = DType.FP32
    asked = _Borrower(gpu=gpu, dtype=dtype, relative=relative_of(gpu), few=few)
    found = (rule(asked) for rule in GEMM_RULES)
    return next((each for each in found if each), Found(coefficients=assumed, record={}))


def _own_fit(asked: _Borrower) -> Found | None:
    """1. The device's own fit, of the type; else of a sibling, which is not measured then."""
    fit = next(_fits(asked.gpu.name, asked.dtypes, asked.few), None)
    if fit is None:
        return None
    dtype, table = fit
    if _alike(dtype, asked.dtype):
        stated = {} if dtype is asked.dtype else OWN_OTHER_TYPE
        return Found(coefficients=_gemm(table), own=True, record=_record(table) | stated)
    return Found(coefficients=_sibling(_gemm(table)), record=_record(table) | OWN_OTHER_TYPE)


def _joint_fit(asked: _Borrower) -> Found | None:
    """2. The joint fit of all generations, for devices without a relative that has the same kind of SM."""
    return _joint(asked, asked.dtype, near="joint") if _entry(asked.gpu).get("gemm") else None


def _relatives_fit(asked: _Borrower) -> Found | None:
    """3. The relative's fit, of the type or of a sibling, else that of the relative's relative. Not of general cores:
    their clock under a power limit is part of a fit, so other dies take rule 4."""
    return _fit_of(asked, asked.relative) or (None if asked.general else _fit_of(asked, _two_away(asked.relative)))


def _two_away(near: Relative) -> Relative:
    """The relative's own relative, widened by the larger of both steps."""
    far = relative_of(_known(near.name)) if near.name else near
    return replace(far, widen=max(near.widen, far.widen))


def _fit_of(asked: _Borrower, relative: Relative) -> Found | None:
    dtype, table = next(_fits(relative.name, asked.dtypes, asked.few), (asked.dtype, None))
    if table is None or (
        asked.general and not relative.same_die and not _like_one_die(asked.gpu, _known(relative.name))
    ):
        return None
    fit = _gemm(table)
    found = borrowed(fit, asked.section, relative.widen)
    found = quantized_on(found, _known(relative.name), asked.gpu) if relative.widen <= OTHER_DIE else found
    found = found if _alike(dtype, asked.dtype) else _sibling(found)
    if relative.widen > OTHER_DIE and not fit.throttle:
        found = within_power(found, asked.gpu, _general_per_joule(asked.gpu), fit.throttle_s)
    lender = borrowed_from(relative.name) if relative.name != asked.relative.name else {}
    return Found(coefficients=found, record=_record(table) | lender)


def _general_of_die(asked: _Borrower) -> str:
    """The device of the same die whose fp32 fit is borrowed: that of ``kin.toml``, or the relative's relative."""
    near = _file("kin.toml").get(asked.relative.name, {}) if asked.relative.same_die else {}
    named = (entry["general"] for entry in (_entry(asked.gpu), near) if "general" in entry)
    return next(named, "") or _further(asked.relative)


def _like_one_die(gpu: Gpu, other: Gpu) -> bool:
    """Whether two datasheets are of one die at one power limit, under another name."""
    same = gpu.generation == other.generation and gpu.num_sms == other.num_sms
    pairs = ((gpu.boost_clock_hz, other.boost_clock_hz), (gpu.tdp_w, other.tdp_w))
    return same and all(abs(one / two - 1) < SAME_SM for one, two in pairs if two)


def _general_cores(asked: _Borrower) -> Found | None:
    """4. fp32: a relative's relative on the same die, else the vendor's device for general cores at the clock that this
    device's power limit allows: nearer than the device's own matrix units."""
    further, gpu = _general_of_die(asked), asked.gpu
    table = next(_tables(further, (DType.FP32,)), None)
    if asked.general and table:
        found = borrowed(_gemm(table), asked.section, max(asked.relative.widen, DIE))
        return Found(coefficients=found, record=_record(table) | borrowed_from(further))
    table = next(_tables(asked.general, (DType.FP32,)), None)
    if table is None:
        return None
    found = within_power(borrowed(_gemm(table), asked.section, OTHER_UNITS), gpu, _general_per_joule(gpu))
    return Found(coefficients=found, record=_record(table) | borrowed_from(asked.general))


def _joint_for_few(asked: _Borrower) -> Found | None:
    """5. Few rows, where neither the device nor a relative was measured with them: the joint fit. From V100's fewest
    rows (22,016 columns, 4,096 long) it is 6% off the sweeps' fit, Volta's assumptions 21% (2026-11-27)."""
    return _joint(asked, asked.dtype) if asked.few else None


def _own_16_bits(asked: _Borrower) -> Found | None:
    """6. The device's own 16-bit fit, twice as wide: other units, but the same memory, launches and tiles."""
    table = next(_tables(asked.gpu.name, (DType.BF16, DType.FP16), asked.few), None)
    found = widened(_menu_of(asked, _gemm(table)), 2.0) if table else None
    return Found(coefficients=found, record=_record(table) | OWN_OTHER_TYPE) if table else None


def _menu_of(asked: _Borrower, c: GemmCoefficients) -> GemmCoefficients:
    """A 16-bit fit for tf32: where records say so, only some of its tiles (``kin.toml``)."""
    menu = _file("kin.toml").get("tf32_tiles", {}).get(asked.gpu.generation, ()) if asked.dtype is DType.TF32 else ()
    tiles = tuple(tile for tile in c.tiles if list(tile[:2]) in menu)
    return replace(c, tiles=tiles) if tiles else c


def _others_16_bits(asked: _Borrower) -> Found | None:
    """7. Rule 6 with the joint fit, else with the relative's, else with that of the relative's relative."""
    wide = (DType.BF16, DType.FP16)
    joint = next(filter(None, (_joint(asked, dtype, widen=OTHER_UNITS) for dtype in wide)), None)
    if joint:
        return joint
    for relative in (asked.relative, _two_away(asked.relative)):
        for table in _tables(relative.name, wide, asked.few):
            found = borrowed(widened(_menu_of(asked, _gemm(table)), 2.0), asked.section, relative.widen)
            return Found(coefficients=found, record=_record(table) | borrowed_from(relative.name))
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


def _joint(asked: _Borrower, dtype: DType, widen: float = 1.0, near: str = "") -> Found | None:
    """The fit of all generations (or the variant for this kind of SM) on this device's datasheet: for devices with such
    an entry in ``kin.toml``, and for unknown devices of the vendor whose generations were fitted. Its interval is what
    held-out generations need."""
    gpu = asked.gpu
    name, rates = _entry(gpu).get("gemm", "") or ("joint" if asked.few else ""), Rates.of(gpu)
    if not name or dtype not in gpu.peak_flops_per_s or rates is None or gpu.vendor != JOINT_VENDOR:
        return None
    if not asked.few and gpu.generation in _generations_with_own_tiles():
        return None
    table = _file(f"{name}.toml")
    alike = () if dtype is DType.FP8_BLOCK else SIBLINGS.get(dtype, ())  # fp8_block kernels are a framework's own
    kinds = ("_warp", "") if rates.by_warps else ("",)
    fit = next((table[d.value + kind] for d in (dtype, *alike) for kind in kinds if d.value + kind in table), None)
    if fit is None:
        return None
    here = borrowed(rescaled(_gemm(fit), REFERENCE, rates), asked.section, widen, near)
    return Found(coefficients=replace(here, **_STATIC) if dtype is DType.INT8 else here, record=fit["provenance"])


_STATIC: JsonDict = {"quantize_s": 0.0, "quantize_bytes": 0.0, "quantize_more_s": 0.0}
"""int8 is smooth-quant, whose scales are known beforehand: no kernel narrows (0.1 byte an element in A100's own fit,
3.6 to 4.6 in fp8's). A100's from another generation is 20% off without, 25% with (2026-11-26)."""


@cache
def _generations_with_own_tiles() -> frozenset[str]:
    """Generations with their own assumed tiles, different from the fitted ones."""
    return frozenset(name for name, entry in _file("generations.toml").items() if "tiles" in entry.get("gemm", ()))


def _general_per_joule(gpu: Gpu) -> float:
    return float(_file("kin.toml")["general_flops_per_joule"].get(gpu.generation, 0.0))


def _tables(owner: str, dtypes: Iterable[DType], few: bool = False) -> Iterator[JsonMap]:
    """The existing fits of a device in these types; ``few``: those that go down to one row."""
    return (table for _, table in _fits(owner, dtypes, few))


def _fits(owner: str, dtypes: Iterable[DType], few: bool = False) -> Iterator[tuple[DType, JsonMap]]:
    """The same fits with their types."""
    named = ((dtype, table_of(f"{owner}.{dtype.value}.toml")) for dtype in dtypes if owner)
    return ((dtype, table) for dtype, table in named if table and not (few and fewest_m(_record(table)) > 1))


def fewest_m(record: JsonMap) -> float:
    """The fewest rows of the GEMMs that a fit is of."""
    return float(record.get("fewest_m", 1))


def _alike(fitted: DType, asked: DType) -> bool:
    """Whether a fit of one type is one of the other: both 16-bit floats run the same kernels."""
    return fitted is asked or {fitted, asked} == {DType.BF16, DType.FP16}


def _sibling(found: GemmCoefficients) -> GemmCoefficients:
    """A fit of another type of the same units, as uncertain as measured siblings are."""
    return widened(found, 1.0, {"": SIBLING_LOG_SIGMA})


def _gemm(table: JsonMap) -> GemmCoefficients:
    return coefficients(GemmCoefficients, table["gemm"])


def _record(table: JsonMap) -> JsonDict:
    return dict(table["provenance"]["gemm"])


# ------------------------------------------------------------------------------------------------ other kernels


def section_coefficients(gpu: Gpu, name: str, assumed: Floats) -> Found:
    """Attention or grouped GEMMs: the device's own, else its relative's, else ``assumed``. Of a generation nobody
    measured: attention is the median of all that were, grouped GEMMs another generation's."""
    relative = experts_relative(gpu) if name == "grouped" else relative_of(gpu)
    near = relative.name and relative.widen <= OTHER_DIE
    asked = name == "attention" and not near and name not in _file(f"{gpu.name}.toml")
    return (_attention_of_all(gpu) if asked else None) or _section(gpu, relative, name, assumed)


def _attention_of_all(gpu: Gpu) -> Found | None:
    """The median of the maker's other measured generations; None for devices without bf16, on which the measured
    kernels do not run. The time a block takes to start depends on the kind of SM: 1.5 to 2.5 us where tensor cores
    read shared memory, less than 1 us where they are fed from registers."""
    rates, alike = Rates.of(gpu), []
    found: dict[str, list[AttentionCoefficients]] = {}
    for lender in map(_known, _file("kin.toml").get("attention", {}).get("lenders", ())):
        table, there = _file(f"{lender.name}.toml"), Rates.of(lender)
        if rates and there and lender.generation != gpu.generation and lender.vendor == gpu.vendor and table:
            own = attention_on(coefficients(AttentionCoefficients, table["attention"]), there, rates)
            found.setdefault(lender.generation, []).append(own)
            alike += [own] if there.by_warps == rates.by_warps else []
    if len(found) < FEWEST_GENERATIONS or DType.BF16 not in gpu.peak_flops_per_s:
        return None
    middle = between([between(each, np.mean) for each in found.values()], np.median)
    middle = replace(middle, block_s=between(alike, np.mean).block_s) if alike else middle
    record = {"lender": "joint", "source": "the median of the generations that were measured"}
    return Found(coefficients=borrowed(middle, "attention", OTHER_UNITS), record=record)


def attention_families(gpu: Gpu) -> dict[str, AttentionCoefficients]:
    """PyTorch's attention (``sdpa.toml``): by generation, since PyTorch and cuDNN choose kernels by it. Devices of that
    generation that were not measured borrow it as they do the rest of attention; others have none."""
    entry = _file("sdpa.toml").get(gpu.generation, {})
    found = {name: coefficients(AttentionCoefficients, values) for name, values in entry.get("kernels", {}).items()}
    measured, after = sdpa_measured(gpu), Rates.of(gpu)
    if gpu.name in measured or not found:
        return found
    before, widen = Rates.of(_known(measured[0])), relative_of(gpu).widen
    if before is None or after is None:
        return {}
    return {name: attention_on(borrowed(c, "attention", widen), before, after) for name, c in found.items()}


def torch_streams(gpu: Gpu) -> Found:
    """PyTorch's memory-bound kernels (``torch_streams.toml``): a law of the datasheet, for GPUs of a measured
    generation; None for others. One that was not measured has as wide an interval as other borrowed kernels."""
    entry = _file("torch_streams.toml").get(gpu.generation)
    if entry is None:
        return Found(coefficients=None, record={})
    law, own = coefficients(TorchStreams, entry["law"]), gpu.name in entry["gpus"]
    widen = 1.0 if own else relative_of(gpu).widen
    law = replace(law, kinds=tuple((*row[:-1], row[-1] * widen) for row in law.kinds))
    return Found(coefficients=law, own=own, record=entry["provenance"])


def sdpa_measured(gpu: Gpu) -> tuple[str, ...]:
    """GPUs of the device's generation on which PyTorch's attention was measured."""
    return tuple(_file("sdpa.toml").get(gpu.generation, {}).get("gpus", ()))


FEWEST_GENERATIONS = 2
"""Fewest generations for a meaningful median."""


def _section(gpu: Gpu, relative: Relative, name: str, assumed: object) -> Found:
    for owner in (gpu.name, relative.name):
        table = _file(f"{owner}.toml")
        if owner and name in table:
            found, record = coefficients(SECTIONS[name], table[name]), table["provenance"][name]
            if owner == gpu.name:
                return Found(coefficients=found, own=True, record=record)
            taken = _carried(borrowed(found, name, relative.widen), gpu, relative)
            return Found(coefficients=taken, record=record | borrowed_from(owner))
    return Found(coefficients=assumed, record={})


def _carried(found: Any, gpu: Gpu, relative: Relative) -> Any:
    """Attention or expert coefficients of another die, adjusted by this device's datasheet."""
    before, after = Rates.of(_known(relative.name)), Rates.of(gpu)
    if relative.same_die or before is None or after is None:
        return found
    if isinstance(found, AttentionCoefficients):
        return attention_on(found, before, after)
    return experts_on(found, before, after) if isinstance(found, GroupedCoefficients) else found


def experts_relative(gpu: Gpu) -> Relative:
    """The device whose grouped GEMMs ``gpu`` borrows: its relative if that is of its generation; else the one that
    stands for a generation of its maker with the same kind of SM, else for the nearest earlier architecture, or for the
    nearest later one if none is measured before it. Without bf16 the kernels do not run.

    >>> experts_relative(load_gpu("l40s"))
    Relative(name='rtx_pro_6000_server', widen=3.0)
    """
    relative, table, rates = relative_of(gpu), _file("kin.toml"), Rates.of(gpu)
    if relative.widen <= OTHER_DIE and "grouped" in _file(f"{relative.name}.toml"):
        return relative
    others = {
        name: entry
        for name, entry in table.get("generation", {}).items()
        if name != gpu.generation and entry["vendor"] == gpu.vendor and "grouped" in _file(f"{entry['of']}.toml")
    }
    if not others or rates is None or DType.BF16 not in gpu.peak_flops_per_s:
        return relative
    since, flops = table["since"], rates.flops_per_cycle
    year = since.get(gpu.generation, UNKNOWN)

    def distance(name: str) -> tuple[bool, bool, float, float]:
        unlike = abs(flops / others[name]["flops_per_cycle"] - 1)
        return unlike >= SAME_SM, since[name] >= year, abs(year - since[name]), unlike

    return Relative(name=others[min(others, key=distance)]["of"], widen=OTHER_UNITS)


UNKNOWN = 9999
"""Year of a generation that ``kin.toml`` does not know: newer than all."""


def grouped_families(gpu: Gpu) -> dict[str, GroupedCoefficients]:
    """Grouped GEMM coefficients by kernel family: the device's own, else those of ``experts_relative``."""
    relative = experts_relative(gpu)
    for owner in (gpu.name, relative.name):
        table = _file(f"{owner}.toml")
        if owner and "grouped_families" in table:
            found = {name: coefficients(GroupedCoefficients, v) for name, v in table["grouped_families"].items()}
            if owner == gpu.name:
                return found
            return {k: _carried(borrowed(c, "grouped", relative.widen), gpu, relative) for k, c in found.items()}
    return {}


def streaming_coefficients(gpu: Gpu, assumed: MemoryBoundCoefficients) -> Found:
    """Memory-bound kernels: the device's own; those of its die, timed alone or so chosen (``streams``); else the law of
    all measured devices of its vendor (``streams.toml``); else a relative's, adjusted by the datasheet.

    Kernels timed alone and kernels that the host waits for are two tables; a device may have only one. Missing kernels
    timed alone are the device's host-timed shares without the host's time, missing host-timed ones the vendor's
    ``host_kernels``.
    """
    relative = relative_of(gpu)
    held = [each for each in (gpu.name, relative.name, _further(relative)) if _streams(each)]
    owner = held[0] if held else ""
    alike = relative.same_die and ("kinds" in _streams(owner) or _entry(gpu).get("streams") == "die")
    unlike = owner != gpu.name and not alike and (owner or _entry(gpu).get("gemm") == "joint")
    if unlike and gpu.vendor in _file("streams.toml"):
        return _by_law(gpu, assumed)
    found, record = assumed, JsonDict()
    if owner:
        found = _streams_on(gpu, owner, relative.widen)
        record = dict(_file(f"{owner}.toml")["provenance"]["memory_bound"])
        record |= borrowed_from(owner) if owner != gpu.name else {}
    called = bool(found.host_kinds)
    if called and not found.kinds:
        others = [each for each in held[1:] if "kinds" in _streams(each)]
        found = replace(found, kinds=_streams_on(gpu, others[0], relative.widen).kinds if others else ())
    vendors = _file("kin.toml").get("host_kernels", {}).get(gpu.vendor, "")
    if not called and vendors:
        found = replace(found, host_kinds=_streams_on(gpu, vendors, OTHER_UNITS).host_kinds)
    found = with_calls(found, calls_are_own=called)
    if torch_streams(gpu).coefficients:  # the device's time is that law's, so a call says the host's alone
        law = _by_law(gpu, assumed).coefficients
        found = replace(found, host_kinds=(), called=law.called, eager_launch_s=law.eager_launch_s)
    return Found(coefficients=found, own=owner == gpu.name, record=record)


def _by_law(gpu: Gpu, assumed: MemoryBoundCoefficients) -> Found:
    """The vendor's law, with the interval of devices left out of it. A kernel timed only from the host runs alone with
    the start of the plainest, one timed only alone has that one's call, and none is faster from the host."""
    table = _file("streams.toml")[gpu.vendor]
    alone, called = (
        borrowed(coefficients(StreamLaw, table[part]), "memory_bound", 1.0, "joint") for part in ("alone", "called")
    )
    lone, waited = ({row[0]: row for row in law.kinds} for law in (alone, called))
    start_s, call_s = lone["residual"][2], waited["residual"][2]
    lone |= {name: (name, row[1], start_s, *row[3:]) for name, row in waited.items() if name not in lone}
    waited |= {name: (name, row[1], call_s, *row[3:]) for name, row in lone.items() if name not in waited}
    raised = tuple((name, max(row[1], lone[name][1]), *row[2:]) for name, row in waited.items())
    found = replace(
        assumed,
        hbm_share=alone.gddr_share if memory_is_gddr(gpu) else alone.hbm_share,
        launch_s=start_s * GIGAHERTZ / clock_hz(gpu),
        eager_launch_s=call_s,
        alone=replace(alone, kinds=tuple(lone.values())),
        called=replace(called, kinds=raised),
    )
    return Found(coefficients=found, record=table["provenance"] | {"lender": "joint"})


def _streams(owner: str) -> JsonMap:
    """The memory-bound section of a device's own file; empty if there is none."""
    found: JsonMap = _file(f"{owner}.toml").get("memory_bound", {}) if owner else {}
    return found


def _streams_on(gpu: Gpu, owner: str, widen: float) -> MemoryBoundCoefficients:
    found = coefficients(MemoryBoundCoefficients, _streams(owner))
    return found if owner == gpu.name else per_sm(borrowed(found, "memory_bound", widen), _known(owner), gpu)


# ------------------------------------------------------------------------------------------------ collectives


SAME_RATE = 0.05
"""Link rates closer than this are of the same generation of links."""

OTHER_NODE = 0.1
"""Penalty for another number of devices per node, as a difference of ln(link rate): decides between equal rates."""

SAME_LINKS, SAME_LINKS_OTHER_NODE, OTHER_LINKS = 1.2, 1.8, 3.0
"""Widening of the interval, in the classes of ``kin.toml``: its floors say what devices held out needed."""


def collective_coefficients(gpu: Gpu, assumed: CollectiveCoefficients) -> Found:
    """Collectives inside a node: the device's own, else those of the most similar links.

    Their time depends on links, host and library, not on the die: eight B200 in a node are predicted from eight B300 as
    well as from themselves, and less well from the GB200 with the same die (docs/concepts/collectives.md).
    """
    entry = _entry(gpu)
    named = Relative(name=str(entry["links"]), widen=float(entry["widen"])) if "links" in entry else None
    found = _section(gpu, named or nearest_links(gpu, measured_links()), "collective", assumed)
    if found.own:
        return found
    over_pcie = gpu.link_bytes_per_s <= gpu.pcie_bytes_per_s
    return replace(found, coefficients=collectives_on(found.coefficients, pcie=over_pcie))


def collectives_on(found: CollectiveCoefficients, *, pcie: bool, bytes_per_s: float = 0.0) -> CollectiveCoefficients:
    """``found`` if it was fitted on such links; else those of the nearest NVLink generation (if ``bytes_per_s`` is
    given), or the assumed PCIe ones: NVLink's shares do not apply to PCIe, whose devices share the host's bridges."""
    if found.over_pcie == pcie:
        return found
    near = nearest_rate(bytes_per_s, measured_links()) if bytes_per_s and not pcie else Relative()
    if near.name:
        fit = coefficients(CollectiveCoefficients, _file(f"{near.name}.toml")["collective"])
        return borrowed(fit, "collective", near.widen)
    return generation("pcie" if pcie else "default")["collective"]  # type: ignore[no-any-return]


def measured_links() -> list[str]:
    """Devices whose collectives others may borrow."""
    names = _file("kin.toml").get("links", {}).get("lenders", ())
    return [name for name in names if table_of(f"{name}.toml")]


def nearest_links(gpu: Gpu, measured: Iterable[str]) -> Relative:
    """The measured device with the most similar links; none if the device has only PCIe, or no device of its vendor
    is measured.

    >>> nearest_links(load_gpu("h100_sxm"), ["a100_sxm", "h200_sxm", "b200_sxm"])
    Relative(name='h200_sxm', widen=1.2)
    """
    if gpu.link_bytes_per_s <= gpu.pcie_bytes_per_s:
        return Relative()
    known = [each for each in map(_known, measured) if each.vendor == gpu.vendor and each.name != gpu.name]
    if not known:
        return Relative()
    best = min(known, key=lambda each: (_apart(gpu, each), each.name))
    if abs(math.log(gpu.link_bytes_per_s / best.link_bytes_per_s)) > SAME_RATE:
        return Relative(name=best.name, widen=OTHER_LINKS)
    alike = gpu.devices_per_node == best.devices_per_node
    return Relative(name=best.name, widen=SAME_LINKS if alike else SAME_LINKS_OTHER_NODE)


def nearest_rate(bytes_per_s: float, measured: Iterable[str]) -> Relative:
    """The measured device whose link rate is nearest to that of links which are not a device's own, such as a bridge
    between two cards; widened as another node of these links at least."""
    known = sorted(map(_known, measured), key=lambda each: abs(math.log(bytes_per_s / each.link_bytes_per_s)))
    if not known:
        return Relative()
    near = abs(math.log(bytes_per_s / known[0].link_bytes_per_s)) <= SAME_RATE
    return Relative(name=known[0].name, widen=SAME_LINKS_OTHER_NODE if near else OTHER_LINKS)


def _apart(gpu: Gpu, other: Gpu) -> float:
    rates = abs(math.log(gpu.link_bytes_per_s / other.link_bytes_per_s))
    return rates + OTHER_NODE * (gpu.devices_per_node != other.devices_per_node)


def borrowed_from(owner: str) -> dict[str, str]:
    """What a record says of coefficients that were fitted on another device."""
    return {"lender": f"borrowed from {owner}"}


@cache
def _known(name: str) -> Gpu:
    """A device of the catalogue, read once."""
    return load_gpu(name)


def _file(name: str) -> JsonMap:
    return table_of(name) or {}
