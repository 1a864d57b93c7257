"""The cluster catalogue: one TOML file per machine in the units people read, converted to SI here and only here.

A file of one's own has the same keys; docs/howto/describe-my-cluster.md walks through one.
"""

from __future__ import annotations

import difflib
import math
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from sartor.errors import InputError
from sartor.hardware.catalog import canonical
from sartor.hardware.cluster import Cluster, LinkTier
from sartor.hardware.device import device_from, load_device
from sartor.hardware.gpu import Gpu
from sartor.units import GIGA, MICRO

ENTRIES = Path(__file__).parent / "clusters"
MAX_FILE_BYTES = 1_000_000
MAX_TIERS = 16
MAX_POOLS = 16

HOP_LATENCY_S: Mapping[str, float] = {
    "nvlink": 2e-6,
    "nvswitch": 2e-6,
    "xgmi": 3e-6,
    "smp": 3e-6,
    "pcie": 2.5e-6,
    "infiniband": 4e-6,
    "ethernet": 6e-6,
    "tcp": 8e-6,
    "efa": 15e-6,
    "omnipath": 6e-6,
    "slingshot": 6e-6,
    "ici": 1e-6,
    "dcn": 20e-6,
    "": 6e-6,
}
"""Seconds of a hop where a file does not say. PCIe and InfiniBand: the ring hops of NCCL's own cost model
(src/graph/tuning.cc, LL128); ICI: about 1 us (How to Scale Your Model, jax-ml, 2025); the others are assumed
(2026-11-21): RDMA over Ethernet, Omni-Path and Slingshot half as much again as InfiniBand, EFA and DCN slower."""


def load_cluster(name_or_path: str | Path, num_devices: int = 0) -> Cluster:
    """The cluster of a catalogue name (case and separators forgiven) or of a TOML file, of ``num_devices`` devices.

    ``num_devices`` 0 leaves what the file says (0 there: as many as a plan asks for). Raises ``InputError`` for an
    unknown name (nearest names offered), an unreadable file, an unknown or missing key, a value that cannot be.

    >>> load_cluster("DGX H100", num_devices=64).tiers[1].bytes_per_s
    50000000000.0
    """
    path = _find(name_or_path)
    cluster = cluster_from_table(_read(path), path.stem, path.parent)
    if not num_devices:
        return cluster
    if cluster.others:
        raise InputError("num_devices", num_devices, "a mixed cluster states the devices of each pool in its file", "0")
    if num_devices > cluster.num_devices > 0:
        has = cluster.num_devices
        raise InputError("num_devices", num_devices, f"{cluster.name} has {has} devices", str(has))
    return replace(cluster, num_devices=num_devices)


def cluster_from(
    gpu: Gpu | str,
    devices_per_node: int,
    *,
    kind: str = "",
    domain: int = 0,
    inter_kind: str = "infiniband",
    inter_gbit_per_s: float = 400.0,
    num_devices: int = 0,
) -> Cluster:
    """Equal nodes on the device's own links, and one network between them: a cluster in one call.

    ``domain`` devices share the inner links (0: those of a node; 72 in an NVL72 rack), whose ``kind`` follows the
    device where it is not said; ``inter_gbit_per_s`` is of one device and direction. ``InputError`` as for a file.

    >>> [tier.bytes_per_s for tier in cluster_from("h100", 8, inter_gbit_per_s=200).tiers]
    [450000000000.0, 25000000000.0]
    """
    device = load_device(gpu) if isinstance(gpu, str) else gpu
    own = device.link_bytes_per_s > device.pcie_bytes_per_s
    switched = device.vendor == "NVIDIA" and device.generation not in ("pascal", "volta")
    inner: dict[str, Any] = {"kind": kind or (("nvswitch" if switched else "nvlink") if own else "pcie")}
    inner |= {"in_network_reduction": switched and own and device.generation not in ("turing", "ampere", "ada")}
    if device.vendor == "AMD" and own and not kind:
        inner["kind"] = "xgmi"
    tiers = [
        {**inner, "span": domain or devices_per_node},
        {"kind": inter_kind, "span": "all", "gbit_per_s": inter_gbit_per_s},
    ]
    built = _tiers(tiers, device, devices_per_node, "")
    name = f"{device.name} x {devices_per_node}"
    return Cluster(
        name=name,
        gpu=device,
        devices_per_node=devices_per_node,
        tiers=built,
        num_devices=num_devices,
        **_price({}, device, ""),
    )


