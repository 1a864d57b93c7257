"""Which measured device an unmeasured one borrows its calibration from: the first rule that finds something applies.

A measured device (``data/h200_sxm.toml``, ``h200_sxm.bf16.toml``, ...) uses its own fits. What it lacks it borrows:

=================  =====================================================================================
GEMMs of a type    ``borrowing_gemm``: its own fit, the joint fit of all generations, its relative's fit, ...
collectives        ``borrowing_links``: those of the device whose links are most alike
streaming kernels  the law of all measured devices; other vendors' its relative's
attention          its relative's; of another generation, the median of all that were measured
MoE                its relative's; of another generation, that of like SMs, else the nearest earlier one's
anything else      assumptions for its generation (``generations.toml``)
=================  =====================================================================================

``data/kin.toml`` lists every device's relative; a device that is not in the file gets its generation's. ``carrying``
converts the values. Accuracy of each kind of borrowing: docs/kin.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sartor.cost.correction.carrying import OTHER_DIE, Rates, attention_on, between, borrowed, per_sm, with_calls
from sartor.cost.correction.coefficients import (
    AttentionCoefficients,
    GroupedCoefficients,
    MemoryBoundCoefficients,
    StreamLaw,
    TorchStreams,
)
from sartor.cost.correction.relatives import (
    OTHER_UNITS,
    SAME_SM,
    Found,
    Relative,
    borrowed_from,
    carried,
    data_file,
    further,
    kin_entry,
    known_gpu,
    relative_of,
    section_of,
)
from sartor.cost.correction.tables import coefficients
from sartor.cost.gpu.stream_law import GIGAHERTZ, clock_hz, memory_is_gddr
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.operators import DType
from sartor.units import Floats


def section_coefficients(gpu: Gpu, name: str, assumed: Floats) -> Found:
    """Attention or grouped GEMMs: the device's own, else its relative's, else ``assumed``. Of a generation nobody
    measured: attention is the median of all that were, grouped GEMMs another generation's."""
    relative = _experts_relative(gpu) if name == "grouped" else relative_of(gpu)
    near = relative.name and relative.widen <= OTHER_DIE
    unmeasured = name == "attention" and not near and name not in data_file(f"{gpu.name}.toml")
    return (_attention_of_all(gpu) if unmeasured else None) or section_of(gpu, relative, name, assumed)


def _attention_of_all(gpu: Gpu) -> Found | None:
    """The median of the maker's other measured generations; None for devices without bf16, on which the measured
    kernels do not run. The time a block takes to start depends on the kind of SM: 1.5 to 2.5 us where tensor cores
    read shared memory, less than 1 us where they are fed from registers."""
    rates, alike = Rates.of(gpu), []
    by_generation: dict[str, list[AttentionCoefficients]] = {}
    for lender in map(known_gpu, data_file("kin.toml").get("attention", {}).get("lenders", ())):
        table, lender_rates = data_file(f"{lender.name}.toml"), Rates.of(lender)
        if rates and lender_rates and lender.generation != gpu.generation and lender.vendor == gpu.vendor and table:
            moved = attention_on(coefficients(AttentionCoefficients, table["attention"]), lender_rates, rates)
            by_generation.setdefault(lender.generation, []).append(moved)
            alike += [moved] if lender_rates.by_warps == rates.by_warps else []
    if len(by_generation) < FEWEST_GENERATIONS or DType.BF16 not in gpu.peak_flops_per_s:
        return None
    middle = between([between(fits, np.mean) for fits in by_generation.values()], np.median)
    middle = replace(middle, block_s=between(alike, np.mean).block_s) if alike else middle
    record = {"lender": "joint", "source": "the median of the generations that were measured"}
    return Found(coefficients=borrowed(middle, "attention", OTHER_UNITS), record=record)


def attention_families(gpu: Gpu) -> dict[str, AttentionCoefficients]:
    """PyTorch's attention (``sdpa.toml``): by generation, since PyTorch and cuDNN choose kernels by it. Devices of that
    generation that were not measured borrow it as they do the rest of attention; others have none."""
    entry = data_file("sdpa.toml").get(gpu.generation, {})
    families = {name: coefficients(AttentionCoefficients, values) for name, values in entry.get("kernels", {}).items()}
    measured, after = sdpa_measured(gpu), Rates.of(gpu)
    if gpu.name in measured or not families:
        return families
    before, widen = Rates.of(known_gpu(measured[0])), relative_of(gpu).widen
    if before is None or after is None:
        return {}
    return {name: attention_on(borrowed(c, "attention", widen), before, after) for name, c in families.items()}


def torch_streams(gpu: Gpu) -> Found:
    """PyTorch's memory-bound kernels (``torch_streams.toml``): a law of the datasheet, for GPUs of a measured
    generation; None for others. One that was not measured has as wide an interval as other borrowed kernels."""
    entry = data_file("torch_streams.toml").get(gpu.generation)
    if entry is None:
        return Found(coefficients=None, record={})
    law, measured = coefficients(TorchStreams, entry["law"]), gpu.name in entry["gpus"]
    widen = 1.0 if measured else relative_of(gpu).widen
    law = replace(law, kinds=tuple((*row[:-1], row[-1] * widen) for row in law.kinds))
    return Found(coefficients=law, own=measured, record=entry["provenance"])


def sdpa_measured(gpu: Gpu) -> tuple[str, ...]:
    """GPUs of the device's generation on which PyTorch's attention was measured."""
    return tuple(data_file("sdpa.toml").get(gpu.generation, {}).get("gpus", ()))


FEWEST_GENERATIONS = 2
"""Fewest generations for a meaningful median."""


