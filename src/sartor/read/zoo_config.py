"""Write the config.json of a zoo model: its sizes under the keys of a published class, read back to check them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.counts import count_params
from sartor.model.editing import CONFIG_KEYS
from sartor.model.layer import LatentAttentionMixer, MoeFfn
from sartor.model.shape import TransformerShape
from sartor.model.zoo import model_entry
from sartor.read.huggingface import read_model


def zoo_config(shape: TransformerShape, name: str) -> JsonDict:
    """A config.json for a zoo model or a change of it, of the first published class that matches it exactly, its own
    family's before others.

    All sizes and the parameter count are compared, so a class with one more bias or norm does not match. Raises
    ``InputError`` if none matches, or for an unknown name.
    """
    family = model_entry(name)["family"]
    for published in sorted(CLASSES, key=lambda published: published.model_type != family):
        config = {
            "model_type": published.model_type,
            "architectures": [published.architecture],
            **_sizes(shape, published),
        }
        if _same_model(config, shape):
            return config
    must = "no config.json can be written for this model; load its own config.json to change it"
    raise InputError("model", name, must, ", ".join(dict.fromkeys(published.model_type for published in CLASSES)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _PublishedClass:
    """A class of the transformers library: its unusual keys, and its fields besides sizes."""

    model_type: str
    architecture: str
    keys: Mapping[str, str]
    more: Callable[[TransformerShape], JsonDict]


def _sizes(shape: TransformerShape, published: _PublishedClass) -> JsonDict:
    """The sizes of a shape under the keys of a class."""
    fields = {field: int(value) for field, value in shape.fields().items()}
    experts = "num_experts" in fields
    width = fields.get("ffn_hidden_size", 0) or fields.get("expert_ffn_hidden_size", 0)
    values: JsonDict = {
        "hidden_size": fields["hidden_size"],
        "num_hidden_layers": fields["num_layers"],
        "num_attention_heads": fields.get("num_heads", 0),
        "num_key_value_heads": fields.get("num_kv_heads", 0),
        "intermediate_size": fields["expert_ffn_hidden_size"]
        if published.model_type == "mixtral" and experts
        else width,
        "vocab_size": fields["vocab_size"],
        "max_position_embeddings": shape.max_positions or 4096,
        "tie_word_embeddings": shape.tied_embeddings,
    }
    if not published.keys and fields.get("num_heads", 0) * fields.get("head_dim", 0) != fields["hidden_size"]:
        values["head_dim"] = fields.get("head_dim", 0)
    if experts:
        values |= {
            "num_local_experts": fields["num_experts"],
            "num_experts": fields["num_experts"],
            "num_experts_per_tok": fields["experts_per_token"],
            "moe_intermediate_size": fields["expert_ffn_hidden_size"],
        }
    return {published.keys.get(key, key): value for key, value in values.items()} | published.more(shape)


def _latent(shape: TransformerShape) -> JsonDict:
    """Ranks and head dimensions of latent attention, and its shared and routed experts."""
    mixer, experts = shape.attention, shape.moe_ffn
    if not isinstance(mixer, LatentAttentionMixer) or not isinstance(experts, MoeFfn):
        return {}
    ranks = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    shared = experts.shared.ffn_hidden_size // experts.expert.ffn_hidden_size if experts.shared else 0
    dense = sum(int(run.count) for run in shape.main.runs if not isinstance(run.layer.ffn, MoeFfn))
    groups = {"n_group": 1, "topk_group": 1} if int(experts.num_experts) % 8 else {}
    chosen = {"index_topk": "keys", "index_n_heads": "heads", "index_head_dim": "head_dim"} if mixer.selection else {}
    return {
        **{name: int(getattr(mixer, name)) or None for name in ranks},
        **groups,
        **{key: getattr(mixer.selection, name) for key, name in chosen.items()},
        "head_dim": int(mixer.qk_rope_head_dim),
        "n_routed_experts": int(experts.num_experts),
        "n_shared_experts": int(shared) or None,
        "first_k_dense_replace": dense,
        "moe_layer_freq": 1,
    }


def _window(shape: TransformerShape) -> JsonDict:
    """One sliding window of every layer, or none."""
    return {"sliding_window": max(_spans(shape).values(), default=0) or None}


def _windows(shape: TransformerShape) -> JsonDict:
    """Sliding windows: the kind of every layer."""
    spans = _spans(shape)
    return {
        "head_dim": int(shape.head_dim),
        "sliding_window": max(spans.values(), default=0) or None,
        "layer_types": kinds_of(shape),
    }


def _spans(shape: TransformerShape) -> dict[int, int]:
    """The window of every layer. If a changed number of layers invalidates the positions, layers without a window are
    spread evenly."""
    windows = [
        max((int(getattr(mixer, "window", 0)) for mixer in run.layer.mixers), default=0) for run in shape.main.runs
    ]
    positions = [i for run in shape.main.runs for i in run.positions]
    layers = sum(int(run.count) for run in shape.main.runs)
    if sorted(positions) == list(range(layers)):
        return {i: window for run, window in zip(shape.main.runs, windows, strict=True) for i in run.positions}
    full = sum(int(run.count) for run, window in zip(shape.main.runs, windows, strict=True) if not window)
    return {i: 0 if (i + 1) * full // layers > i * full // layers else max(windows) for i in range(layers)}


def kinds_of(shape: TransformerShape) -> list[str]:
    """``layer_types``: the kind of attention of every layer."""
    spans = _spans(shape)
    return ["sliding_attention" if spans.get(i) else "full_attention" for i in range(int(shape.num_layers))]


def _llama4(shape: TransformerShape) -> JsonDict:
    """Chunked attention except in layers without positions, and experts in every layer or in every few."""
    spans, experts, dense = _spans(shape), shape.moe_ffn, shape.dense_ffn
    if not isinstance(experts, MoeFfn) or not spans:
        return {}
    runs = [run for run in shape.main.runs if any(isinstance(ffn, MoeFfn) for ffn in run.layer.all_ffns)]
    return {
        "head_dim": int(shape.head_dim),
        "intermediate_size": int(experts.expert.ffn_hidden_size),
        "intermediate_size_mlp": int(dense.ffn_hidden_size if dense else 2 * experts.expert.ffn_hidden_size),
        "interleave_moe_layer_step": int(shape.num_layers) // sum(int(run.count) for run in runs),
        "attention_chunk_size": max(spans.values()),
        "no_rope_layers": [int(spans.get(i, 0) > 0) for i in range(int(shape.num_layers))],
    }


def _neo(shape: TransformerShape) -> JsonDict:
    pairs = [[["global", "local"], int(shape.num_layers) // 2]]
    return {"attention_types": pairs, "window_size": max(_spans(shape).values(), default=0)}


def _falcon(shape: TransformerShape) -> JsonDict:
    multi_query = int(shape.num_kv_heads) == 1
    return {
        "new_decoder_architecture": not multi_query,
        "multi_query": multi_query,
        "parallel_attn": True,
        "bias": False,
    }


def _t5(shape: TransformerShape) -> JsonDict:
    fields = shape.fields()
    gated = any(getattr(part, "gated", False) for run in shape.main.runs for part in run.layer.all_ffns)
    return {
        "num_decoder_layers": int(fields["num_layers"]),
        "d_kv": int(fields["head_dim"]),
        "feed_forward_proj": "gated-gelu" if gated else "relu",
    }


def _opt(shape: TransformerShape) -> JsonDict:
    width = shape.embedding_size
    return {
        "word_embed_proj_dim": int(shape.hidden_size if width is None else width),
        "do_layer_norm_before": width is None,
    }


NEO_KEYS = {"num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}
T5_KEYS = {**NEO_KEYS, "hidden_size": "d_model", "intermediate_size": "d_ff", "max_position_embeddings": "n_positions"}
GPT2_KEYS = {
    "hidden_size": "n_embd",
    "num_hidden_layers": "n_layer",
    "num_attention_heads": "n_head",
    "intermediate_size": "n_inner",
    "max_position_embeddings": "n_positions",
}
FALCON_KEYS = {"num_key_value_heads": "num_kv_heads", "intermediate_size": "ffn_hidden_size"}


def _class(
    model_type: str,
    architecture: str,
    keys: Mapping[str, str] | None = None,
    more: Callable[[TransformerShape], JsonDict] = lambda shape: {},
) -> _PublishedClass:
    return _PublishedClass(model_type=model_type, architecture=architecture, more=more, keys=keys or {})


CLASSES = (
    _class("llama", "LlamaForCausalLM"),
    _class("mistral", "MistralForCausalLM", more=_window),
    _class("qwen2", "Qwen2ForCausalLM"),
    _class("qwen3", "Qwen3ForCausalLM"),
    _class("gpt_neox", "GPTNeoXForCausalLM"),
    _class("gpt2", "GPT2LMHeadModel", GPT2_KEYS),
    _class("opt", "OPTForCausalLM", {"intermediate_size": "ffn_dim"}, _opt),
    _class("phi", "PhiForCausalLM"),
    _class("phi3", "Phi3ForCausalLM", more=_window),
    _class("gemma", "GemmaForCausalLM"),
    _class("gemma2", "Gemma2ForCausalLM", more=_windows),
    _class("olmo", "OlmoForCausalLM"),
    _class("olmo2", "Olmo2ForCausalLM"),
    _class("mixtral", "MixtralForCausalLM"),
    _class("qwen3_moe", "Qwen3MoeForCausalLM"),
    _class("bert", "BertModel", more=lambda shape: {"type_vocab_size": 2}),
    _class("bloom", "BloomForCausalLM", {"num_hidden_layers": "n_layer", "num_attention_heads": "n_head"}),
    _class("deepseek_v2", "DeepseekV2ForCausalLM", more=_latent),
    _class("deepseek_v3", "DeepseekV3ForCausalLM", more=_latent),
    _class("glm_moe_dsa", "GlmMoeDsaForCausalLM", more=_latent),
    _class("falcon", "FalconForCausalLM", FALCON_KEYS, _falcon),
    _class("gemma3_text", "Gemma3ForCausalLM", more=_windows),
    _class("gpt_neo", "GPTNeoForCausalLM", NEO_KEYS, _neo),
    _class("gpt_oss", "GptOssForCausalLM", more=_windows),
    _class("llama4_text", "Llama4ForCausalLM", more=_llama4),
    _class("gptj", "GPTJForCausalLM", GPT2_KEYS, lambda shape: {"rotary_dim": 64}),
    _class("t5", "T5ForConditionalGeneration", T5_KEYS, _t5),
)
"""Classes whose config.json can be written for a zoo model, simplest first."""


def _same_model(config: JsonMap, shape: TransformerShape) -> bool:
    """Whether the file has the model's sizes, windows and parameter count."""
    try:
        reading = read_model(dict(config))
    except InputError:
        return False
    same_size: bool = reading.num_params == count_params(shape).total
    return same_size and dict(reading.shape.fields()) == dict(shape.fields()) and _spans(reading.shape) == _spans(shape)


