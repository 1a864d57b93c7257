"""Other files that say Megatron-LM's arguments: NeMo's YAML of a GPT (``megatron_gpt_config.yaml`` and similar, with
``trainer:`` and ``model:``; names recalled from NeMo 1.23 and its examples, 2026-11-23), and the dump of arguments that
Megatron-LM prints at the head of a log."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonMap
from sartor.launch.fields import NOT, argument_names, plan_rows, rows
from sartor.launch.megatron import read_megatron
from sartor.launch.plan import LaunchKind, LaunchReading, no_devices
from sartor.launch.script import ScriptCommand
from sartor.launch.stated import NO_OPTIONS, Options, resolved
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


def read_nemo(value: JsonMap, options: Options = NO_OPTIONS) -> LaunchReading:
    """The model, job and plan of a configuration. Raises `InputError`."""
    trainer = value["trainer"]
    devices = options.devices(_nemo_devices(trainer))
    if not devices:
        raise no_devices(1)
    fields = {name: field for name, field in resolved(value)["model"].items() if field is not None}
    words = tuple(_nemo_words(fields, trainer))
    reading = read_megatron(ScriptCommand(launcher=(), program="", arguments=words, num_devices=devices), options)
    read = reading.parts.trainer
    trainer_of_nemo = replace(
        NEMO, tp_overlap=read.tp_overlap, grad_fusion=read.grad_fusion, dispatch_once=False, ep_overlap=False
    )
    stated = {row.field for row in plan_rows() if row.nemo.removeprefix(NOT) in fields and not row.follows}
    others = {
        "recipe": "precision" in trainer or "fp8" in fields,
        "sharded": "optim" in fields,  # whose name says it
        "num_devices": _nemo_devices(trainer) > 0,
    }
    custom = value.get("mcore_customization_config")
    customized = [name for name, setting in custom.items() if setting] if isinstance(custom, dict) else []
    return replace(
        reading,
        unknown=(*customized, *reading.unknown),
        open_fields={**reading.open_fields, **({} if options.shape else dict.fromkeys(customized, "true"))},
        parts=replace(reading.parts, trainer=trainer_of_nemo),
        fields_in_file=frozenset(stated | {name for name, stands in others.items() if stands}),
    )


def _nemo_devices(trainer: JsonMap) -> int:
    devices, nodes = trainer.get("devices"), trainer.get("num_nodes", 1)
    counts = [n for n in (devices, nodes) if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    return counts[0] * counts[1] if len(counts) == 2 else 0


def _nemo_words(model: dict[str, object], trainer: JsonMap) -> Iterator[str]:
    for row in rows(LaunchKind.MEGATRON):
        name = row.nemo.removeprefix(NOT)
        if not name or name not in model:
            continue
        if name != row.nemo or row.flag is not None:
            yield from (row.argument,) if model[name] is (name == row.nemo) else ()
        else:
            yield from (row.argument, str(model[name]))
    tokenizer = model.get("tokenizer")
    if isinstance(tokenizer, dict) and tokenizer.get("library") == "huggingface" and tokenizer.get("type"):
        yield from ("--tokenizer-model", str(tokenizer["type"]))
    if "num_query_groups" in model:
        yield "--group-query-attention"
    yield from _chosen(NORMS, "normalization", model.get("normalization", "layernorm"))
    yield from _chosen(ACTIVATIONS, "activation", model.get("activation", "gelu"))
    yield from _chosen(PRECISIONS, "precision", trainer.get("precision", 32))
    if model.get("fp8") is True:
        yield from ("--fp8-format", "hybrid" if model.get("fp8_hybrid", True) else "e4m3")
    optimizer = model.get("optim")
    if isinstance(optimizer, dict) and str(optimizer.get("name", "")).startswith("distributed"):
        yield from ("--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather")


def _chosen(table: dict[str, tuple[str, ...]], field: str, value: object) -> tuple[str, ...]:
    if str(value) not in table:
        raise InputError(field, printable(str(value)), f"must be one of {', '.join(table)}", next(iter(table)))
    return table[str(value)]


NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size", "global_batch_size")
"""If one of these is missing, the dump is incomplete and no launch can be read from it."""
OTHER_FLAGS = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "add_bias_linear": "--disable-bias-linear",
    "add_position_embedding": "--no-position-embedding",
}
"""Arguments whose flag has a different name."""
OLD_FLAGS = {
    "checkpoint_activations": ("--recompute-granularity", "full", "--recompute-method", "uniform"),
    "fp32_allreduce": ("--accumulate-allreduce-grads-in-fp32",),
}
"""Arguments from before 2022, under their current names."""


def whole_dump(arguments: Mapping[str, str]) -> bool:
    """Whether a dump has everything a launch needs."""
    return all(name in arguments for name in NEEDED)


def read_dump(arguments: Mapping[str, str], options: Options = NO_OPTIONS) -> LaunchReading:
    """The launch that printed a dump of arguments, with the ``options`` beside it. Raises `InputError` if the dump
    contradicts itself."""
    devices = options.num_devices or _dumped_devices(arguments)
    words = [word for name, value in arguments.items() for word in _dumped_words(name, value)]
    implied = {}
    if "checkpoint_activations" in arguments or "DDP_impl" in arguments:
        words += ["--attention-backend", "unfused"]
        implied["attention"] = "no flash kernel in Megatron-LM before 2022"
    command = ScriptCommand(launcher=(), program="", arguments=tuple(words), num_devices=devices)
    try:
        reading = read_megatron(command, options)
    except InputError as error:
        if not error.field.startswith("--"):
            raise
        name = next((name for name in arguments if _flag(name) == error.field), error.field)
        raise InputError(name, error.value, f"in the log's dump of arguments, {error.must}", error.nearest) from None
    flags = {_flag(name) for name in arguments}
    printed = {row.field for row in plan_rows() if {row.argument, *row.older} & flags}
    return replace(reading, fields_in_file=reading.fields_in_file | printed, implied={**reading.implied, **implied})


SETTLES = {
    "attention": {
        "attention_backend": ("flash", "fused", "unfused", "local"),
        "use_flash_attn": ("True",),
    },
    "fused_kernels": {
        "transformer_impl": ("local", "transformer_engine", "inference_optimized"),
        "bias_swiglu_fusion": ("True",),
        "bias_gelu_fusion": ("True",),
    },
}
"""Facts of a plan, and the arguments that leave no doubt of them."""


def settled(arguments: Mapping[str, str]) -> frozenset[str]:
    """Facts, beyond those that every launch says, of which a dump leaves no doubt."""
    values_by_name = {name: MEMBER.sub("", value) for name, value in arguments.items()}
    return frozenset(
        fact
        for fact, names in SETTLES.items()
        if any(values_by_name.get(name) in values for name, values in names.items())
    )


def _dumped_devices(arguments: Mapping[str, str]) -> int:
    text = arguments.get("world_size", "")
    if not re.fullmatch(r"\d{1,7}", text):
        raise InputError(
            "world_size", text or "not given", "must be in the log's dump of arguments", "--num-devices 64"
        )
    return int(text)


def _flag(name: str) -> str:
    return OTHER_FLAGS.get(name, f"--{name.replace('_', '-')}")


MEMBER = re.compile(r"^[A-Z][A-Za-z]{0,40}\.(?=\w{1,60}$)")
"""The class of an enumeration before its member, as Python prints it: ``AttnBackend.auto``."""


def _dumped_words(name: str, value: str) -> Iterator[str]:
    """One line of the dump as command line words; nothing if it has its default."""
    flag = _flag(name)
    value = MEMBER.sub("", value)
    switched_off = flag if name.startswith("add_") else f"--no-{name.replace('_', '-')}"
    if name in OLD_FLAGS and value == "True":
        yield from OLD_FLAGS[name]
    elif value in ("None", ""):
        return
    elif value == "False":
        yield from (switched_off,) if switched_off in argument_names() else ()
    elif value == "True":
        yield from (flag,) if flag in argument_names() and name not in OTHER_FLAGS else ()
    elif flag in argument_names():
        yield from (flag, *re.sub(r"[\[\]',]", " ", value).split())
