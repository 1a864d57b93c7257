"""The cluster of a training row: its device by name, its nodes, and the links inside and between them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.cluster import Cluster, LinkTier
from sartor.hardware.gpu import Gpu
from sartor.measure.rows import Unexpressed
from sartor.measure.training_shapes import whole
from sartor.units import GIB, GIGA

HBM2E_BYTES_PER_STACK_S = 400e9
"""An HBM2e stack at 3.2 Gbit/s a pin over 1024 pins (JESD235C; 2020)."""

HBM2E_STACK_BYTES = 16 * GIB
"""Eight 16 Gbit dies (JESD235C)."""


def gpu_of(name: str) -> tuple[Gpu, tuple[str, ...]]:
    """The catalogue's device of a row's name: the whole name, or what is left of it without its last words.

    Words that are left out may say a memory size [GB], a power limit [W] or HBM2e: the device is changed by them where
    it has none of its own. Raises ``Unexpressed``.
    """
    words = [word for word in re.split(r"[-_ ]+", name.strip()) if word]
    for count in range(len(words), 0, -1):
        try:
            gpu = load_gpu("-".join(words[:count]))
        except InputError:
            continue
        return _with_words(gpu, words[count:])
    raise Unexpressed(f"gpu {name[:40]}: not in the catalogue")


def _with_words(gpu: Gpu, words: list[str]) -> tuple[Gpu, tuple[str, ...]]:
    said = []
    for word in words:
        memory, power = re.fullmatch(r"(\d+)GB", word, re.I), re.fullmatch(r"(\d+)W", word, re.I)
        if memory and abs(int(memory.group(1)) * GIB / gpu.hbm_bytes - 1) > 0.15:
            gpu = replace(gpu, hbm_bytes=int(memory.group(1)) * GIB)
            said.append(f"{gpu.name} with {word}")
        if power:
            gpu = replace(gpu, tdp_w=float(power.group(1)))
            said.append(f"{gpu.name} limited to {word}")
    if any(word.lower() == "hbm2e" for word in words):
        stacks = round(gpu.hbm_bytes / HBM2E_STACK_BYTES)
        gpu = replace(gpu, hbm_bytes_per_s=stacks * HBM2E_BYTES_PER_STACK_S)
        said.append(f"{gpu.name} with {stacks} stacks of HBM2e")
    return gpu, tuple(said)


def cluster_of(row: Mapping[str, str]) -> tuple[Cluster, tuple[str, ...]]:
    """The row's cluster as two tiers (one on a single node), and what was assumed. Raises ``Unexpressed``."""
    gpu, said = gpu_of(row.get("gpu", ""))
    devices, node = whole(row, "n_gpu"), whole(row, "gpus_per_node")
    if not devices:
        raise Unexpressed("n_gpu is not given")
    per_node = min(node or gpu.devices_per_node, devices)
    domain = _domain(row.get("intra_node", ""), per_node, devices)
    inner = LinkTier(
        name="node", span=domain, bytes_per_s=_inner_rate(row, gpu), latency_s=gpu.link_latency_s, kind=_kind(row, gpu)
    )
    rate = _number(row.get("inter_gbps_per_gpu", ""))
    if devices <= domain:
        tiers: tuple[LinkTier, ...] = (replace(inner, span=0),)
    else:
        if not rate:
            said = (*said, "network between nodes not stated: 200 Gbit/s per device")
        word = row.get("inter_node", "").lower()
        kind = next((k for k in ("infiniband", "dcn", "ici", "slingshot", "efa") if k in word), "ethernet")
        outer = LinkTier(name="network", span=0, bytes_per_s=(rate or 200.0) * GIGA / 8, latency_s=5e-6, kind=kind)
        tiers = (inner, outer)
    return Cluster(name="row", gpu=gpu, devices_per_node=per_node, tiers=tiers, num_devices=devices), said


def _domain(word: str, per_node: int, devices: int) -> int:
    """Devices that share the inner links: those of a node, or of a rack that one switch joins.

    Of a rack a job over several takes as many whole nodes as divide its devices (64 of 72).
    """
    rack = re.search(r"NVL(\d+)", word)
    most = max(int(rack.group(1)), per_node) if rack else per_node
    if devices <= most:
        return most
    return next((size for size in range(most - most % per_node, 0, -per_node) if devices % size == 0), per_node)


def _inner_rate(row: Mapping[str, str], gpu: Gpu) -> float:
    """Bytes per second and direction; NVLink figures are of both directions together."""
    word = row.get("intra_node", "")
    stated = re.search(r"(\d+(?:\.\d+)?) ?GB/s", word)
    if stated:
        return float(stated.group(1)) * GIGA / (2 if "nvlink" in word.lower() or "fabric" in word.lower() else 1)
    return gpu.link_bytes_per_s or gpu.pcie_bytes_per_s or 16e9


def _kind(row: Mapping[str, str], gpu: Gpu) -> str:
    word = row.get("intra_node", "").lower()
    if "nvlink" in word:
        return "nvlink"
    return "ici" if "ici" in word else "xgmi" if "fabric" in word or "xgmi" in word else "pcie"


def _number(word: str) -> float:
    try:
        return max(0.0, float(word))
    except ValueError:
        return 0.0
