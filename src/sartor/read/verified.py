"""What is known to be exact, by two kinds of proof.

One is a comparison of a model type's counts with its published class, the other the parameters that a user states of a
model of their own: ``num_params`` or the shapes of all ``tensors`` under ``sartor`` in the config.json, or weights in
safetensors files beside it.

``verified.json`` holds, for every model type of the golden conformance set, the classes compared, the columns that
differ or are open, and the model types inside composite configs. ``lab/conformance.py golden`` writes it, so a reading
is called exact only if the golden tests cover it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sartor.bounded import parse_json, read_bytes
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.read.config_text import packaged_json
from sartor.read.family_table import family_rows

STATED = "sartor"
"""The section of a config.json with what a user states about the model."""

MEANING = {
    "params": "parameters",
    "text_params": "parameters of the text part",
    "layer_params_runs": "the list of its layers",
    "active_params": "active parameters",
    "linear_flops": "FLOPs of linear layers",
    "attention_flops": "FLOPs of attention",
}


def unverified(model_type: str, architecture: str, parts: Iterable[str]) -> tuple[str, ...]:
    """Reasons why a reading is not known to be exact, one sentence each; empty if it is."""
    row = family_rows().get(model_type)
    if row is not None and row.verified:
        return ()
    classes = packaged_json("verified.json")["model_types"].get(model_type)
    if classes is None:
        return (f"the counts of {model_type} have not been compared with its published class",)
    differs = _differs(architecture, classes)
    if differs is None:
        return (f"the counts of class {architecture} have not been compared with the published one",)
    out = []
    for reason in dict.fromkeys(differs.values()):
        columns = ", ".join(MEANING[column] for column, why in differs.items() if why == reason)
        out.append(f"not known to equal the published {architecture}: {columns} ({reason})")
    proofs = packaged_json("verified.json")["parts"]
    for part in dict.fromkeys(parts):
        if part and part not in proofs and part not in verified_model_types():
            out.append(f"the counts of {part} inside {model_type} have not been compared with the published class")
    return tuple(out)


@cache
def ignored_fields(model_type: str) -> frozenset[str]:
    """Fields that the published class writes into its files and does not build from: its counts were compared with
    these in the file."""
    return frozenset(packaged_json("verified.json")["ignored"].get(model_type, ()))


@cache
def verified_model_types() -> frozenset[str]:
    """Model types with a class that is exact in every column."""
    return frozenset(
        name for name, classes in packaged_json("verified.json")["model_types"].items() if not all(classes.values())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatedParams:
    """A model's number of parameters as its owner states it, and where."""

    num_params: int
    where: str
    by_user: bool
    """Whether the config says so, not the weights beside it."""


def stated_params(config: JsonMap, folder: Path | None = None) -> StatedParams | None:
    """The parameters stated in the config's own section, else counted from safetensors files in ``folder``; None if
    there is neither. Raises ``InputError``."""
    section = config.get(STATED)
    if section is not None:
        return _in_section(section)
    return None if folder is None else _in_weights(folder)


def _in_section(section: object) -> StatedParams:
    if not isinstance(section, dict) or not section.keys() <= {"num_params", "tensors"} or len(section) != 1:
        must = "must be an object with num_params (the parameter count) or tensors (a list of sizes by tensor name)"
        raise InputError(STATED, str(section)[:60], must)
    if "tensors" in section:
        tensors = section["tensors"]
        if not isinstance(tensors, dict) or not tensors:
            raise InputError(
                f"{STATED}.tensors", str(tensors)[:60], "must be an object: a list of sizes by tensor name"
            )
        num_params = sum(_numel(f"{STATED}.tensors.{name}", sizes) for name, sizes in tensors.items())
        return StatedParams(num_params=num_params, where=f"{STATED}.tensors", by_user=True)
    stated = section["num_params"]
    if isinstance(stated, bool) or not isinstance(stated, int) or stated < 1:
        raise InputError(f"{STATED}.num_params", stated, "must be a positive integer")
    return StatedParams(num_params=stated, where=f"{STATED}.num_params", by_user=True)


def _numel(name: str, sizes: object) -> int:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise InputError(name, str(sizes)[:60], "must be a list of sizes, like [4096, 14336]")
    return math.prod(sizes)


def _in_weights(folder: Path) -> StatedParams | None:
    """The parameters of the weights beside a config.json: of the index if it counts them, else of each file's header
    if all the index's files are there."""
    index = folder / "model.safetensors.index.json"
    names = ["model.safetensors"]
    if index.is_file():
        body = parse_json(
            read_bytes(index, "weights", "must be an index of safetensors", limit=MAX_HEADER), name=str(index)
        )
        metadata, shards = body.get("metadata"), body.get("weight_map")
        total = metadata.get("total_parameters") if isinstance(metadata, dict) else None
        if type(total) is int and total > 0:
            return StatedParams(num_params=total, where=index.name, by_user=False)
        names = sorted({str(name) for name in shards.values()}) if isinstance(shards, dict) else []
    files = [folder / name for name in names if "/" not in name and "\\" not in name]
    if not files or not all(file.is_file() for file in files):
        return None
    headers = [_header(file) for file in files]
    num_params = sum(
        _numel(f"{file.name}: {name}", tensor.get("shape") if isinstance(tensor, dict) else None)
        for file, header in zip(files, headers, strict=True)
        for name, tensor in header.items()
        if name != "__metadata__"
    )
    where = files[0].name if len(files) == 1 else f"{len(files)} safetensors files"
    return StatedParams(num_params=num_params, where=where, by_user=False)


MAX_HEADER = 100_000_000
"""Largest header of a safetensors file, as the format's own reader takes it."""


def _header(file: Path) -> JsonDict:
    """The header of a safetensors file: its length in 8 bytes, then JSON with the shape of every tensor."""
    must = "must be a safetensors file"
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 0 < length <= MAX_HEADER:
                raise InputError("weights", str(file), must)
            header = json.loads(stream.read(length))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError("weights", str(file), f"{must} ({error})") from None
    if not isinstance(header, dict):
        raise InputError("weights", str(file), must)
    return header


GENERIC_HEADS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering", "Model")


def _differs(architecture: str, classes: dict[str, dict[str, str]]) -> dict[str, str] | None:
    """Columns that differ, with the reason; None for a class that was not compared.

    A decoder's heads other than ``ForCausalLM`` are the library's generic ones, which the golden set covers for Llama.
    """
    if architecture in classes:
        return classes[architecture]
    stem = next((architecture.removesuffix(x) for x in GENERIC_HEADS if architecture.endswith(x)), None)
    return classes.get(f"{stem}ForCausalLM")
