"""Read NeMo's YAML of a GPT (``megatron_gpt_config.yaml`` and similar, with ``trainer:`` and ``model:``) as the
equivalent Megatron-LM arguments. Names recalled from NeMo 1.23 and its examples, 2026-11-23."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.launch.megatron_read import read_megatron
from sartor.launch.plan import LaunchReading, no_devices
from sartor.launch.script import Command
from sartor.launch.yaml_text import read_yaml
from sartor.step.trainers.nemo import NEMO

SAME = (
    "micro_batch_size",
    "global_batch_size",
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
    "expert_model_parallel_size",
    "max_position_embeddings",
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "num_attention_heads",
    "num_query_groups",
    "kv_channels",
    "hidden_dropout",
    "attention_dropout",
    "make_vocab_size_divisible_by",
    "position_embedding_type",
    "rotary_base",
    "moe_router_topk",
)
OTHER = {
    "virtual_pipeline_model_parallel_size": "--num-virtual-stages-per-pipeline-rank",
    "encoder_seq_length": "--seq-length",
    "layernorm_epsilon": "--norm-epsilon",
    "override_vocab_size": "--vocab-size",
    "rotary_percentage": "--rotary-percent",
    "num_moe_experts": "--num-experts",
    "seq_len_interpolation_factor": "--rotary-seq-len-interpolation-factor",
    "activations_checkpoint_granularity": "--recompute-granularity",
    "activations_checkpoint_method": "--recompute-method",
    "activations_checkpoint_num_layers": "--recompute-num-layers",
}
ON = {"sequence_parallel": "--sequence-parallel", "ub_tp_comm_overlap": "--tp-comm-overlap"}
"""Flags for fields that are true; below, for fields that are false."""
OFF = {
    "bias": "--disable-bias-linear",
    "share_embeddings_and_output_weights": "--untie-embeddings-and-output-weights",
    "gradient_accumulation_fusion": "--no-gradient-accumulation-fusion",
}
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
    for name, flag in {**{name: "--" + name.replace("_", "-") for name in SAME}, **OTHER}.items():
        if name in model:
            yield from (flag, str(model[name]))
    if "num_query_groups" in model:
        yield "--group-query-attention"
    yield from (flag for name, flag in ON.items() if model.get(name) is True)
    yield from (flag for name, flag in OFF.items() if model.get(name) is False)
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
