"""Hugging Face ``config.json`` to `TransformerShape`: counted from fields and architecture, never from a name.

Known model types are read as their published classes build them; missing fields get the classes' published defaults,
which are reported. An unknown model type is read by its field names, every guess is reported, and the interval of each
prediction is widened. No code or link in a file is followed (``auto_map`` least of all).

`Numerics` are the fields that change what a model computes but none of its sizes, and the type of its weights.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.counts import count_params
from sartor.model.layer import AttentionMixer, MoeFfn
from sartor.model.shape import MAX_LAYERS, Numerics, TransformerShape, Value, family_numerics
from sartor.model.workload import ModelReading
from sartor.read.config_text import packaged_json, parse_config, read_config
from sartor.read.families import model_types, read_part
from sartor.read.families.tabled import is_tabled, with_table
from sartor.read.fields import Fields, Ledger, default_class, is_published_class
from sartor.read.quantized import quantization_of, released_type, stored_types
from sartor.read.verified import StatedParams, nearest_type, say_unread, stated_params, unverified
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
            nearest_type(config, [name for name in config if name != "num_key_value_heads"], COMMON).replace(
                "model_type=", "add model_type, by its fields perhaps "
            ),
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
    numerics = _read_numerics(config, model_type, part.activation if part else "")
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
        stored=stored_types(config, shape),
    )
    stated = stated_params(config, None if quantization_of(config) is not None else folder)
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
    owners = _types_of_class(architecture)
    default = default_class(model_type)
    return owners[0] if owners and default and model_type not in owners else ""


def _types_of_class(name: str) -> list[str]:
    """The model types whose default class has that name."""
    return [
        model_type for model_type, built in packaged_json("published_classes.json")["default"].items() if built == name
    ]


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


COMMON = (
    "llama", "qwen3", "qwen2", "qwen3_moe", "mixtral", "deepseek_v3", "gpt_oss", "gemma3_text", "gemma2", "gpt2",
    "gpt_neox", "opt", "phi3", "falcon", "bloom", "olmo2",
)  # fmt: skip
"""Model types that a file without one is likely to mean, the likeliest first."""
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
    if quantization_of(config) is not None:
        ledger.note("quantization_config changes no count: parameters are counted as if not quantized")
        if released_type(config) is None:
            ledger.assume("quantization_config is of no type that is known: the weights are taken in 16 bits")


NAMES = {
    "norm_eps": (
        "rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps", "norm_epsilon", "norm_eps", "layernorm_epsilon",
    ),
    "rope_theta": ("rope_theta", "rotary_emb_base", "rope_base"),
    "rope_local_theta": ("rope_local_base_freq",),
    "attention_softcap": ("attn_logit_softcapping",),
    "logit_softcap": ("final_logit_softcapping",),
    "query_scale": ("query_pre_attn_scalar",),
    "attention_multiplier": ("attention_multiplier",),
    "embedding_multiplier": ("embedding_multiplier", "scale_emb"),
    "residual_multiplier": ("residual_multiplier",),
    "logit_scale": ("logits_scaling", "logit_scale"),
    "qkv_clip": ("clip_qkv",),
    "glu_limit": ("swiglu_limit",),
    "router_score": ("scoring_func",),
    "router_normalized": ("norm_topk_prob",),
    "router_groups": ("n_group",),
    "router_topk_groups": ("topk_group",),
    "router_scale": ("routed_scaling_factor",),
    "router_jitter": ("router_jitter_noise",),
    "aux_loss": ("router_aux_loss_coef", "aux_loss_alpha"),
    "aux_loss_per_sequence": ("seq_aux",),

    "z_loss": ("router_z_loss_coef",),
}  # fmt: skip
"""Config fields by their name in `sartor.model.shape`; the first one in the file counts."""
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function")
SECTIONS = ("text_config", "language_config", "llm_config", "thinker_config")
SUSPECT = re.compile(
    r"multiplier|softcap|_clip|clip_|temperature|alibi|sandwich|post_norm|residual_multi|residual_scal|jitter|scale_attn|attn_scale|"
    r"scale_depth|dim_model_base|router_scal|logit_scal|no_rope|mup_|swiglu_|norm_after|route_scale|score_function"
)
"""Fields with such names may change what is computed; they are kept under their own names."""
PLAIN = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "no_rope_layers": None,
    "no_rope_layer_interval": None,
    "offset_alibi": None,
}
"""Suspect fields with their plain value; None: the shape itself holds them."""


def _read_numerics(config: JsonMap, family: str, activation: str = "") -> Numerics:
    """The file's numerics, with those of its class where the file says nothing (and its default ``activation``)."""
    section = next((config[name] for name in SECTIONS if isinstance(config.get(name), dict)), None)
    fields: JsonMap = config if section is None else {**section}
    inner = family if section is None else str(section.get("model_type") or family)
    values: dict[str, Value] = {}
    for name, places in NAMES.items():
        value = next((_scalar(fields[place]) for place in places if fields.get(place) is not None), None)
        if value is not None:
            values[name] = value
    values |= _rope(fields)
    values |= _rope_layers(fields, inner)
    values |= _unknown(fields)
    if fields.get("do_layer_norm_before") is False:
        values["norm_order"] = "after"
    if fields.get("topk_method") == "noaux_tc":
        values["router_bias"] = True
    elif isinstance(fields.get("topk_method"), str):
        values["router_method"] = "" if fields["topk_method"] == "greedy" else fields["topk_method"]
    named = next((fields[name] for name in ACTIVATIONS if isinstance(fields.get(name), str)), "")
    return family_numerics(inner, values, str(named).lower() or activation)


