"""What is known to be exact, by two kinds of proof, and which fields of a config no reader looked up.

One is a comparison of a model type's counts with its published class, the other the parameters that a user states of a
model of their own: ``num_params`` or the shapes of all ``tensors`` under ``sartor`` in the config.json, or weights in
safetensors files beside it.

``verified.json`` holds, for every model type of the golden conformance set, the classes compared, the columns that
differ or are open, and the model types inside composite configs. ``lab/conformance.py golden`` writes it, so a reading
is called exact only if the golden tests cover it.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from sartor.bounded import parse_json, read_bytes
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.workload import unread_words
from sartor.read.config_text import packaged_json
from sartor.read.fields import Fields, Ledger, class_defaults, family_rows

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


UNREAD = 1.2
"""Factor on the interval of a model with sizes that were not read: one more matrix in each layer may hang on them."""

MIXERS = re.compile(
    r"^(linear|mamba|ssm|gdn|gla|kda|rwkv|lru|hyena|retention|delta)_|_(mamba|ssm)_|^full_attention_interval$|"
    r"^(attn_layer|attn_type|attention_types?$|block_type|layers_block_type|hybrid_)|^conv_L_cache$|^layer_types$"
)
"""Fields of layers that are not plain attention, by the names that published configs give them."""
EXPERTS = re.compile(r"experts?(_|$)|(^|_)moe_(?!layer_freq_|aux|z_)")
SIZES = re.compile(
    r"_(sizes?|dims?|width|ranks?|layers?|heads?|experts?|interval|channels|groups?|mult|ratio)$|^(num|n|d)_|^dim$"
)
NO_STRUCTURE = re.compile(
    r"router|aux|loss|coef|capacity|jitter|dropout|norm_|_norm|_eps|dtype|scal|_bias|overlap|parallel|_impl|backend|act$|"
    r"window|time_step|dt_|_min$|_max$|vocab|position|chunk|max_batch|_batch_size|layer_?norm|residual|_(e|t)p_size|"
    r"^ep_size|sink_size|spatial_patch_size|feature_layer|labels|beam|_sequences$|steps|epochs|train|logits|frames|crops|"
    r"rope_|kv_source|n_ctx$|n_special|image_tokens|image_size|tokens_per|_per_token$|^num_nextn_|no_rope_layer"
)
"""What changes neither parameters nor FLOPs, although its name holds one of the words above."""


NO_SIZE = re.compile(
    rf"{NO_STRUCTURE.pattern.replace('vocab|', '').replace('residual|', '')}|seed|version|token|_ids?$|length|context|"
    r"batch|step|freq|theta|base$|beta|alpha|bits|quant|revision|date|time|seconds|rope|rotary|max_|min_|temperature|"
    r"top_[kp]$|alibi|sinusoid|^size$|_js$|pad|multiple|cache|interval|gpus?$|nodes?$|workers|flops|num_params|total_params|size_in_bytes"
)
"""What is no size in the name of a field that no published class has."""


def _may_be_size(value: object, name: str) -> bool:
    """Whether a field that no published class has could be a size: a whole number above 1, or several."""
    if NO_SIZE.search(name.lower()):
        return False
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
    return any(_is_size(part) for part in inner)


def _unread(config: JsonDict, ledger: Ledger, path: str, model_type: str, outer_type: str = "") -> list[str]:
    """Names of sizes, experts and mixers in one (sub-)config that say more than 0 or 1, that no reader asked for, that
    the class of ``model_type`` does not have, and without which no count of that class was compared."""
    defaults = class_defaults(model_type)
    read = {
        *ledger.asked.get(path, ()),
        *defaults.values,
        *defaults.aliases,
        *ignored_fields(part_name(model_type, outer_type, path)),
    }
    return [
        name for name, value in config.items() if name not in read and _is_structure(name) and _says_much(name, value)
    ]


def part_name(model_type: str, outer_type: str, path: str) -> str:
    """The model type of a (sub-)config, or where it stands in one that has a type: ``molmo2.adapter_config``."""
    return model_type or f"{outer_type}.{path.removesuffix('.')}"


def refuse_unread(f: Fields) -> None:
    """Raise if a config of an unknown model type has experts or another mixer that the reading left out."""
    left = [n for n in _unread(f.raw, f.ledger, f.path, f.model_type) if MIXERS.search(n) or EXPERTS.search(n)]
    if left:
        what = "a mixer other than attention" if MIXERS.search(left[0]) else "experts"
        also = f" (as {_shown(left[1:])})" if left[1:] else ""
        must = f"describes {what}{also}: counted only for a known model_type, and {f.model_type} is unknown"
        raise f.refuse(left[0], f.raw[left[0]], must, nearest_type(f.raw, left))


def say_unread(config: JsonDict, ledger: Ledger, *, sparse: bool, path: str = "", outer_type: str = "") -> None:
    """Report the fields that were ignored.

    A size that no reader knows makes the parameter count unknown. One that resembles a field missing from the file is
    taken for a misspelling; that, and experts in a model counted without any, make the counts inexact too.
    """
    stated = config.get("model_type")
    model_type = stated if isinstance(stated, str) else ""
    left = _unread(config, ledger, path, model_type, outer_type)
    left = [name for name in left if not _repeats(config, name) and not _restates(ledger, name, config[name])]
    names_read, published = ledger.asked.get(path, set()), _published_field_names()
    strange = [
        k for k in config if k not in names_read and k not in published and not k.startswith("_") and k != STATED
    ]
    lacking = sorted(names_read - config.keys())
    meant = {name: difflib.get_close_matches(name[:60], lacking, 1, 0.85) for name in strange[:20]}
    for name in (name for name, near in meant.items() if near):
        lost = f"it may mean {meant[name][0]}, which is not in the file"
        ledger.guess(f"{path}{name[:60]} is ignored: no published class has it; {lost}")
    left = [name for name in left if not meant.get(name)]
    harmless = {*left, *ignored_fields(part_name(model_type, outer_type, path))}
    strange = [name for name in strange if not meant.get(name) and f"{path}{name}." not in ledger.asked]
    unknown = [name for name in strange if name not in harmless and _may_be_size(config[name], name)]
    listed = [name for name in left if name.endswith("_layers") and _may_be_size(config[name], name)]
    unread = dict.fromkeys((*(name for name in left if _is_size(config[name])), *listed, *unknown))
    if sizes := [f"{path}{name[:60]}={config[name]!s:.40}" for name in unread]:
        ledger.unread_sizes += sizes
        ledger.guess(unread_words(sizes), UNREAD)
    if rest := [name for name in left if name not in unread]:
        shown = ", ".join(f"{path}{name[:60]}={config[name]!r:.30}" for name in rest[:12])
        suffix = f" and {len(rest) - 12} more" if len(rest) > 12 else ""
        sentence = f"ignored, as the class of this model_type does not read them: {shown}{suffix}"
        changes_layers = any(MIXERS.search(n) for n in rest) or (not sparse and any(EXPERTS.search(n) for n in rest))
        ledger.guess(sentence) if changes_layers else ledger.note(sentence)
    parts = [name for name in strange if config[name] is True and MAY_ADD.search(name)]
    if parts:
        shown = ", ".join(f"{path}{name[:60]}=true" for name in parts[:5])
        ledger.guess(f"not read, and may add parameters: {shown}")
    if strange := [name for name in strange if name not in (*left, *unknown, *parts)]:
        suffix = f" and {len(strange) - 5} more" if len(strange) > 5 else ""
        shown = ", ".join(path + name[:60] for name in strange[:5])
        ledger.note(f"ignored, as no published class has such a field: {shown}{suffix}")
    for name, value in config.items():
        if isinstance(value, dict) and f"{path}{name}." in ledger.asked:
            say_unread(
                value, ledger, sparse=sparse, path=f"{path}{name}.", outer_type=outer_type if path else model_type
            )


MAY_ADD = re.compile(r"output_gate|attn_gate|gated_att|qk_norm|(?:attn|attention)_res|sinks?\b|indexer|sparse_att")
"""Switches of such names, when on, usually mean tensors of their own."""


@cache
def _published_field_names() -> frozenset[str]:
    """Every field of any published configuration class, including nested configs and base classes."""
    return frozenset(str(packaged_json("class_defaults.json")["field_names"]).split())


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _is_structure(name: str) -> bool:
    words = MIXERS.search(name) or EXPERTS.search(name) or SIZES.search(name)
    return bool(words) and not NO_STRUCTURE.search(name)


def _says_much(name: str, value: object) -> bool:
    """Whether a value can change a count: an integer above 1, or a list or object that is not empty."""
    if isinstance(value, bool) or value is None:
        return False
    if isinstance(value, (int, float)):
        return value > 1 and float(value).is_integer()
    if isinstance(value, list) and name == "layer_types":
        return any("attention" not in str(item) or "linear" in str(item) for item in value)
    return isinstance(value, (list, dict)) and bool(value) and len(set(map(str, value))) > 1


def _repeats(config: JsonDict, name: str) -> bool:
    """Whether a number of key-value heads only repeats that of the heads, as older files of classes without it do."""
    return name == "num_key_value_heads" and config[name] == config.get("num_attention_heads")


def _restates(ledger: Ledger, name: str, value: object) -> bool:
    """Whether a size names one that was read elsewhere in the file: ``text_hidden_size`` and the text's
    ``hidden_size``."""
    words = name.split("_")
    return any(ledger.read_sizes.get("_".join(words[i:])) == value for i in range(1, len(words) - 1))


def _shown(names: list[str]) -> str:
    return ", ".join(name[:60] for name in names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def nearest_type(config: JsonDict, left: list[str], among: tuple[str, ...] = ()) -> str:
    """The published model type (of those ``among``) that has most of the fields left out, then most of all fields of
    the file, or the first of ``among``."""
    rows = (row for row in _shared(config, left) if not among or row[2] in among)
    best = max(rows, key=lambda row: (row[0], -among.index(row[2])) if among else row, default=(0, 0, ""))
    return f"model_type={best[2]}" if best[0] else ""


def _shared(config: JsonDict, left: list[str]) -> Iterator[tuple[int, int, str]]:
    for name in packaged_json("class_defaults.json")["model_types"]:
        defaults = class_defaults(name)
        has = {*defaults.values, *defaults.aliases}
        yield sum(n in has for n in left), sum(n in has for n in config) - len(has - config.keys()), name