def cluster_names() -> tuple[str, ...]:
    """Every cluster of the catalogue, sorted."""
    return tuple(sorted(path.stem for path in ENTRIES.glob("*.toml")))


def cluster_aliases() -> dict[str, str]:
    """Other names -> catalogue name."""
    return {alias: name for name in cluster_names() for alias in _aliases(name)}


def cluster_entry(name_or_path: str | Path) -> dict[str, Any]:
    """Every field of a cluster in SI units with its sources: what ``sartor catalog clusters --json`` answers."""
    cluster = load_cluster(name_or_path)
    return {**_fields(cluster), "aliases": list(_aliases(cluster.name)), "sources": dict(cluster.sources)}


def cluster_file(name_or_path: str | Path) -> str:
    """The file's own text (TOML, in the units people read), to be printed, copied and changed."""
    load_cluster(name_or_path)
    return _find(name_or_path).read_text(encoding="utf-8")


def cluster_from_table(table: dict[str, Any], name: str = "cluster", folder: Path | None = None) -> Cluster:
    """A checked cluster from a table in a file's keys and units; ``folder`` is where a GPU's own file is looked for."""
    return _cluster(table, name, folder or Path(), where="")


# ------------------------------------------------------------------------------------------- finding and reading


def _find(name_or_path: str | Path) -> Path:
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or "/" in text or "\\" in text:
        return Path(name_or_path)
    known = {canonical(name): name for name in cluster_names()}
    known |= {canonical(alias): name for alias, name in cluster_aliases().items()}
    if canonical(text) in known:
        return ENTRIES / f"{known[canonical(text)]}.toml"
    near = difflib.get_close_matches(canonical(text), known, n=12, cutoff=0.5)
    names = dict.fromkeys(known[key] for key in near) or dict.fromkeys(("dgx-h100", "dgx-a100", "gb200-nvl72"))
    must = "not in the catalogue (sartor catalog clusters) nor a .toml file"
    raise InputError("cluster", text, must, ", ".join(list(names)[:4]))


@cache
def _aliases(name: str) -> tuple[str, ...]:
    path = ENTRIES / f"{name}.toml"
    return tuple(tomllib.loads(path.read_text(encoding="utf-8")).get("aliases", ())) if path.is_file() else ()


def _read(path: Path) -> dict[str, Any]:
    """A TOML table from a file that may be missing, huge, binary or broken: a sentence for each."""
    try:
        if not path.is_file():
            raise InputError("cluster", path.name, "must be a catalogue name or a TOML file that exists")
        if path.stat().st_size > MAX_FILE_BYTES:
            raise InputError("cluster", path.name, f"a cluster file must be under {MAX_FILE_BYTES} bytes")
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, InputError):
            raise
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise InputError("cluster", path.name, f"must be readable as TOML: {reason}") from None


# ------------------------------------------------------------------------------------------- from a table to a Cluster

_KEYS = ("name", "title", "note", "confidence", "gpu", "devices_per_node", "num_devices", "tiers", "price", "sources")
_TEXTS = ("name", "title", "note", "confidence")
_PRICE = ("usd_per_device_hour", "source", "date")
_RATES: dict[str, float] = {
    "gb_per_s": GIGA,
    "gbit_per_s": GIGA / 8,
    "node_gb_per_s": GIGA,
    "node_gbit_per_s": GIGA / 8,
}
"""Ways to state a tier's rate, one direction -> factor to bytes/s: of one device, or of a node, whose devices share it
alike."""
TIER_KEYS = (
    "name",
    "kind",
    "span",
    *_RATES,
    "alone_gbit_per_s",
    "latency_us",
    "oversubscription",
    "in_network_reduction",
    "torus_axes",
    "torus_wrap",
)


