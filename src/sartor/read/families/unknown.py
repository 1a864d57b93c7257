"""An unknown model type: read by its field names, with every guess recorded and the interval widened.

The rules follow the usual names in published decoder configs: an RMS-norm epsilon means RMS norms, a SiLU-like
activation a gated feed-forward part, ``kv_lora_rank`` latent attention, a number of experts a mixture. Everything else
is a guess, and listed as one.
"""

from __future__ import annotations

import difflib
from dataclasses import replace

from sartor.model.layer import Norm
from sartor.model.shape import TransformerShape
from sartor.read.families import model_types, parts, read_part
from sartor.read.families.decoder import EXPERT_INPUT, Choice, Experts, Family, QkNorm, read_decoder
from sartor.read.families.parts import (
    Reach,
    Sparse,
    all_sparse,
    dense_first,
    everywhere,
    sparse_steps,
    window_everywhere,
    window_pattern,
)
from sartor.read.fields import Fields, family_rows
from sartor.read.verified import refuse_unread

WIDENED = 1.5
"""Factor on the interval of a model of an unknown class: biases, norms and gates are guesses, which changes parameters
by a percent or two, and the feed-forward part by half if the gate is guessed wrong."""
BY_CLASS = 1.2
"""The same if the class is known but the model type is not: a fork that may differ in details."""

NUM_EXPERTS = (
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "moe_num_experts",
    "num_moe_experts",
    "n_experts",
)
TOP_K = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_top_k", "moe_topk", "top_k_experts")
TOP_K_MORE = (*TOP_K, "moe_k", "top_k", "topk", "num_selected_experts")
EXPERT_WIDTH = ("moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size", "expert_intermediate_size")
SHARED_WIDTH = ("shared_expert_intermediate_size", "shared_intermediate_size", "moe_shared_expert_intermediate_size")
SHARED_COUNT = ("n_shared_experts", "num_shared_experts", "num_shared_expert", "moe_num_shared_experts")
NESTED = ("text_config", "llm_config", "language_config", "language_model", "decoder", "thinker_config")
ACTIVATIONS = ("hidden_act", "hidden_activation", "activation_function", "activation", "activation_type", "act_fn")
GATED = ("silu", "swish", "swiglu", "geglu", "glu", "reglu")
RMS_FIELDS = ("rms_norm_eps", "rms_norm", "rmsnorm", "rms_eps")
LAYER_NORM_FIELDS = ("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_epsilon", "layernorm_eps")
ROTARY_FIELDS = ("rope_theta", "rope_scaling", "rope_parameters", "rotary_dim", "rotary_pct", "rotary_emb_base")
NOT_A_DECODER = {
    "d_state": "a state-space mixer",
    "ssm_state_size": "a state-space mixer",
    "state_size": "a state-space mixer",
    "mamba_d_state": "a state-space mixer",
    "time_mix_extra_dim": "a recurrent mixer",
    "num_mel_bins": "an audio encoder",
    "linear_attn_config": "a linear-attention mixer",
    "encoder_layers": "an encoder beside the decoder",
    "num_decoder_layers": "an encoder beside the decoder",
}


def read_unknown(f: Fields) -> TransformerShape:
    """The shape that the field names suggest. Raises `InputError` if they are not enough, or say of experts or mixers
    what the shape does not have."""
    shape = _suggested(f)
    if f.model_type:
        refuse_unread(f)
    return shape


def _suggested(f: Fields) -> TransformerShape:
    inner = next((f.nested(name) for name in NESTED if isinstance(f.given(name), dict)), None)
    if inner is not None:
        return _nested(f, inner)
    f = _with_own_head(f)
    nearest = _nearest(f)
    if nearest:
        f.ledger.guess(f"model_type {_said(f)} is unknown: read as {nearest.model_type}, whose fields it has", BY_CLASS)
        return read_part(nearest)
    twin = _class_type(f)
    if twin:
        sentence = f"model_type is {_said(f)}: read as {twin}, the model type of class {f.architecture}"
        if f.model_type:
            f.ledger.guess(sentence, BY_CLASS)
        else:
            f.ledger.assume(sentence)
        return read_part(_as(f, twin))
    for name, what in NOT_A_DECODER.items():
        if f.has(name):
            must = f"is {what}; model_type {_said(f)} is unknown, and field names do not determine its structure"
            raise f.refuse(name, f.given(name, f.defaults.values.get(name)), must)
    f.ledger.guess(f"model_type {_said(f)} is unknown: read by its field names as a decoder", WIDENED)
    return read_decoder(f, _guess_family(f))


