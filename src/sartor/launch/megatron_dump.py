"""Read the dump of arguments that Megatron-LM prints at the head of a log as the launch it came from."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sartor.errors import InputError
from sartor.launch.megatron import read_megatron
from sartor.launch.megatron_arguments import argument_names
from sartor.launch.plan import LaunchReading
from sartor.launch.script import Command

NEEDED = ("num_layers", "hidden_size", "num_attention_heads", "seq_length", "micro_batch_size", "global_batch_size")
"""If one of these is missing, the dump is incomplete and no launch can be read from it."""
FLAGS = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "add_bias_linear": "--disable-bias-linear",
    "add_position_embedding": "--no-position-embedding",
}
"""Arguments whose flag has a different name."""
OLD = {
    "checkpoint_activations": ("--recompute-granularity", "full", "--recompute-method", "uniform"),
    "fp32_allreduce": ("--accumulate-allreduce-grads-in-fp32",),
}
"""Arguments from before 2022, under their current names."""


def whole_dump(arguments: Mapping[str, str]) -> bool:
    """Whether a dump has everything a launch needs."""
    return all(name in arguments for name in NEEDED)


def read_dump(arguments: Mapping[str, str], num_devices: int = 0) -> LaunchReading:
    """The launch that printed a dump of arguments. Raises `InputError` if the dump contradicts itself."""
    said = num_devices or _devices(arguments)
    words = [word for name, value in arguments.items() for word in _words(name, value)]
    if "checkpoint_activations" in arguments or "DDP_impl" in arguments:  # no flash kernel in Megatron before 2022
        words += ["--attention-backend", "unfused"]
    try:
        return read_megatron(Command(launcher=(), program="", arguments=tuple(words), num_devices=said))
    except InputError as error:
        if not error.field.startswith("--"):
            raise
        name = next((name for name in arguments if _flag(name) == error.field), error.field)
        raise InputError(name, error.value, f"in the log's dump of arguments, {error.must}", error.nearest) from None


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
    found = {name: MEMBER.sub("", value) for name, value in arguments.items()}
    return frozenset(
        fact for fact, names in SETTLES.items() if any(found.get(name) in values for name, values in names.items())
    )


def _devices(arguments: Mapping[str, str]) -> int:
    text = arguments.get("world_size", "")
    if not re.fullmatch(r"\d{1,7}", text):
        raise InputError(
            "world_size", text or "not given", "must be in the log's dump of arguments", "--num-devices 64"
        )
    return int(text)


def _flag(name: str) -> str:
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


MEMBER = re.compile(r"^[A-Z][A-Za-z]{0,40}\.(?=\w{1,60}$)")
"""The class of an enumeration before its member, as Python prints it: ``AttnBackend.auto``."""


def _words(name: str, value: str) -> Iterator[str]:
    """One line of the dump as command line words; nothing if it has its default."""
    flag = _flag(name)
    value = MEMBER.sub("", value)
    switched_off = flag if name.startswith("add_") else f"--no-{name.replace('_', '-')}"
    if name in OLD and value == "True":
        yield from OLD[name]
    elif value in ("None", ""):
        return
    elif value == "False":
        yield from (switched_off,) if switched_off in argument_names() else ()
    elif value == "True":
        yield from (flag,) if flag in argument_names() and name not in FLAGS else ()
    elif flag in argument_names():
        yield from (flag, *re.sub(r"[\[\]',]", " ", value).split())
