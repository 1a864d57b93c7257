"""A Hugging Face model on the meta device, from its config: no weights, no download."""

from __future__ import annotations

import copy
import inspect
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import transformers
from transformers import AttentionInterface, AutoConfig
from transformers.models.auto import modeling_auto

from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap
from sartor.model.traced import TracedModel
from sartor.model.workload import SEQ_LEN
from sartor.read.torch_trace.own_module import said
from sartor.read.torch_trace.recorder import Recorder
from sartor.read.torch_trace.stand_ins import hugging_face_attention
from sartor.read.torch_trace.trace import Subject, trace

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

AUTO = ("CAUSAL_LM", "MASKED_LM", "SEQ_TO_SEQ_CAUSAL_LM", "IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ", "")
"""Classes to build if a config names none, in this order; the last is the bare model."""
LEFT_OUT = ("quantization_config", "compression_config", "auto_map", "transformers_version", "torch_dtype", "dtype")
WITH_LOSS = ("CausalLM", "MaskedLM", "ConditionalGeneration", "LMHeadModel", "WithLMHead", "Seq2SeqLM")
PADDED = {"roberta", "xlm-roberta", "camembert", "longformer", "mpnet", "esm", "xmod", "data2vec-text"}
"""Families with positions that start after the padding index: two fewer tokens fit."""
NAME = "sartor"


def trace_config(fields: JsonMap, *, train: bool, fused: bool = True, **words: Any) -> TracedModel:
    """Trace a config's model with our attention, which takes no mask, or, if that fails, with the model's own eager
    attention. ``words`` are those of `_hugging_face`. Raises ``InputError``."""
    subject = _hugging_face(fields, train=train, **words)
    try:
        return trace(subject, train=train, fused=fused)
    except InputError as first:
        if subject.notes:
            raise
        try:
            return trace(_hugging_face(fields, train=train, eager=True, **words), train=train, fused=fused)
        except InputError:
            raise first from None


def _hugging_face(
    fields: JsonMap,
    *,
    name: str,
    source: str,
    microbatch_size: int,
    seq_len: int | None,
    dtype: str,
    train: bool,
    architecture: str = "",
    eager: bool = False,
) -> Subject:
    """The subject for a config's fields: its published class, fed token ids (or pixels or features, if those are its
    main input). ``eager``: with the model's own attention and masks. Raises ``InputError`` if transformers cannot build
    the model."""
    transformers.logging.set_verbosity_error()
    warnings.filterwarnings("ignore")
    config = _config(fields, source)
    model, notes = _build(config, architecture, fields.get("architectures") or [], dtype, source, eager)
    longest = _longest(config)
    seq = min(seq_len or SEQ_LEN, longest)
    if seq_len is not None and seq < seq_len:
        raise InputError("seq_len", seq_len, f"is beyond the {longest} positions of {name}", str(longest))
    inputs, seq = _inputs(model, config, microbatch_size, seq, train)
    return Subject(
        name=name,
        source=source,
        model=model,
        inputs=inputs,
        microbatch_size=microbatch_size,
        seq_len=seq,
        attention=_register,
        lenient=True,
        model_type=config.model_type,
        versions=(("transformers", transformers.__version__),),
        notes=notes,
    )


def known_types() -> list[str]:
    """Model types transformers can build."""
    return sorted(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES)


def _not_yet(*_: object, **__: object) -> NoReturn:
    """Placeholder for our attention while a model is built; the recorder's replaces it before the model runs."""
    raise RuntimeError("attention ran before it was traced")


def _register(recorder: Recorder) -> None:
    AttentionInterface.register(NAME, hugging_face_attention(recorder))


def _config(fields: JsonMap, source: str) -> Any:
    numbers = {k: _numbers(v) for k, v in copy.deepcopy(dict(fields)).items() if k not in LEFT_OUT}
    model_type = numbers.pop("model_type", None)
    if model_type not in known_types():
        auto_map = fields.get("auto_map")
        must = "is not a model type of the installed transformers"
        code = (
            "; code that auto_map names is not run; give a factory of your own instead (file.py:factory)"
            if auto_map
            else ""
        )
        raise InputError(source, str(model_type), must + code)
    try:
        return AutoConfig.for_model(model_type, **numbers)
    except Exception as error:
        raise InputError(source, str(model_type), f"transformers refuses this config: {said(error)}") from error


def _numbers(value: object) -> Any:
    """Replace infinities as transformers writes them, since JSON has none (``{"__float__": "Infinity"}``)."""
    if isinstance(value, dict):
        return float(value["__float__"]) if set(value) == {"__float__"} else {k: _numbers(v) for k, v in value.items()}
    return [_numbers(item) for item in value] if isinstance(value, list) else value


