"""Read NeMo's YAML of a GPT (``megatron_gpt_config.yaml`` and similar, with ``trainer:`` and ``model:``) as the
equivalent Megatron-LM arguments. Names recalled from NeMo 1.23 and its examples, 2026-11-23."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.fields import NOT, rows
from sartor.launch.megatron import read_megatron
from sartor.launch.plan import LaunchKind, LaunchReading, no_devices
from sartor.launch.script import Command
from sartor.launch.yaml_text import read_yaml
from sartor.step.trainers.nemo import NEMO

NORMS = {
    "layernorm": ("--normalization", "LayerNorm"),
    "low_precision_layernorm": ("--normalization", "LayerNorm"),
    "layernorm1p": ("--normalization", "LayerNorm", "--apply-layernorm-1p"),
    "rmsnorm": ("--normalization", "RMSNorm"),
    "low_precision_rmsnorm": ("--normalization", "RMSNorm"),
}
ACTIVATIONS = {"gelu": (), "swiglu": ("--swiglu",), "fast-swiglu": ("--swiglu",), "squared-relu": ("--squared-relu",)}
PRECISIONS = {"bf16": ("--bf16",), "bf16-mixed": ("--bf16",), "16": ("--fp16",), "16-mixed": ("--fp16",), "32": ()}


def is_nemo(value: JsonMap) -> bool:
    """Whether a YAML is NeMo's: a Lightning trainer and a model with layers."""
    model = value.get("model")
    return isinstance(value.get("trainer"), dict) and isinstance(model, dict) and "num_layers" in model


def overrides(words: Iterable[str], config: JsonMap) -> JsonDict:
    """A configuration with overrides from a command line (``trainer.devices=8 ++model.num_layers=32``)."""
    out = {name: dict(value) if isinstance(value, dict) else value for name, value in config.items()}
    for word in words:
        name, sign, value = word.lstrip("+~").partition("=")
        group, dot, field = name.partition(".")
        if sign and dot and group in ("trainer", "model"):
            parsed = read_yaml(f"value: {value}", name=name)["value"]
            inner, last = out.setdefault(group, {}), field.split(".")
            for part in last[:-1]:
                inner = inner.setdefault(part, {})
            inner[last[-1]] = parsed
    return out


def read_nemo(value: JsonMap, num_devices: int = 0) -> LaunchReading:
    """The model, job and plan of a configuration. Raises `InputError`."""
    model, trainer = value["model"], value["trainer"]
    devices = num_devices or _devices(trainer)
    if not devices:
        raise no_devices(1)
    words = tuple(_words(_resolved(model), trainer))
    reading = read_megatron(Command(launcher=(), program="", arguments=words, num_devices=devices), num_devices)
    read = reading.parts.trainer
    own = replace(NEMO, tp_overlap=read.tp_overlap, grad_fusion=read.grad_fusion, dispatch_once=False, ep_overlap=False)
    return replace(reading, parts=replace(reading.parts, trainer=own))


def _devices(trainer: JsonMap) -> int:
    each, nodes = trainer.get("devices"), trainer.get("num_nodes", 1)
    found = [n for n in (each, nodes) if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return found[0] * found[1] if len(found) == 2 else 0


def _resolved(model: JsonMap) -> dict[str, object]:
    """The fields with ``${.encoder_seq_length}`` and ``${model.encoder_seq_length}`` resolved and nulls left out."""
    out: dict[str, object] = {}
    for name, value in model.items():
        other = re.fullmatch(r"\$\{(?:model)?\.(\w+)\}", value) if isinstance(value, str) else None
        found = model.get(other[1]) if other else value
        if found is not None:
            out[name] = found
    return out


def _words(model: dict[str, object], trainer: JsonMap) -> Iterator[str]:
    for row in rows(LaunchKind.MEGATRON):
        name = row.nemo.removeprefix(NOT)
        if not name or name not in model:
            continue
        if name != row.nemo or row.flag is not None:
            yield from (row.argument,) if model[name] is (name == row.nemo) else ()
        else:
            yield from (row.argument, str(model[name]))
    if "num_query_groups" in model:
        yield "--group-query-attention"
    yield from _of(NORMS, "normalization", model.get("normalization", "layernorm"))
    yield from _of(ACTIVATIONS, "activation", model.get("activation", "gelu"))
    yield from _of(PRECISIONS, "precision", trainer.get("precision", 32))
    if model.get("fp8") is True:
        yield from ("--fp8-format", "hybrid" if model.get("fp8_hybrid", True) else "e4m3")
    optimizer = model.get("optim")
    if isinstance(optimizer, dict) and str(optimizer.get("name", "")).startswith("distributed"):
        yield from ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")


def _of(table: dict[str, tuple[str, ...]], field: str, value: object) -> tuple[str, ...]:
    if str(value) not in table:
        raise InputError(field, printable(str(value)), f"must be one of {', '.join(table)}", next(iter(table)))
    return table[str(value)]