def _cluster(table: dict[str, Any], name: str, folder: Path, where: str) -> Cluster:
    pool = bool(where)
    _only(table, (*_KEYS, *(() if pool else ("others", "aliases"))), where)
    for key in ("gpu", "devices_per_node", "tiers", *(("num_devices",) if pool else ())):
        if key not in table:
            raise InputError(f"{where}{key}", "missing", f"{name} must state it")
    gpu = _gpu(table["gpu"], folder, f"{where}gpu")
    devices = _whole(table["devices_per_node"], f"{where}devices_per_node", least=1)
    texts = {key: _text(table[key], f"{where}{key}") for key in _TEXTS if key in table}
    return Cluster(
        **{"name": name, **texts},  # type: ignore[arg-type]
        gpu=gpu,
        devices_per_node=devices,
        num_devices=_whole(table.get("num_devices", 0), f"{where}num_devices", least=int(pool)),
        tiers=_tiers(table["tiers"], gpu, devices, where),
        others=_others(table.get("others", []), folder, table),
        **_price(table.get("price", {}), gpu, where),
        sources=_sources(table.get("sources", {}), where),
    )


def _gpu(value: Any, folder: Path, key: str) -> Gpu:
    """A catalogue name, a datasheet's path (from the cluster file's own folder) or a datasheet in place."""
    if isinstance(value, dict):
        return device_from(value, _text(value.get("name", "gpu"), f"{key}.name"))
    text = _text(value, key)
    near = folder / text
    return load_device(near if text.endswith(".toml") and near.is_file() else text)


def _others(pools: Any, folder: Path, first: dict[str, Any]) -> tuple[Cluster, ...]:
    if not isinstance(pools, list) or not all(isinstance(pool, dict) for pool in pools):
        raise InputError("others", pools, "must be tables, written [[others]]")
    if len(pools) > MAX_POOLS:
        raise InputError("others", f"{len(pools)} pools", f"at most {MAX_POOLS}")
    if pools and not first.get("num_devices"):
        raise InputError(
            "num_devices", first.get("num_devices", "missing"), "a mixed cluster states every pool's devices"
        )
    return tuple(_cluster(pool, f"pool {i + 2}", folder, f"others.{i}.") for i, pool in enumerate(pools))


def _tiers(tiers: Any, gpu: Gpu, devices: int, where: str) -> tuple[LinkTier, ...]:
    if not isinstance(tiers, list) or not tiers or not all(isinstance(tier, dict) for tier in tiers):
        raise InputError(f"{where}tiers", tiers, "must be tables from the innermost link out, each written [[tiers]]")
    if len(tiers) > MAX_TIERS:
        raise InputError(f"{where}tiers", f"{len(tiers)} tiers", f"at most {MAX_TIERS}")
    return tuple(_tier(tier, i, gpu, devices, where) for i, tier in enumerate(tiers))


def _tier(tier: dict[str, Any], i: int, gpu: Gpu, devices: int, prefix: str) -> LinkTier:
    where = f"{prefix}tiers.{i}."
    _only(tier, TIER_KEYS, where)
    if "span" not in tier:
        raise InputError(f"{where}span", "missing", 'how many neighbouring devices the tier joins, or "all"')
    kind = _text(tier.get("kind", ""), f"{where}kind")
    latency = HOP_LATENCY_S.get(kind, HOP_LATENCY_S[""]) if i or kind == "ici" else gpu.link_latency_s
    if "latency_us" in tier:
        latency = _number(tier["latency_us"], f"{where}latency_us") * MICRO
    return LinkTier(
        name=_text(tier.get("name", kind or f"tier {i + 1}"), f"{where}name"),
        kind=kind,
        span=0 if tier["span"] == "all" else _whole(tier["span"], f"{where}span", least=0),
        bytes_per_s=_rate(tier, gpu, devices, i, where),
        alone_bytes_per_s=_number(tier.get("alone_gbit_per_s", 0.0), f"{where}alone_gbit_per_s") * GIGA / 8,
        latency_s=latency,
        oversubscription=_number(tier.get("oversubscription", 1.0), f"{where}oversubscription"),
        in_network_reduction=_bool(tier.get("in_network_reduction", False), f"{where}in_network_reduction"),
        torus_axes=_whole(tier.get("torus_axes", 0), f"{where}torus_axes", least=0),
        torus_wrap=_whole(tier.get("torus_wrap", 4), f"{where}torus_wrap", least=1),
    )