def _guess_family(f: Fields) -> Family:
    """The properties of an unknown decoder class, with each guess recorded in the ledger."""
    rms = _guess_rms(f)
    gated = _guess_gated(f, rms)
    bias = _bias_fields(f, rms)
    norm: Norm = parts.rms() if rms else parts.layer_norm()
    parallel = next((n for n in ("use_parallel_residual", "parallel_attn", "parallel_attention") if f.has(n)), "")
    learned = not rms and not f.has(*ROTARY_FIELDS) and not f.flag("alibi", default=False)
    if learned and f.has(*parts.POSITIONS):
        f.ledger.guess("positions: a learned table, as there are layer norms and no rotary field")
    return Family(
        norm=norm,
        q_bias=bias[0],
        out_bias=bias[1],
        mlp_bias=bias[2],
        gated=gated,
        parallel=parallel or False,
        latent=f.has("kv_lora_rank"),
        qk_norm=QkNorm.HEAD,
        qk_norm_if=next((n for n in ("use_qk_norm", "qk_layernorm", "qk_norm") if f.has(n)), False),
        activation=ACTIVATIONS,
        ffn_factor=0 if rms else 4,
        spans=_guess_spans,
        experts=_guess_experts(f) if f.has(*NUM_EXPERTS) else None,
        positions=(lambda g: g.size(*parts.POSITIONS)) if learned and f.has(*parts.POSITIONS) else None,
        rotary=0 if learned else 1.0,
        tied=_guess_tied(f, rms),
    )


def _said(f: Fields) -> str:
    """The model type as a sentence names it, with one that is spelled almost like it."""
    near = difflib.get_close_matches(f.model_type.lower()[:60], family_rows(), 1, 0.8)
    return f"{f.model_type} (did you mean {near[0]}?)" if near else f.model_type or "missing"


def _as(f: Fields, model_type: str) -> Fields:
    return Fields(f.raw, model_type, f.path, f.ledger, f.architecture)


def _with_own_head(f: Fields) -> Fields:
    """Treat a bare class as a language model if its repository has one for it: the weights then include the head."""
    auto_map = f.given("auto_map")
    if not (isinstance(auto_map, dict) and "AutoModelForCausalLM" in auto_map and f.architecture.endswith("Model")):
        return f
    if f.architecture.endswith("LMHeadModel"):
        return f
    f.ledger.guess("output head: there is one, as auto_map names a class for AutoModelForCausalLM")
    return replace(f, architecture="AutoModelForCausalLM")


def _nearest(f: Fields) -> Fields | None:
    """The fields converted to a published model type with the same layers, if there is one.

    A mixture over latent attention is DeepSeek's: V3 if a bias balances the experts (``noaux_tc``), else V2. The first
    Qwen has Qwen2's layers, with an ``intermediate_size`` that counts gate and up together (modeling_qwen.py).
    """
    if f.has("linear_attn_config"):
        return None
    if all(f.has(name) for name in ("kv_lora_rank", "n_routed_experts", "first_k_dense_replace")):
        return _as(f, "deepseek_v3" if f.given("topk_method") == "noaux_tc" else "deepseek_v2")
    if f.model_type == "qwen":
        both = f.essential(*parts.FFN)
        sizes = {"intermediate_size": both // 2, "num_key_value_heads": f.size(*parts.HEADS)}
        return _as(replace(f, raw={**f.raw, **sizes}), "qwen2")
    return None


def _class_type(f: Fields) -> str:
    """The model type in the class's name: ``LlamaForCausalLM`` -> ``llama``."""
    if f.path:  # the file names the class of the whole model, not of this part
        return ""
    for suffix in ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "ForMaskedLM", "Model"):
        if f.architecture.endswith(suffix):
            stem = f.architecture.removesuffix(suffix).lower()
            return next((t for t in sorted(model_types()) if t.replace("_", "").replace("-", "") == stem), "")
    return ""


def _nested(f: Fields, inner: Fields) -> TransformerShape:
    """The text part of a composite model; the rest is not counted, which is recorded."""
    name = inner.path.removesuffix(".")
    readable = inner.model_type in model_types()
    sentence = f"model_type {_said(f)} is unknown: only its {name} is read, what surrounds it is not counted"
    f.ledger.guess(sentence, 1.0 if readable else WIDENED)
    f.ledger.factor = max(f.ledger.factor, 1.2)
    f.ledger.asked.setdefault(f.path, set()).update(k for k in inner.raw if f.raw.get(k) == inner.raw[k])  # said twice
    classes = inner.raw.get("architectures")
    if not inner.model_type and isinstance(classes, list) and classes:
        inner = replace(inner, path="", architecture=str(classes[0]))
        return read_part(replace(inner, path=f"{name}.", model_type=_class_type(inner)))
    return read_part(inner)


