"""Hugging Face ``config.json`` to `TransformerShape`: counted from fields and architecture, never from a name.

Known model types are read as their published classes build them; missing fields get the classes' published defaults,
which are reported. An unknown model type is read by its field names, every guess is reported, and the interval of each
prediction is widened. No code or link in a file is followed (``auto_map`` least of all).
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.model.counts import count_params
from sartor.model.layer import AttentionMixer, MoeFfn
from sartor.model.shape import TransformerShape
from sartor.model.workload import ModelReading
from sartor.read.config_text import parse_config, read_config
from sartor.read.families import model_types, read_part
from sartor.read.families.tabled import is_tabled, with_table
from sartor.read.fields import Fields, Ledger, default_class, is_published_class, types_of_class
from sartor.read.numerics import read_numerics, released_type, says_quantized
from sartor.read.verified import StatedParams, say_unread, stated_params, unverified
from sartor.units import format_count

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+\-]*\Z")


def read_model(source: Path | str | bytes | JsonDict, *, name: str = "") -> ModelReading:
    """Read a config.json: its path or folder, its bytes, or the dictionary already parsed.

    Raises `InputError` with one sentence if the file cannot be used.

    >>> reading = read_model({"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257})
    >>> reading.shape.hidden_size
    768
    """
    folder = None
    if isinstance(source, dict):
        config = source
    elif isinstance(source, bytes):
        config = parse_config(source, name=name or "config.json")
    else:
        path = Path(source)
        config = read_config(path)
        name = name or _name_of(path)
        folder = path if path.is_dir() else path.parent if path.name == "config.json" else None
    return read_fields(config, name=name, folder=folder)


def read_fields(config: JsonDict, *, name: str = "", folder: Path | None = None) -> ModelReading:
    """Read a parsed config. ``name`` is the model's name if the file has none; ``folder`` may hold its weights, whose
    sizes prove the reading."""
    ledger = Ledger()
    model_type, architecture = _model_type(config), _architecture(config)
    if not model_type and not architecture:
        raise InputError(
            "model_type",
            "missing",
            "must be given: without model_type or architectures, the sizes do not determine the model",
        )
    _check_dtype(config)
    _check_what_changes_no_count(config, ledger)
    _note_what_is_left_aside(config, ledger)
    is_published = model_type in model_types()
    built = _built_class(architecture, model_type, ledger) if is_published else architecture
    if is_published and (other_type := _other_type(architecture, model_type)):
        ledger.assume(f"architectures={architecture} is a class of {other_type}: read as model_type={model_type} says")
    fields = Fields(config, model_type, "", ledger, built)
    shape = read_part(fields)
    if is_published and is_tabled(model_type, built):
        shape = with_table(fields, shape)
    _check_heads(shape)
    _say_what_is_not_priced(shape, ledger)
    say_unread(config, ledger, sparse=_is_sparse(shape))
    named = _display_name(config, name) or model_type
    part = shape.dense_ffn or (shape.moe_ffn.expert if shape.moe_ffn else None)
    numerics = read_numerics(config, model_type, part.activation if part else "")
    shape = replace(shape, name=named, model_type=model_type, numerics=numerics)
    reasons = (*ledger.inexact, *(unverified(model_type, built, ledger.parts) if is_published else ()))
    reading = ModelReading(
        shape=shape,
        assumptions=tuple(ledger.assumptions),
        notes=tuple(ledger.notes),
        exact=not reasons,
        inexact_because=reasons,
        unread_sizes=tuple(ledger.unread_sizes),
        interval_factor=ledger.factor,
        architecture=architecture,
        weights=released.value if (released := released_type(config)) else "",
    )
    stated = stated_params(config, None if says_quantized(config) else folder)
    return reading if stated is None else _compared(reading, stated)


def _compared(reading: ModelReading, stated: StatedParams) -> ModelReading:
    """The reading with its count compared to the stated one: exact if they are equal."""
    counted = int(reading.num_params)
    if counted == stated.num_params:
        note = f"the parameter count equals that of {stated.where}, {counted:,}"
        return replace(
            reading,
            exact=True,
            inexact_because=(),
            unread_sizes=(),
            interval_factor=1.0,
            notes=(*reading.notes, note),
        )
    if reading.exact and not stated.by_user:
        note = f"{stated.where} holds {stated.num_params:,} parameters, the class {counted:,}: tied or further tensors"
        return replace(reading, notes=(*reading.notes, note))
    change = 100 * (counted / stated.num_params - 1)
    sentence = (
        f"{stated.where} states {stated.num_params:,} parameters, but the fields give {counted:,} ({change:+.2g}%)"
    )
    return replace(
        reading,
        exact=False,
        assumptions=(*reading.assumptions, sentence),
        inexact_because=(*reading.inexact_because, sentence),
        interval_factor=reading.interval_factor * UNLIKE_STATED,
    )


UNLIKE_STATED = 1.05
"""Factor on the interval of a model whose count differs from the stated one."""


def _check_heads(shape: TransformerShape) -> None:
    """Raise if there are so many heads that their width is 0."""
    for stack in shape.stacks:
        for mixer in (mixer for run in stack.runs for mixer in run.layer.mixers):
            if isinstance(mixer, AttentionMixer) and mixer.head_dim < 1:
                must = f"must be at most hidden_size={stack.hidden_size}, so that each head is at least one wide"
                raise InputError("num_attention_heads", mixer.num_heads, must)


def _is_sparse(shape: TransformerShape) -> bool:
    layers = (run.layer for stack in shape.stacks for run in stack.runs)
    return any(isinstance(ffn, MoeFfn) for layer in layers for ffn in layer.all_ffns)


def _say_what_is_not_priced(shape: TransformerShape, ledger: Ledger) -> None:
    """Report that towers are in num_params but not in time and memory, which are for the text alone."""
    counted = count_params(shape)
    stored_head = int(counted.lm_head) if shape.stored_head else 0
    beside, total = int(counted.total - counted.text) - stored_head, int(counted.total)
    if beside and any(stack.is_text for stack in shape.stacks):
        ledger.assume(
            f"vision and audio towers ({format_count(beside)} of {format_count(total)} parameters) are in num_params; "
            "time and memory are those of the text model alone"
        )


def _name_of(path: Path) -> str:
    """The folder's name for a config.json or a folder, else the file's without ``.json``."""
    if path.name == "config.json":
        return path.absolute().parent.name
    return path.name.removesuffix(".json")


def _model_type(config: JsonDict) -> str:
    value = config.get("model_type")
    if value is None or value == "":
        return ""
    if not isinstance(value, str) or not _NAME.match(value) or len(value) > 80:
        raise InputError("model_type", value, "must be a name of letters, digits, - and _")
    return value


def _architecture(config: JsonDict) -> str:
    value = config.get("architectures")
    if value is None or value == []:
        return ""
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, list) or not all(isinstance(x, str) and _NAME.match(x) and len(x) < 120 for x in value):
        raise InputError("architectures", value, "must be a list of class names")
    return str(next((name for name in value if is_published_class(name)), value[0]))


def _built_class(architecture: str, model_type: str, ledger: Ledger) -> str:
    """The published class to build: the one the file names, else its model type's first auto class."""
    if is_published_class(architecture):
        return architecture
    built = default_class(model_type)
    if architecture and built:
        ledger.note(f"architectures={architecture} is not a published class: counted as {built}, model_type's own")
    return built or architecture


def _other_type(architecture: str, model_type: str) -> str:
    """The model type whose default class is ``architecture``, if that is not one of ``model_type``'s own."""
    owners = types_of_class(architecture)
    default = default_class(model_type)
    return owners[0] if owners and default and model_type not in owners else ""


def _display_name(config: JsonDict, name: str) -> str:
    display = config.get("_name_or_path")
    chosen = name or (display.rstrip("/").rsplit("/", 1)[-1] if isinstance(display, str) else "")
    return "".join(c if c.isprintable() else "?" for c in chosen)[:100]


_DTYPES = re.compile(r"(torch\.)?(auto|half|float|double|bfloat16|(u?int|float)(4|8|16|32|64)(_[a-z0-9]+)?)\Z")


def _check_dtype(config: JsonDict) -> None:
    """No count depends on the dtype, but a file with an invalid one is damaged."""
    for name in ("torch_dtype", "dtype"):
        value = config.get(name)
        if value is not None and not (isinstance(value, str) and _DTYPES.match(value)):
            dtypes = "bfloat16, float16, float32"
            raise InputError(name, value, "must name an element type of PyTorch", dtypes)


_ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation", "hidden_activation_function")
_ABOVE_0 = ("rope_theta", "max_position_embeddings")
_ACTIVATION = re.compile("elu|silu|swish|glu|mish|tanh|sigmoid|linear|laplace|softplus|identity", re.IGNORECASE)
"""What the name of every activation of transformers and of published custom code contains."""
_WINDOWS = ("sliding_window", "attention_window_size", "sliding_window_size")


def _check_what_changes_no_count(config: JsonDict, ledger: Ledger, path: str = "") -> None:
    """Activations must be names and windows lengths even where no count depends on them; -1 means no window."""
    for name in _ACTIVATIONS:
        if not isinstance(config.get(name), (str, dict, type(None))):
            raise InputError(path + name, config[name], "must be the name of an activation", "silu, gelu")
        if isinstance(word := config.get(name), str) and word and not _ACTIVATION.search(word):
            ledger.assume(f"{path}{name}={word:.40} is not an activation of transformers; priced like any other")
    for name in _ABOVE_0:
        value = config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value <= 0 and value != -1:
            raise InputError(path + name, value, "must be above 0")
    for name in _WINDOWS:
        value = config.get(name)
        if isinstance(value, (int, float)) and not isinstance(value, bool) and value < -1:
            raise InputError(path + name, value, "must be a length of at least 0, or null for no window")
    for name, value in config.items():
        if isinstance(value, dict) and name.endswith("config"):
            _check_what_changes_no_count(value, ledger, f"{path}{name}.")


def _note_what_is_left_aside(config: JsonDict, ledger: Ledger) -> None:
    if config.get("auto_map"):
        ledger.note("auto_map names code of the repository; it is not followed")
    if says_quantized(config):
        ledger.note("quantization_config changes no count and no dtype: parameters are counted as if not quantized")
