"""``sartor catalog``: known devices, models, clusters, rules and spaces, with sources."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from sartor.cli import common as c
from sartor.cli import options as o
from sartor.errors import InputError
from sartor.json_types import JsonDict


def catalog(
    what: Annotated[
        str, typer.Argument(metavar="gpus|models|clusters|rules|accelerators|spaces", help="Which catalogue.")
    ],
    name: Annotated[str | None, typer.Argument(help="Show one entry with all fields and sources.")] = None,
    json: o.AsJson = False,
    out: o.OutFile = None,
) -> None:
    """List GPUs, models, clusters, rules, accelerator templates and design spaces, with sources.

    Example: `sartor catalog gpus h100`
    """
    if what not in _SHELVES:
        raise InputError("catalog", what, f"must be one of {', '.join(_SHELVES)}")
    entries = _SHELVES[what](name)
    c.answer("catalog", {"catalog": what, "entries": entries}, as_json=json, out=out)
    if not json:
        from sartor.report.catalog_view import catalog_view

        c.show(catalog_view(what, entries, whole=name is not None))


def _gpus(name: str | None) -> list[JsonDict]:
    from sartor.hardware.catalog import gpu_entry, gpu_names

    return [gpu_entry(name)] if name else [gpu_entry(each) for each in gpu_names()]


def _models(name: str | None) -> list[JsonDict]:
    from sartor.model.zoo import model_entry, model_names

    return [model_entry(name)] if name else [model_entry(each) for each in model_names()]


def _clusters(name: str | None) -> list[JsonDict]:
    from sartor.hardware.cluster_catalog import cluster_entry, cluster_names

    return [cluster_entry(name)] if name else [cluster_entry(each) for each in cluster_names()]


def _rules(name: str | None) -> list[JsonDict]:
    from sartor.rules.lint import rule_entries

    return rule_entries(name)


def _accelerators(name: str | None) -> list[JsonDict]:
    from sartor.hardware.accelerator_catalog import accelerator_entry, accelerator_names

    return [accelerator_entry(name)] if name else [accelerator_entry(each) for each in accelerator_names()]


def _spaces(name: str | None) -> list[JsonDict]:
    from sartor.read.space_file import space_entry, space_names

    return [space_entry(name)] if name else [space_entry(each) for each in space_names()]


_SHELVES: dict[str, Callable[[str | None], list[JsonDict]]] = {
    "gpus": _gpus,
    "models": _models,
    "clusters": _clusters,
    "rules": _rules,
    "accelerators": _accelerators,
    "spaces": _spaces,
}