# -- a file with changed sizes ------------------------------------------------------------------------------------

TWINS = {
    "num_layers": ("num_hidden_layers", "num_layers", "num_decoder_layers", "encoder_layers", "decoder_layers"),
    "ffn_hidden_size": ("encoder_ffn_dim", "decoder_ffn_dim"),
    "num_heads": ("encoder_attention_heads", "decoder_attention_heads"),
}
"""Keys that repeat a size in files of an encoder and a decoder."""
INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Sections with the text model's sizes in files that also have towers."""


def config_with(
    config: JsonMap | None, name: str, original: TransformerShape, edited: TransformerShape, changes: JsonMap
) -> JsonDict:
    """A file's ``config`` with ``changes`` of its shape under its own keys, read back to check them; without a file
    that of the zoo model ``name``. Raises ``InputError`` if no such file exists."""
    if config is None:
        return _of_zoo(original, edited, name, changes)
    return _changed(config, original, edited) if changes else dict(config)


def _of_zoo(original: TransformerShape, edited: TransformerShape, name: str, changes: JsonMap) -> JsonDict:
    """The file of a zoo model with changes. Raises ``InputError``; if the unchanged model has a file, at the change."""
    try:
        return zoo_config(edited, name)
    except InputError:
        if not changes:
            raise
    zoo_config(original, name)
    field = next(iter(changes))
    must = (
        "has no config.json: with it, no published class holds all sizes of this model; leave it, or change others too"
    )
    raise InputError(field, changes[field], must, str(int(original.fields()[field])))


