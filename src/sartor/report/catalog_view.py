"""Catalogues as tables: one line per entry, or all fields of one entry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.markdown import Markdown
from rich.table import Table

from sartor.json_types import JsonDict
from sartor.units import GIB, format_count


def catalog_view(what: str, entries: Sequence[JsonDict], *, whole: bool) -> RenderableType:
    """A table of a catalogue (``gpus``, ``models``, ...), or all fields of its only entry (``whole``)."""
    if whole:
        return _rule_page(entries[0]) if what == "rules" else _entry(entries[0])
    return _TABLES[what](entries)


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        number = column in right
        table.add_column(column, justify="right" if number else "left", overflow="fold", no_wrap=number)
    return table


def _gpus(entries: Sequence[JsonDict]) -> Table:
    numbers = ("cores", "bf16 TFLOP/s", "fp8", "HBM GiB", "TB/s", "USD/h")
    table = _table("name", "generation", *numbers, right=numbers)
    for entry in entries:
        peak = entry["peak_flops_per_s"]
        table.add_row(
            entry["name"],
            entry["generation"],
            str(entry["num_sms"]),
            _tera(peak.get("bf16") or peak.get("fp16")),
            _tera(peak.get("fp8")),
            f"{entry['hbm_bytes'] / GIB:.0f}",
            f"{entry['hbm_bytes_per_s'] / 1e12:.2f}",
            f"{entry['price_usd_per_hour']:.2f}" if entry.get("price_usd_per_hour") else "",
        )
    return table


def _models(entries: Sequence[JsonDict]) -> Table:
    numbers = ("params", "layers", "hidden", "heads", "kv", "ffn", "vocab")
    table = _table("name", *numbers, "experts", right=numbers)
    for entry in entries:
        experts = entry.get("experts", {})
        kind = f"{experts['experts_per_token']} of {experts['num_experts']}" if experts else ""
        sizes = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "ffn_hidden_size", "vocab_size")
        table.add_row(
            entry["name"], format_count(entry["params"]["total"]), *(str(entry.get(size, "")) for size in sizes), kind
        )
    return table


def _clusters(entries: Sequence[JsonDict]) -> Table:
    numbers = ("per node", "devices")
    table = _table("name", "device", *numbers, "links [GB/s per device and direction]", right=numbers)
    for entry in entries:
        tiers = (
            f"{tier['name']} {tier['bytes_per_s'] / 1e9:.4g}" + (f" among {tier['span']}" if tier["span"] else "")
            for tier in entry["tiers"]
        )
        devices = str(entry["num_devices"] or "any")
        table.add_row(entry["name"], entry["gpu"], str(entry["devices_per_node"]), devices, ", ".join(tiers))
    return table


def _rules(entries: Sequence[JsonDict]) -> Table:
    table = _table("code", "name", "worst", "what it finds")
    for entry in entries:
        table.add_row(entry["code"], entry["name"], entry["worst"], entry["title"])
    return table


def _accelerators(entries: Sequence[JsonDict]) -> Table:
    numbers = ("TFLOP/s", "buffer MiB", "HBM GiB", "TB/s", "nm")
    table = _table("name", "tensor cores", "vector cores", *numbers, right=numbers)
    for entry in entries:
        table.add_row(
            entry["name"],
            f"{entry['num_tensor_cores']} of {entry['array_rows']} x {entry['array_cols']}",
            f"{entry['num_vector_cores']} of {entry['vector_lanes']}",
            _tera(entry["peak_flops_per_s"]),
            f"{entry['global_buffer_bytes'] / 2**20:g}",
            f"{entry['hbm_bytes'] / GIB:g}",
            f"{entry['hbm_bytes_per_s'] / 1e12:.2f}",
            f"{entry['node_nm']:g}",
        )
    return table


def _spaces(entries: Sequence[JsonDict]) -> Table:
    table = _table("name", "points", "kept", "area", "description", right=("points", "kept"))
    for entry in entries:
        points, kept = (f"{entry[key]:,}" for key in ("num_points", "num_candidates"))
        table.add_row(entry["name"], points, kept, entry["area_model"], entry.get("title", ""))
    return table


def _entry(entry: JsonDict) -> Table:
    table = _table("field", "value")
    for field, value in entry.items():
        rows = list(_flat(value))
        for key, item in rows:
            table.add_row(f"{field}.{key}" if key else field, _words(item))
    return table


_TABLES = {
    "gpus": _gpus,
    "models": _models,
    "clusters": _clusters,
    "rules": _rules,
    "accelerators": _accelerators,
    "spaces": _spaces,
}


def _flat(value: object) -> Iterator[tuple[str, object]]:
    """A field as rows: tables by key, lists of tables by position and key."""
    if isinstance(value, dict):
        yield from value.items()
    elif isinstance(value, (list, tuple)) and any(isinstance(each, dict) for each in value):
        for i, each in enumerate(value):
            yield from ((f"{i}.{key}", item) for key, item in each.items())
    else:
        yield "", value


def _rule_page(entry: JsonDict) -> RenderableType:
    return Markdown(f"# {entry['code']} {entry['name']}\n\n{entry['page']}")


def _words(value: object) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value)) or "-"
    if isinstance(value, int) and not isinstance(value, bool) and value >= 10_000:
        return f"{value:,}"
    return f"{value:,.6g}" if isinstance(value, float) else str(value)


def _tera(rate: float | None) -> str:
    return f"{rate / 1e12:,.0f}" if rate else ""