def _guess_rms(f: Fields) -> bool:
    for name in ("rmsnorm", "rms_norm"):
        if isinstance(f.given(name), bool):
            return f.flag(name)
    rms, layer = f.has(*RMS_FIELDS), f.has(*LAYER_NORM_FIELDS)
    if rms != layer:
        f.ledger.guess(f"norms: {'RMS norms' if rms else 'layer norms with bias'}, by the name of their epsilon")
        return rms
    f.ledger.guess("norms: RMS norms, as no field says")
    return True


def _guess_gated(f: Fields, rms: bool) -> bool:
    activation = next((f.raw[n] for n in ACTIVATIONS if isinstance(f.given(n), str)), "")
    plain = activation and not (rms and activation.startswith("gelu"))  # RMS norms came with gates: Gemma, Spark
    gated = any(word in activation.lower() for word in GATED) if plain else rms
    why = f"by its activation {activation[:30]!r}" if plain else "by its norms"
    f.ledger.guess(f"feed-forward part: {'gated (three matrices)' if gated else 'plain (two matrices)'}, {why}")
    return gated


def _bias_fields(f: Fields, rms: bool) -> tuple[Choice, Choice, Choice]:
    """Biases of query/key/value, output and feed-forward part."""
    name = next((n for n in ("use_bias", "bias", "add_bias_linear", "no_bias") if isinstance(f.given(n), bool)), "")
    everywhere_: Choice = f"!{name}" if name == "no_bias" else name or not rms
    qkv_names = ("attention_bias", "qkv_bias", "use_qkv_bias", "add_qkv_bias")
    qkv = next((n for n in qkv_names if isinstance(f.given(n), bool)), "")
    out: Choice = qkv if qkv == "attention_bias" else everywhere_
    mlp: Choice = "mlp_bias" if isinstance(f.given("mlp_bias"), bool) else everywhere_
    if not name and not qkv:
        f.ledger.guess(f"biases: {'none' if rms else 'on every linear layer'}, as no field says")
    return qkv or everywhere_, out, mlp


def _guess_spans(f: Fields, layers: int) -> list[Reach]:
    types = f.words("layer_types", length=layers)
    if types is not None and any("attention" not in t for t in types):
        kind = next(t for t in types if "attention" not in t)
        raise f.refuse("layer_types", kind, f"cannot be built without knowing model_type {_said(f)}")
    if types is not None:
        window = f.optional_size("sliding_window", least=0) or 0
        return [Reach(window) if "sliding" in t or "local" in t else Reach() for t in types]
    if f.has("sliding_window_pattern"):
        return window_pattern(1)(f, layers)
    used = f.flag("use_sliding_window", default=True)
    if used and f.has("sliding_window"):
        f.ledger.assume("windows of sliding_window in every layer, as no field says")
    return window_everywhere(f, layers) if used else everywhere(f, layers)


def _guess_experts(f: Fields) -> Experts | None:
    if f.optional_size(*NUM_EXPERTS, least=0) in (None, 0, 1):
        return None
    sparse: Sparse = all_sparse
    rule = "in every layer, as no field says"
    if f.has("first_k_dense_replace"):
        sparse, rule = dense_first(), "after the first first_k_dense_replace layers"
    elif f.has("num_dense_layers"):
        sparse, rule = dense_first("num_dense_layers"), "after the first num_dense_layers layers"
    elif f.has("decoder_sparse_step", "mlp_only_layers"):
        sparse, rule = sparse_steps, "by decoder_sparse_step and mlp_only_layers"
    f.ledger.guess(f"experts: {rule}")
    return Experts(
        sparse=sparse,
        num=NUM_EXPERTS,
        top_k=TOP_K_MORE,
        width=(*EXPERT_WIDTH, *parts.FFN),
        shared_width=tuple(n for n in SHARED_WIDTH if f.has(n)),
        shared_count=tuple(n for n in SHARED_COUNT if f.has(n)),
        latent=tuple(n for n in EXPERT_INPUT if f.has(n)),
    )


def _guess_tied(f: Fields, rms: bool) -> Choice:
    if isinstance(f.given("tie_word_embeddings"), bool):
        return "tie_word_embeddings"
    f.ledger.guess(f"output head: {'its own matrix' if rms else 'tied to the token table'}, as no field says")
    return not rms
