"""The cluster catalogue: one TOML file per machine, converted to SI units here.

Users' own files have the same keys; docs/howto/describe-my-cluster.md explains them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from sartor.errors import InputError
from sartor.hardware import catalog
from sartor.hardware.accelerator_catalog import device_from, load_device
from sartor.hardware.catalog import ACCELERATORS, GPUS, Catalogue, Complaint, check, is_accelerator, kind, model_of
from sartor.hardware.cluster import HOP_LATENCY_S, UNSAID_BYTES_PER_S, Cluster, LinkTier, own_links
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict
from sartor.units import GIB, GIGA, MICRO

if TYPE_CHECKING:
    from pydantic import BaseModel

CLUSTERS = Catalogue(
    folder=Path(__file__).parent / "clusters",
    option="cluster",
    shelf="clusters",
    usual=("dgx-h100", "dgx-a100", "gb200-nvl72"),
)
MAX_TIERS = 16
MAX_POOLS = 16


def load_cluster(name_or_path: str | Path, num_devices: int = 0) -> Cluster:
    """The cluster with a catalogue name (case and separators ignored) or from a TOML file.

    ``num_devices`` of 0 keeps the file's (0 there: as many as a plan needs). Raises ``InputError`` for an unknown
    name (with the nearest ones), an unreadable file, an unknown or missing key, or an invalid value.

    >>> load_cluster("DGX H100", num_devices=64).tiers[1].bytes_per_s
    50000000000.0
    """
    table, path = CLUSTERS.table(name_or_path)
    cluster = cluster_from_table(table, path.stem, path.parent)
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

    ``domain`` devices share the inner links (0: those of a node; 72 in an NVL72 rack); ``kind`` of these links defaults
    to the device's; ``inter_gbit_per_s`` is of one device and direction. Raises ``InputError`` as for a file.

    >>> [tier.bytes_per_s for tier in cluster_from("h100", 8, inter_gbit_per_s=200).tiers]
    [450000000000.0, 25000000000.0]
    """
    device = load_device(gpu) if isinstance(gpu, str) else gpu
    has_links = device.link_bytes_per_s > device.pcie_bytes_per_s
    switched = device.vendor == "NVIDIA" and device.generation not in ("pascal", "volta")
    inner: JsonDict = {"kind": kind or (("nvswitch" if switched else "nvlink") if has_links else "pcie")}
    inner |= {"in_network_reduction": switched and has_links and device.generation not in ("turing", "ampere", "ada")}
    if device.vendor == "AMD" and has_links and not kind:
        inner["kind"] = "xgmi"
    if not (device.link_bytes_per_s or device.pcie_bytes_per_s):
        inner["gb_per_s"] = UNSAID_BYTES_PER_S / GIGA
    tiers = [
        {**inner, "span": domain or devices_per_node},
        {"kind": inter_kind, "span": "all", "gbit_per_s": inter_gbit_per_s},
    ]
    return Cluster(
        name=f"{device.name} x {devices_per_node}",
        gpu=device,
        devices_per_node=devices_per_node,
        tiers=tuple(_tier(tier, i, device, devices_per_node, "") for i, tier in enumerate(tiers)),
        num_devices=num_devices,
        **_price({}, device),
    )


USUAL_CLUSTER = "dgx-h100"
"""The cluster of a plan or launch whose cluster nobody stated: most published runs since 2023 are on such nodes."""


def usual_cluster(gpu: Gpu) -> Cluster:
    """The default cluster of a device: the catalogue's cluster of it with any number of devices (the vendor's own
    before a cloud's), a chip's own network, else nodes of eight on the device's links with 400 Gb/s of InfiniBand each.

    >>> usual_cluster(load_gpu("h100_sxm")).name
    'dgx-h100'
    """
    name = _usual().get(gpu.name)
    if name:
        return replace(load_cluster(name), gpu=gpu)
    return cluster_from(gpu, 8) if gpu.accelerator is None else _chip_network(gpu)


def joined_devices(gpu: Gpu) -> int:
    """Devices of one domain of fast links."""
    return max(gpu.link_domain, gpu.devices_per_node)


def network_of(gpu: Gpu, devices: int) -> Cluster | None:
    """The usual cluster of so many devices if they are more than one domain of fast links joins; else None."""
    return usual_cluster(gpu) if gpu.accelerator is None and devices > joined_devices(gpu) else None


def _chip_network(gpu: Gpu) -> Cluster:
    if not gpu.link_bytes_per_s:
        raise InputError("num_links", 0, f"{gpu.name} has no links that could join devices", "1 or more")
    return replace(own_links(gpu), **_price({}, gpu))


@cache
def _usual() -> dict[str, str]:
    """GPU -> its default cluster."""
    names = sorted(CLUSTERS.names(), key=lambda name: (name.startswith("dgx"), not name.startswith(("aws", "azure"))))
    heads = {name: CLUSTERS.head(name) for name in names}
    return {head["gpu"]: name for name, head in heads.items() if not head.get("num_devices")}


