"""From a name to a traced model: a Hugging Face config, a zoo model, a model type, or the user's own factory.

Only this needs the extra ``torch``, which is imported when a trace is requested.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sartor.errors import InputError, MissingExtraError
from sartor.json_types import JsonMap
from sartor.model.traced import TracedModel
from sartor.model.zoo import load_model
from sartor.read.config_text import fetch_config, read_config
from sartor.read.zoo_config import zoo_config

DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "fp64": "float64"}
PHASES = ("train", "prefill")


def extract(
    model: str | Path,
    *,
    inputs: Sequence[str] = (),
    phase: str = "train",
    seq_len: int | None = None,
    microbatch_size: int | None = None,
    dtype: str | None = None,
    eager: bool = False,
    architecture: str = "",
    batch_axis: int = 0,
) -> TracedModel:
    """Trace a model on tensors without memory: forward and, for ``phase`` train, backward.

    ``model`` is ``package.module:factory`` (or ``file.py:factory``), a config.json or its folder, a zoo name, a model
    type of transformers, or ``org/name``. ``inputs`` are those of a factory's module, each ``name=8x1024:float32``.
    Hugging Face models are fed ``microbatch_size`` sequences (1) of ``seq_len`` tokens (4096, or their longest) in
    ``dtype`` (bf16); a factory's module keeps its own dtype unless one is given. ``eager``: every memory-bound operator
    is a separate kernel. ``batch_axis``: 1 if a factory's first input is [tokens, sequences, ...]. Raises
    ``InputError`` (also if torch is not installed).
    """
    if phase not in PHASES:
        raise InputError("phase", phase, "must be train (forward and backward) or prefill (forward)", "train")
    if dtype is not None and dtype not in DTYPES:
        raise InputError("dtype", dtype, f"must be one of {', '.join(DTYPES)}", "bf16")
    if batch_axis not in (0, 1):
        raise InputError("batch_axis", batch_axis, "must be 0 (sequences first) or 1 (tokens first)", "1")
    for name, value in (("seq_len", seq_len), ("microbatch_size", microbatch_size)):
        if value is not None and value < 1:
            raise InputError(name, value, "must be at least 1", "1")
    text = str(model)
    is_factory = _is_factory(text)
    _needs_torch("extract", transformers=not is_factory)
    word = None if dtype is None else DTYPES[dtype]
    train, fused = phase == "train", not eager
    if is_factory:
        from sartor.read.torch_trace.own_module import own_module
        from sartor.read.torch_trace.trace import trace

        _only_for_configs({"seq_len": seq_len, "microbatch_size": microbatch_size, "architecture": architecture})
        return trace(own_module(text, inputs, dtype=word, batch_axis=batch_axis), train=train, fused=fused)
    from sartor.read.torch_trace.hugging_face import trace_config

    if inputs:
        must = "is for modules of a factory; a Hugging Face model takes --seq-len and --microbatch-size"
        raise InputError("input", inputs[0], must)
    if batch_axis:
        raise InputError(
            "batch_axis", batch_axis, "is for modules of a factory; Hugging Face models have it first", "0"
        )
    fields, name = _hugging_face_fields(text)
    return trace_config(
        fields,
        train=train,
        fused=fused,
        name=name,
        source=text,
        microbatch_size=microbatch_size or 1,
        seq_len=seq_len,
        dtype=word or "bfloat16",
        architecture=architecture,
    )


def _needs_torch(feature: str, *, transformers: bool = False) -> None:
    """Raise ``MissingExtraError``, with the command that installs what is missing."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", *(("transformers",) if transformers else ())) if find_spec(name) is None]
    if missing:
        raise MissingExtraError(f"{feature} ({' and '.join(missing)})", "torch")


def _hugging_face_fields(text: str) -> tuple[JsonMap, str]:
    """The config of a path, a hub id, a zoo model or a model type, and the model's display name."""
    path = Path(text)
    if text.endswith((".json", "/", "\\")) or path.exists():
        fields = read_config(path)
        stem = path.absolute().parent.name if path.name == "config.json" else path.absolute().name
        name = str(fields.get("_name_or_path") or stem.removesuffix(".json"))
    elif text.count("/") == 1:
        fields, name = read_config(Path(fetch_config(text))), text.rpartition("/")[2]
    else:
        return _by_name(text)
    if not isinstance(fields.get("model_type"), str):
        raise InputError("model_type", fields.get("model_type", "missing"), "must name a model type of transformers")
    return fields, name


def _by_name(text: str) -> tuple[JsonMap, str]:
    """A zoo model's config, or a model type's default config."""
    from sartor.read.torch_trace.hugging_face import known_types

    try:
        shape = load_model(text)
        return zoo_config(shape, text), shape.name
    except InputError as error:
        if text in known_types():
            return {"model_type": text}, text
        must = f"{error.must}; package.module:factory and a model type of transformers work too"
        raise InputError("model", text, must, error.nearest) from None


def _is_factory(text: str) -> bool:
    """Whether ``text`` is ``package.module:factory`` or ``file.py:factory``; an existing path is a path."""
    where, colon, name = text.rpartition(":")
    return bool(colon and where) and all(part.isidentifier() for part in name.split(".")) and not Path(text).exists()


def _only_for_configs(words: JsonMap) -> None:
    for flag, value in words.items():
        if value not in (None, ""):
            must = "is for Hugging Face models; give a factory's sizes with --input name=2x2048:int64"
            raise InputError(flag, value, must)