def _build(
    config: Any, architecture: str, named: list[str], dtype: str, source: str, eager: bool
) -> tuple[Any, tuple[str, ...]]:
    """The model on the meta device, with our attention, or with its own eager one if it accepts no other."""
    name = architecture or next((a for a in named if hasattr(transformers, a)), "") or _auto_class(config.model_type)
    if not name or not hasattr(transformers, name):
        raise InputError("architecture", name or config.model_type, "is not a class of the installed transformers")
    AttentionInterface.register(NAME, _not_yet)
    refused: Exception | None = None
    for attention in ("eager",) if eager else (NAME, "eager"):
        _prepare(config, attention)
        try:
            with torch.device("meta"):
                model = getattr(transformers, name)._from_config(config, dtype=getattr(torch, dtype))
        except Exception as error:
            refused = refused or error
            continue
        model.eval()
        model.tie_weights()
        note = f"{name} has its own attention code: traced as separate GEMMs"
        return model, ((note,) if attention == "eager" else ())
    raise InputError(source, name, f"transformers cannot build it: {said(refused)}") from refused


def _auto_class(model_type: str) -> str:
    for word in AUTO:
        mapping = getattr(modeling_auto, f"MODEL_FOR_{word}_MAPPING_NAMES" if word else "MODEL_MAPPING_NAMES")
        class_name = mapping.get(model_type)
        if class_name:
            return str(class_name if isinstance(class_name, str) else class_name[0])
    return ""


def _prepare(config: object, attention: str) -> None:
    """Use our attention everywhere (it takes no mask), no cache, no kernels of other libraries."""
    for part in [config, *[v for v in vars(config).values() if hasattr(v, "to_diff_dict")]]:
        if not hasattr(part, "pad_token_id"):
            part.pad_token_id = None
        part._attn_implementation = attention
        part.use_cache = False
        if hasattr(part, "use_mamba_kernels"):
            part.use_mamba_kernels = False


def _longest(config: Any) -> int:
    """Number of positions of the model: rows of its table, or a large number if positions are computed."""
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "max_target_positions")
    length = next((getattr(text, n) for n in names if isinstance(getattr(text, n, None), int)), None)
    if not length or text.model_type in ("t5", "mt5", "umt5", "bloom"):
        return 2**20
    return length - 2 if text.model_type in PADDED else int(length)


def _inputs(model: Module, config: object, batch: int, seq: int, train: bool) -> tuple[JsonDict, int]:
    """Inputs of a step: ids, and labels if the class has a loss over them."""
    accepted = inspect.signature(model.forward).parameters
    main = getattr(model, "main_input_name", "input_ids")
    ids = torch.zeros(batch, seq, dtype=torch.long, device="meta")
    out: JsonDict = {}
    if main == "pixel_values" and "input_ids" not in accepted:
        out["pixel_values"] = _pixels(model, config, batch)
        return out, 1
    if main == "input_features":
        out["input_features"] = _features(model, config, batch)
    elif "input_ids" in accepted:
        out["input_ids"] = ids
    else:
        raise InputError(
            main, type(model).__name__, "is the model's main input; only text, pixels and features are made"
        )
    if "pixel_values" in accepted and "input_ids" in out and not _makes_text(model):  # both towers at once (CLIP)
        out["pixel_values"] = _pixels(model, getattr(config, "vision_config", config), batch)
    if "decoder_input_ids" in accepted:
        out["decoder_input_ids"] = ids.clone()
    if "use_cache" in accepted:
        out["use_cache"] = False
    if train and "labels" in accepted and _makes_text(model):
        out["labels"] = torch.zeros(batch, seq, dtype=torch.long, device="meta")
    return out, seq


def _makes_text(model: Module) -> bool:
    """Whether the class has a loss over tokens, so that text alone suffices."""
    return any(word in type(model).__name__ for word in WITH_LOSS)


def _pixels(model: Module, config: object, batch: int) -> Tensor:
    size = getattr(config, "image_size", 224)
    height, width = size if isinstance(size, (list, tuple)) else (size, size)
    return torch.zeros(batch, getattr(config, "num_channels", 3), height, width, dtype=model.dtype, device="meta")


def _features(model: Module, config: object, batch: int) -> Tensor:
    bins = getattr(config, "num_mel_bins", 80)
    frames = 2 * getattr(config, "max_source_positions", 1500)
    return torch.zeros(batch, bins, frames, dtype=model.dtype, device="meta")