def names_a_device(name_or_path: str | Path) -> bool:
    """Whether a name or file is of a device (a GPU's or a chip's) and of no cluster.

    >>> names_a_device("h100"), names_a_device("dgx-h100")
    (True, False)
    """
    if not catalog.is_path(name_or_path):
        name = str(name_or_path)
        return name not in CLUSTERS and (name in GPUS or name in ACCELERATORS)
    table = catalog.read_toml(Path(name_or_path), CLUSTERS.option)
    return not {"gpu", "tiers"} & table.keys() and (is_accelerator(table) or "num_sms" in table)


def cluster_entry(name_or_path: str | Path) -> JsonDict:
    """Every field of a cluster in SI units with its sources: what ``sartor catalog clusters --json`` answers."""
    cluster = load_cluster(name_or_path)
    aliases = [alias for alias, name in CLUSTERS.aliases().items() if name == cluster.name]
    return {**_fields(cluster), "aliases": aliases, "sources": dict(cluster.sources)}


# ------------------------------------------------------------------------------------------- from a table to a Cluster

_TEXTS = ("name", "title", "note", "confidence")
_PRICE = ("usd_per_device_hour", "source", "date")
_RATES: dict[str, float] = {
    "gb_per_s": GIGA,
    "gbit_per_s": GIGA / 8,
    "node_gb_per_s": GIGA,
    "node_gbit_per_s": GIGA / 8,
}
"""Keys for a tier's bandwidth, one direction -> factor to bytes/s: per device, or per node, shared evenly."""
TIER_KEYS = (
    "name",
    "kind",
    "span",
    *_RATES,
    "alone_gbit_per_s",
    "latency_us",
    "oversubscription",
    "rails",
    "in_network_reduction",
    "torus_axes",
    "torus_wrap",
)


def cluster_from_table(table: JsonDict, name: str = "cluster", folder: Path = Path()) -> Cluster:
    """A checked cluster from a table in a file's keys and units; ``folder`` is searched for a GPU's own file. The
    package's own files are not checked again, since tests check them."""
    if users_own := folder != CLUSTERS.folder:
        check(table, _model(), subject="a cluster file")
    first = _cluster(table, name, folder, "")
    pools = table.get("others", [])
    if pools and not first.num_devices:
        stated = table.get("num_devices", "missing")
        raise InputError("num_devices", stated, "a mixed cluster states every pool's devices")
    others = (_cluster(pool, f"pool {i + 2}", folder, f"others.{i}.") for i, pool in enumerate(pools))
    cluster = replace(first, others=tuple(others))
    if not users_own:
        return cluster
    tables = (table, *pools)
    unstated = (_unstated_rate(pool, entry["tiers"][0]) for pool, entry in zip(cluster.pools, tables, strict=True))
    return replace(cluster, unstated=tuple(words for words in unstated if words))


def _unstated_rate(pool: Cluster, tier: JsonDict) -> str:
    """``ours: gb_per_s=450 of NVLink (default: the links of gh200; its file does not set it)``; "" if it is set."""
    if any(key in tier for key in _RATES):
        return ""
    link = pool.tiers[0]
    whose = "PCIe" if link.bytes_per_s == pool.gpu.pcie_bytes_per_s else "the links"
    rate = f"gb_per_s={link.bytes_per_s / GIGA:g} of {link.name}"
    return f"{pool.name}: {rate} (default: {whose} of {pool.gpu.name}; its file does not set it)"


@cache
def _model() -> type[BaseModel]:
    """The pydantic model of a cluster's file: a pool, and further pools that state their number of devices."""
    text, number, positive = kind(catalog.text), kind(catalog.number), kind(_count(1))
    tier = model_of(
        {
            **dict.fromkeys(TIER_KEYS, number),
            "name": text,
            "kind": text,
            "span": kind(_span),
            "in_network_reduction": kind(_flag),
            "rails": kind(_flag),
            **dict.fromkeys(_RATES, kind(catalog.above_zero)),
            "torus_axes": kind(_count(0)),
            "torus_wrap": positive,
        },
        required=("span",),
    )
    pool = {
        **dict.fromkeys(_TEXTS, text),
        "gpu": kind(_device),
        "devices_per_node": positive,
        "num_devices": positive,
        "host_memory_gib": kind(catalog.above_zero),
        "tiers": _listed(tier, longest=MAX_TIERS, shortest=1, must=_TIERS),
        "price": model_of({**dict.fromkeys(_PRICE, text), "usd_per_device_hour": number}, _PRICE),
        "sources": kind(_documents),
    }
    needed = ("gpu", "devices_per_node", "tiers")
    others = _listed(
        model_of(pool, (*needed, "num_devices")), longest=MAX_POOLS, must="must be tables, written [[others]]"
    )
    whole = {"num_devices": kind(_count(0)), "others": others, "aliases": kind(catalog.texts)}
    return model_of({**pool, **whole}, needed)