def _scalar(value: object) -> Value | None:
    if isinstance(value, bool) or (isinstance(value, str) and len(value) < 60 and value.isprintable()):
        return value
    if isinstance(value, (int, float)) and math.isfinite(value) and abs(value) < 1e15:
        return float(value)
    return None


def _rope(fields: JsonMap) -> dict[str, Value]:
    """Rotary scaling, in the older form (``rope_scaling``) and the newer (``rope_parameters``)."""
    table = fields.get("rope_parameters") or fields.get("rope_scaling")
    if not isinstance(table, dict):
        return {}
    out: dict[str, Value] = {}
    if isinstance(full := table.get("full_attention"), dict):  # one table per kind of layer
        local = table.get("sliding_attention")
        theta = _scalar(local.get("rope_theta")) if isinstance(local, dict) else None
        out = {"rope_local_theta": theta} if theta else {}
        table = full
    kind = table.get("rope_type", table.get("type", ""))
    for name, value in table.items():
        names = {"rope_theta": "rope_theta", "original_max_position_embeddings": "rope_original_max_positions"}
        number = _scalar(value)
        if name not in ("type", "rope_type", "partial_rotary_factor") and number is not None:
            out[names.get(name, name if name.startswith("rope_") else f"rope_{name}")] = number
    if kind in ("default", "", None):
        return {name: value for name, value in out.items() if name in ("rope_theta", "rope_local_theta")}
    longest = _scalar(fields.get("max_position_embeddings"))
    if longest and kind in ("yarn", "llama3"):  # the classes' default
        out.setdefault("rope_original_max_positions", longest)
    return {"rope_type": str(kind), **out}


def _rope_layers(fields: JsonMap, family: str) -> dict[str, Value]:
    """Which layers rotate queries and keys (1) and which do not (0); empty if all do."""
    period = fields.get("no_rope_layer_interval", 4 if family in ("smollm3", "llama4_text") else None)
    bits, layers = fields.get("no_rope_layers"), fields.get("num_hidden_layers")
    if not bits and isinstance(period, int) and isinstance(layers, int) and period > 0 and 0 < layers <= MAX_LAYERS:
        bits = [int((k + 1) % period != 0) for k in range(layers)]
    if not isinstance(bits, list) or all(bits) or len(bits) > MAX_LAYERS:
        return {}
    return {"rope_layers": "".join("1" if bit else "0" for bit in bits)}


def _unknown(fields: JsonMap) -> dict[str, Value]:
    """Fields that may change the model but have no name here, unless they are switched off."""
    read = {place for places in NAMES.values() for place in places}
    out: dict[str, Value] = {}
    for name, value in fields.items():
        if name in read or not SUSPECT.search(name) or PLAIN.get(name, ...) is None:
            continue
        number = _scalar(value)
        if number not in (None, "", False, PLAIN.get(name, 0)) and not (number == 1 and "multipl" in name):
            out[f"config.{name}"] = str(number)
    return out