def _experts_relative(gpu: Gpu) -> Relative:
    """The device whose grouped GEMMs ``gpu`` borrows: its relative if that is of its generation; else the one that
    stands for a generation of its maker with the same kind of SM, else for the nearest earlier architecture, or for the
    nearest later one if none is measured before it. Without bf16 the kernels do not run.

    >>> experts_relative(known_gpu("l40s"))
    Relative(name='rtx_pro_6000_server', widen=3.0)
    """
    relative, table, rates = relative_of(gpu), data_file("kin.toml"), Rates.of(gpu)
    if relative.widen <= OTHER_DIE and "grouped" in data_file(f"{relative.name}.toml"):
        return relative
    others = {
        name: entry
        for name, entry in table.get("generation", {}).items()
        if name != gpu.generation and entry["vendor"] == gpu.vendor and "grouped" in data_file(f"{entry['of']}.toml")
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
    """Grouped GEMM coefficients by kernel family: the device's own, else those of ``_experts_relative``."""
    relative = _experts_relative(gpu)
    for owner in (gpu.name, relative.name):
        table = data_file(f"{owner}.toml")
        if owner and "grouped_families" in table:
            families = {name: coefficients(GroupedCoefficients, v) for name, v in table["grouped_families"].items()}
            if owner == gpu.name:
                return families
            return {k: carried(borrowed(c, "grouped", relative.widen), gpu, relative) for k, c in families.items()}
    return {}


def streaming_coefficients(gpu: Gpu, assumed: MemoryBoundCoefficients) -> Found:
    """Memory-bound kernels: the device's own; those of its die, timed alone or so chosen (``streams``); else the law of
    all measured devices of its vendor (``streams.toml``); else a relative's, adjusted by the datasheet.

    Kernels timed alone and kernels that the host waits for are two tables; a device may have only one. Missing kernels
    timed alone are the device's host-timed shares without the host's time, missing host-timed ones the vendor's
    ``host_kernels``.
    """
    relative = relative_of(gpu)
    owners = [name for name in (gpu.name, relative.name, further(relative)) if _streams(name)]
    owner = owners[0] if owners else ""
    alike = relative.same_die and ("kinds" in _streams(owner) or kin_entry(gpu).get("streams") == "die")
    unlike = owner != gpu.name and not alike and (owner or kin_entry(gpu).get("gemm") == "joint")
    if unlike and gpu.vendor in data_file("streams.toml"):
        return _by_law(gpu, assumed)
    fit, record = assumed, JsonDict()
    if owner:
        fit = _streams_on(gpu, owner, relative.widen)
        record = dict(data_file(f"{owner}.toml")["provenance"]["memory_bound"])
        record |= borrowed_from(owner) if owner != gpu.name else {}
    called = bool(fit.host_kinds)
    if called and not fit.kinds:
        further_owners = [name for name in owners[1:] if "kinds" in _streams(name)]
        fit = replace(fit, kinds=_streams_on(gpu, further_owners[0], relative.widen).kinds if further_owners else ())
    vendors = data_file("kin.toml").get("host_kernels", {}).get(gpu.vendor, "")
    if not called and vendors:
        fit = replace(fit, host_kinds=_streams_on(gpu, vendors, OTHER_UNITS).host_kinds)
    fit = with_calls(fit, calls_are_own=called)
    if torch_streams(gpu).coefficients:  # the device's time is that law's, so a call says the host's alone
        law = _by_law(gpu, assumed).coefficients
        fit = replace(fit, host_kinds=(), called=law.called, eager_launch_s=law.eager_launch_s)
    return Found(coefficients=fit, own=owner == gpu.name, record=record)


def _by_law(gpu: Gpu, assumed: MemoryBoundCoefficients) -> Found:
    """The vendor's law, with the interval of devices left out of it. A kernel timed only from the host runs alone with
    the start of the plainest, one timed only alone has that one's call, and none is faster from the host."""
    table = data_file("streams.toml")[gpu.vendor]
    alone, called = (
        borrowed(coefficients(StreamLaw, table[part]), "memory_bound", 1.0, "joint") for part in ("alone", "called")
    )
    lone, waited = ({row[0]: row for row in law.kinds} for law in (alone, called))
    start_s, call_s = lone["residual"][2], waited["residual"][2]
    lone |= {name: (name, row[1], start_s, *row[3:]) for name, row in waited.items() if name not in lone}
    waited |= {name: (name, row[1], call_s, *row[3:]) for name, row in lone.items() if name not in waited}
    raised = tuple((name, max(row[1], lone[name][1]), *row[2:]) for name, row in waited.items())
    fit = replace(
        assumed,
        hbm_share=alone.gddr_share if memory_is_gddr(gpu) else alone.hbm_share,
        launch_s=start_s * GIGAHERTZ / clock_hz(gpu),
        eager_launch_s=call_s,
        alone=replace(alone, kinds=tuple(lone.values())),
        called=replace(called, kinds=raised),
    )
    return Found(coefficients=fit, record=table["provenance"] | {"lender": "joint"})


def _streams(owner: str) -> JsonMap:
    """The memory-bound section of a device's own file; empty if there is none."""
    section: JsonMap = data_file(f"{owner}.toml").get("memory_bound", {}) if owner else {}
    return section


def _streams_on(gpu: Gpu, owner: str, widen: float) -> MemoryBoundCoefficients:
    fit = coefficients(MemoryBoundCoefficients, _streams(owner))
    return fit if owner == gpu.name else per_sm(borrowed(fit, "memory_bound", widen), known_gpu(owner), gpu)