def _flag(value: object) -> Complaint:
    """True or false."""
    return None if isinstance(value, bool) else ("must be true or false", "")


def _listed(model: type[BaseModel], *, longest: int, must: str, shortest: int = 0) -> Any:
    """A list of ``shortest`` to ``longest`` tables; ``must`` says how they are written."""
    from pydantic import Field

    return Annotated[list[model], Field(min_length=shortest, max_length=longest, description=must)]  # type: ignore[valid-type]


_TIERS = "must be tables from the innermost link out, each written [[tiers]]"


def _span(value: object) -> Complaint:
    return None if value == "all" else _count(0)(value)


def _count(minimum: int) -> Callable[[Any], Complaint]:
    """An integer of at least ``minimum``."""
    must = f"must be a whole number not below {minimum}"
    return lambda value: None if type(value) is int and minimum <= value <= 2**53 else (must, "")


def _device(value: object) -> Complaint:
    """What is wrong with a device given as a table: a datasheet or an accelerator."""
    return catalog.text(value.get("name", "gpu") if isinstance(value, dict) else value)


def _documents(value: object) -> Complaint:
    if not isinstance(value, dict):
        return "must be a table, written [sources]", ""
    return next((complaint for entry in (*value, *value.values()) if (complaint := catalog.text(entry))), None)


def _cluster(table: JsonDict, name: str, folder: Path, where: str) -> Cluster:
    gpu = _gpu(table["gpu"], folder)
    devices = table["devices_per_node"]
    return Cluster(
        **{"name": name, **{key: table[key] for key in _TEXTS if key in table}},
        gpu=gpu,
        devices_per_node=devices,
        num_devices=table.get("num_devices", 0),
        host_memory_bytes=table.get("host_memory_gib", 0) * GIB,
        tiers=tuple(_tier(tier, i, gpu, devices, where) for i, tier in enumerate(table["tiers"])),
        **_price(table.get("price", {}), gpu),
        sources=table.get("sources", {}),
    )


def _gpu(value: Any, folder: Path) -> Gpu:
    """A catalogue name, a datasheet's path (from the cluster file's own folder) or a datasheet in place."""
    if isinstance(value, dict):
        return device_from(value, value.get("name", "gpu"))
    near = folder / value
    return load_device(near if value.endswith(".toml") and near.is_file() else value)


def _tier(tier: JsonDict, i: int, gpu: Gpu, devices: int, where: str) -> LinkTier:
    kind = tier.get("kind", "")
    latency = HOP_LATENCY_S.get(kind, HOP_LATENCY_S[""]) if i or kind == "ici" else gpu.link_latency_s
    if "latency_us" in tier:
        latency = tier["latency_us"] * MICRO
    same = ("in_network_reduction", "torus_axes", "torus_wrap", "oversubscription", "rails")
    return LinkTier(
        name=str(tier.get("name", kind or f"tier {i + 1}")),
        kind=kind,
        span=0 if tier["span"] == "all" else tier["span"],
        bytes_per_s=_rate(tier, gpu, devices, i, f"{where}tiers.{i}."),
        alone_bytes_per_s=tier.get("alone_gbit_per_s", 0.0) * GIGA / 8,
        latency_s=latency,
        **{key: tier[key] for key in same if key in tier},
    )


def _rate(tier: JsonDict, gpu: Gpu, devices: int, i: int, where: str) -> float:
    """Bytes/s of one device; the innermost tier may leave it to the device's own link."""
    stated = [key for key in _RATES if key in tier]
    device_rate = gpu.link_bytes_per_s or gpu.pcie_bytes_per_s
    if not stated and i == 0 and device_rate:
        return gpu.pcie_bytes_per_s if tier.get("kind") == "pcie" and gpu.pcie_bytes_per_s else device_rate
    if not stated and i == 0 and gpu.accelerator is not None:
        raise InputError("num_links", 0, f"{gpu.name} has no links that could join devices", "1 or more")
    if len(stated) != 1:
        stated_words = " and ".join(stated) or "missing"
        raise InputError(
            f"{where}gb_per_s", stated_words, f"a tier states its rate once, as one of {', '.join(_RATES)}"
        )
    (key,) = stated
    return float(tier[key] * _RATES[key] / (devices if key.startswith("node_") else 1))


def _price(table: JsonDict, gpu: Gpu) -> JsonDict:
    """The cluster's own price, else the device's."""
    value, source, date = (
        (table[key] for key in _PRICE) if table else (gpu.price_usd_per_hour, gpu.price_source, gpu.price_date)
    )
    return {"price_usd_per_device_hour": value, "price_source": source, "price_date": date}


def _fields(cluster: Cluster) -> JsonDict:
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