def _rate(tier: dict[str, Any], gpu: Gpu, devices: int, i: int, where: str) -> float:
    """Bytes/s of one device; the innermost tier may leave it to the device's own link."""
    stated = [key for key in _RATES if key in tier]
    own = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
    if not stated and i == 0 and own:
        return gpu.pcie_bytes_per_s if tier.get("kind") == "pcie" and gpu.pcie_bytes_per_s else own
    if len(stated) != 1:
        given = " and ".join(stated) or "missing"
        raise InputError(f"{where}gb_per_s", given, f"a tier states its rate once, as one of {', '.join(_RATES)}")
    key = stated[0]
    rate = _number(tier[key], f"{where}{key}")
    if rate == 0:
        raise InputError(f"{where}{key}", tier[key], "must be a finite number above 0, in the unit the key names")
    return rate * _RATES[key] / (devices if key.startswith("node_") else 1)


def _price(table: Any, gpu: Gpu, where: str) -> dict[str, Any]:
    """The cluster's own price, else the device's."""
    if not isinstance(table, dict):
        raise InputError(f"{where}price", table, "must be a table, written [price]")
    _only(table, _PRICE, f"{where}price.")
    if not table:
        value, source, date = gpu.price_usd_per_hour, gpu.price_source, gpu.price_date
        return {"price_usd_per_device_hour": value, "price_source": source, "price_date": date}
    for key in _PRICE:
        if key not in table:
            raise InputError(f"{where}price.{key}", "missing", "a price states its value, source and date")
    return {
        "price_usd_per_device_hour": _number(table["usd_per_device_hour"], f"{where}price.usd_per_device_hour"),
        "price_source": _text(table["source"], f"{where}price.source"),
        "price_date": _text(table["date"], f"{where}price.date"),
    }


def _sources(documents: Any, where: str) -> dict[str, str]:
    if not isinstance(documents, dict):
        raise InputError(f"{where}sources", documents, "must be a table, written [sources]")
    return {_text(key, f"{where}sources"): _text(text, f"{where}sources.{key}") for key, text in documents.items()}


def _fields(cluster: Cluster) -> dict[str, Any]:
    texts = ("title", "note", "confidence", "price_usd_per_device_hour", "price_source", "price_date")
    return {
        "name": cluster.name,
        "gpu": cluster.gpu.name,
        "devices_per_node": cluster.devices_per_node,
        "num_devices": cluster.num_devices,
        "tiers": [{key: getattr(tier, key) for key in LinkTier.__dataclass_fields__} for tier in cluster.tiers],
        **({"others": [_fields(pool) for pool in cluster.others]} if cluster.others else {}),
        **{key: getattr(cluster, key) for key in texts if getattr(cluster, key) not in (None, "")},
    }


def _only(table: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=2, cutoff=0.4) or known
            raise InputError(f"{where}{key}"[:80], table[key], "is not a key of a cluster file", ", ".join(near))


def _text(value: Any, key: str) -> str:
    if not isinstance(value, str) or not value.replace("\n", " ").isprintable():
        raise InputError(key, value, "must be printable text in quotes")
    return value


def _number(value: Any, key: str) -> float:
    ok = isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15
    if not ok or not math.isfinite(value) or value < 0:
        raise InputError(key, value, "must be a finite number not below 0, in the unit the key names")
    return float(value)


def _whole(value: Any, key: str, *, least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 2**53:
        raise InputError(key, value, f"must be a whole number not below {least}")
    return value


def _bool(value: Any, key: str) -> bool:
    if not isinstance(value, bool):
        raise InputError(key, value, "must be true or false")
    return value