def _changed(config: JsonMap, old: TransformerShape, new: TransformerShape) -> JsonDict:
    """The file with every changed size; read back and compared."""
    out = copy.deepcopy(dict(config))
    section = next((out[name] for name in INNER if isinstance(out.get(name), dict)), out)
    before, after = old.fields(), new.fields()
    changed = [field for field in after if before[field] != after[field]]
    for field in changed:
        _write(section, field, int(after[field]))
    for field in changed:  # keys that the file omits are added only if necessary
        for way in (_scale, _twin, _name):
            if not _reads_as(out, {field: after[field]}):
                way(out, section, field, int(before[field]), int(after[field]))
    if changed and not _reads_as(out, after) and "num_full_layers" in after:
        section["layer_types"] = kinds_of(new)
    if not _reads_as(out, after):
        must = "cannot be written to this file in a way that reads back correctly; edit the file by hand"
        raise InputError(changed[0], int(after[changed[0]]), must)
    return out


def _write(section: JsonDict, field: str, value: int) -> None:
    """The value under the file's key for the field, if it has one."""
    for key in CONFIG_KEYS.get(field, ()):
        if isinstance(section.get(key), int) and _is_own(field, key):
            section[key] = value
            return


def _scale(out: JsonMap, section: JsonDict, field: str, old: int, value: int) -> None:
    """Handle a key with a multiple of the size: Qwen's first feed-forward width covers both projections."""
    for key in CONFIG_KEYS.get(field, ()):
        if (
            section.get(key) == value
            and _is_own(field, key)
            and (read := int(_fields(out).get(field, 0)))
            and value % read == 0
        ):
            section[key] = value * (value // read)
            return


def _twin(out: JsonMap, section: JsonDict, field: str, old: int, value: int) -> None:
    """Write the same size for encoder and decoder."""
    for key in TWINS.get(field, ()):
        if section.get(key) == old:
            section[key] = value


def _name(out: JsonMap, section: JsonDict, field: str, old: int, value: int) -> None:
    """Write the value under the first of the field's keys that the file's class reads."""
    for key in CONFIG_KEYS[field]:
        current = section.get(key)
        if current is not None or not _is_own(field, key):
            continue
        was_there = key in section
        section[key] = value
        if _reads_as(out, {field: value}):
            return
        if was_there:
            section[key] = current
        else:
            del section[key]


def _is_own(field: str, key: str) -> bool:
    """Whether a key is the field itself, not one that it is derived from."""
    follows = {"head_dim": ("num_attention_heads", "n_head", "n_heads"), "ffn_hidden_size": ("hidden_size", "n_embd")}
    return key not in follows.get(field, ()) and key != "multi_query"


def _reads_as(config: JsonMap, fields: JsonMap) -> bool:
    """Whether the file is read with these sizes."""
    read_back = _fields(config)
    return all(read_back.get(field) == value for field, value in fields.items())


def _fields(config: JsonMap) -> JsonMap:
    """The sizes read from the file; empty if it cannot be read."""
    try:
        return read_model(copy.deepcopy(dict(config))).shape.fields()
    except InputError:
        return {}
