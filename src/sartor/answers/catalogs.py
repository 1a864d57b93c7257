"""``catalog``: the answer's table of fields, and what a line of each catalogue shows (a mapping read by its keys)."""

from __future__ import annotations

from collections.abc import Mapping

from sartor.answers.field import Fields, Scalar, integer, mapping, number, rows, text
from sartor.json_types import JsonDict
from sartor.units import GIB, MIB, TERA, format_count

CATALOG: Fields = (
    text("catalog"),
    rows("entries", (mapping("", Scalar.ANY),), help="with source and date"),
)


def _tera(rate: float) -> str:
    return f"{rate / TERA:,.0f}"


def _bf16_rate(gpu: JsonDict) -> float | None:
    peak = gpu["peak_flops_per_s"]
    rate: float | None = peak.get("bf16") or peak.get("fp16")
    return rate


def _experts(model: JsonDict) -> str:
    experts = model.get("experts")
    return f"{experts['experts_per_token']} of {experts['num_experts']}" if experts else ""


def _links(cluster: JsonDict) -> str:
    """``nvlink 450 among 8, infiniband 50``."""
    return ", ".join(
        f"{tier['name']} {tier['bytes_per_s'] / 1e9:.4g}" + (f" among {tier['span']}" if tier["span"] else "")
        for tier in cluster["tiers"]
    )


_RATE = number("hbm_bytes_per_s", "TB/s", form=lambda rate: f"{rate / TERA:.2f}")
ENTRIES: Mapping[str, Fields] = {
    "gpus": (
        text("name", "name"),
        text("generation", "generation"),
        integer("num_sms", "cores"),
        number("bf16", "bf16 TFLOP/s", path=_bf16_rate, form=_tera),
        number("fp8", "fp8", path=lambda gpu: gpu["peak_flops_per_s"].get("fp8"), form=_tera),
        number("hbm_bytes", "HBM GiB", form=lambda size: f"{size / GIB:.0f}"),
        _RATE,
        number("usd", "USD/h", path=lambda gpu: gpu.get("price_usd_per_hour") or None, form="{:.2f}".format),
    ),
    "models": (
        text("name", "name"),
        number("params", "params", path=lambda model: model["params"]["total"], form=format_count),
        integer("num_layers", "layers"),
        *(
            integer(name, words, path=lambda model, name=name: model.get(name))
            for name, words in (
                ("hidden_size", "hidden"),
                ("num_heads", "heads"),
                ("num_kv_heads", "kv"),
                ("ffn_hidden_size", "ffn"),
                ("vocab_size", "vocab"),
            )
        ),
        text("experts", "experts", path=_experts),
    ),
    "clusters": (
        text("name", "name"),
        text("gpu", "device"),
        integer("devices_per_node", "per node"),
        integer("num_devices", "devices", form=lambda count: str(count or "any")),
        text("tiers", "links [GB/s per device and direction]", path=_links),
    ),
    "rules": (text("code", "code"), text("name", "name"), text("worst", "worst"), text("title", "what it finds")),
    "accelerators": (
        text("name", "name"),
        text(
            "arrays", "tensor cores", path=lambda a: f"{a['num_tensor_cores']} of {a['array_rows']} x {a['array_cols']}"
        ),
        text("lanes", "vector cores", path=lambda a: f"{a['num_vector_cores']} of {a['vector_lanes']}"),
        number("peak_flops_per_s", "TFLOP/s", form=_tera),
        number("global_buffer_bytes", "buffer MiB", form=lambda size: f"{size / MIB:g}"),
        number("hbm_bytes", "HBM GiB", form=lambda size: f"{size / GIB:g}"),
        _RATE,
        number("node_nm", "nm", form="{:g}".format),
    ),
    "spaces": (
        text("name", "name"),
        integer("num_points", "points", form="{:,}".format),
        integer("num_candidates", "kept", form="{:,}".format),
        text("area_model", "area"),
        text("title", "description", path=lambda space: space.get("title")),
    ),
}
"""Columns of each catalogue."""
