"""Calibration: what was learned about a device from measurements, as data with its source, date and fit error.

Coefficients are dimensionless (shares of a datasheet rate) or seconds, so that they carry over to a relative with
other rates. One TOML per GPU and dtype in ``calibration/`` holds what was fitted; ``generations.toml`` holds what is
assumed where nothing was: a generation's tile menu and typical shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

from sartor.cost.collective.shares import NetworkCoefficients, network_coefficients
from sartor.cost.correction.coefficients import (
    AttentionCoefficients,
    CollectiveCoefficients,
    GemmCoefficients,
    GroupedCoefficients,
    MemoryBoundCoefficients,
    PowerCoefficients,
)
from sartor.cost.correction.kinship import DIE, beyond, borrowed, kin_of, lender_record, lenders, link_kin_of
from sartor.cost.correction.lending import per_sm, told_apart
from sartor.cost.correction.link_kin import nearest_rate
from sartor.cost.correction.own_rows import OwnRows
from sartor.cost.correction.products import product_coefficients
from sartor.cost.correction.tables import SECTIONS, coefficients, generation, table_of
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.operators import DType


class Clock(Enum):
    """``BOOST``: short runs, as the measured tables. ``SUSTAINED``: long compute-bound work under a power limit."""

    BOOST = "boost"
    SUSTAINED = "sustained"


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
    if gpu.accelerator is not None:
        return _of_a_chip(gpu)
    kin, widen = kin_of(gpu)
    base = generation(gpu.generation)
    general = (table_of("kin.toml") or {}).get("general_cores", {}).get(gpu.vendor, "")
    gemm, calibrated, provenance = {}, set(), {}
    for each in dict.fromkeys([*gpu.peak_flops_per_s, *([dtype] if dtype else [])]):
        gemm[each], owner, record = product_coefficients(
            gpu, kin, widen, each, base.get(f"gemm_{each.value}", base["gemm"]), general
        )
        provenance[f"gemm.{each.value}"] = record
        if owner == gpu.name:
            calibrated.add(f"gemm.{each.value}")
    sections: dict[str, Any] = {}
    for name in _DEVICE_SECTIONS:
        lender, factor = link_kin_of(gpu) if name == "collective" else (kin, widen)
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
    sections["network"] = network_coefficients((table_of("training.toml") or {}).get("network", {}))
    return Calibration(
        gpu=gpu.name,
        gemm=gemm,
        kin=kin,
        kin_on_die=widen <= DIE,
        calibrated=frozenset(calibrated),
        provenance=provenance,
        **sections,
    )


def _of_a_chip(gpu: Gpu) -> Calibration:
    """What is known of a chip of the template beyond its description: nothing. Its links deliver their full rate, and
    a hop takes their latency."""
    links = CollectiveCoefficients(
        link_share=1.0,
        all_reduce_share=1.0,
        small_group_loss=0.0,
        hop_s=gpu.link_latency_s,
        launch_s=0.0,
        pipeline=0.0,
        whole_tree=True,
    )
    return Calibration(gpu=gpu.name, gemm={}, collective=links)


def collectives_on(found: CollectiveCoefficients, *, pcie: bool, bytes_per_s: float = 0.0) -> CollectiveCoefficients:
    """``found`` where it was fitted on such links; else those of the nearest NVLink generation (``bytes_per_s`` of it
    given), or what is assumed of PCIe: NVLink's shares say nothing of PCIe, whose devices share the host's bridges."""
    if found.over_pcie == pcie:
        return found
    lender, widen = nearest_rate(bytes_per_s, lenders()) if bytes_per_s and not pcie else ("", 1.0)
    if lender:
        table = table_of(f"{lender}.toml") or {}
        return borrowed(coefficients(CollectiveCoefficients, table["collective"]), "collective", widen)  # type: ignore[no-any-return]
    return generation("pcie" if pcie else "default")["collective"]  # type: ignore[no-any-return]


_DEVICE_SECTIONS = ("grouped", "attention", "memory_bound", "collective")
"""Sections of a device's own file, whatever the dtype."""


def _families(gpu: str, kin: str, widen: float) -> dict[str, GroupedCoefficients]:
    for owner in (gpu, kin):
        table = (table_of(f"{owner}.toml") if owner else None) or {}
        if "grouped_families" in table:
            found = {name: coefficients(GroupedCoefficients, v) for name, v in table["grouped_families"].items()}
            return {name: each if owner == gpu else borrowed(each, "grouped", widen) for name, each in found.items()}
    return {}


def _section(gpu: str, kin: str, widen: float, name: str, base: Any) -> tuple[Any, str, Mapping[str, Any]]:
    for owner in (gpu, kin):
        table = table_of(f"{owner}.toml") if owner else None
        if table and name in table:
            found = coefficients(SECTIONS[name], table[name])
            record = table["provenance"][name]
            return (
                (found, owner, record)
                if owner == gpu
                else (borrowed(found, name, widen), owner, record | lender_record(owner))
            )
    return base, "", {}


def _streaming(
    gpu: Gpu, kin: str, widen: float, base: MemoryBoundCoefficients
) -> tuple[MemoryBoundCoefficients, str, Mapping[str, Any]]:
    """Memory-bound kernels: the device's own, else a relative's, carried by the datasheet (``hardware/lending.py``).

    Kernels timed alone and those the host waits for are two tables, and a device may have one of them only. The other
    is its relative's, then: of kernels the host waits for, the vendor's ``host_kernels``; of kernels alone, where no
    relative has any, its own ones' shares without what the host adds.
    """
    held = [each for each in (gpu.name, kin, beyond(kin, widen)) if _streams(each)]
    owner = held[0] if held else ""
    found, record = base, dict[str, Any]()
    if owner:
        found = _streams_on(gpu, owner, widen)
        record = (table_of(f"{owner}.toml") or {})["provenance"]["memory_bound"] | (
            lender_record(owner) if owner != gpu.name else {}
        )
    own = bool(found.host_kinds)
    if own and not found.kinds:
        others = [each for each in held[1:] if "kinds" in _streams(each)]
        found = replace(found, kinds=_streams_on(gpu, others[0], widen).kinds if others else ())
    waited = (table_of("kin.toml") or {}).get("host_kernels", {}).get(gpu.vendor, "")
    if not own and waited:
        found = replace(found, host_kinds=_streams_on(gpu, waited, 3.0).host_kinds)
    found = told_apart(found, waited_is_own=own)
    return found, owner, record


def _streams(owner: str) -> Mapping[str, Any]:
    """What a device's own file says of memory-bound kernels; nothing where there is none."""
    found: Mapping[str, Any] = ((table_of(f"{owner}.toml") if owner else None) or {}).get("memory_bound", {})
    return found


def _streams_on(gpu: Gpu, owner: str, widen: float) -> MemoryBoundCoefficients:
    found: MemoryBoundCoefficients = coefficients(MemoryBoundCoefficients, _streams(owner))
    if owner == gpu.name:
        return found
    carried: MemoryBoundCoefficients = per_sm(borrowed(found, "memory_bound", widen), load_gpu(owner), gpu)
    return carried
