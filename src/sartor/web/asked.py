"""From a request's fields to the words of the journeys. Nothing a request says is ever used as a path."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.hardware.gpu import Gpu
from sartor.interop.config_text import parse_config
from sartor.interop.huggingface import read_model
from sartor.model.reading import ModelReading
from sartor.model.zoo import load_model

WORDS = (
    "phase",
    "seq_len",
    "microbatch_size",
    "context_len",
    "tp",
    "pp",
    "ep",
    "dtype",
    "attention",
    "set",
)
"""Fields handed to ``api.ask`` as they are."""


def body_of(data: bytes) -> dict[str, Any]:
    """The JSON object of a request: bounded in depth, no key twice, no NaN. Raises ``InputError``."""
    return parse_config(data, name="request")


def model_of(body: Mapping[str, Any]) -> ModelReading:
    """The model of ``model`` (a zoo name) or ``config`` (an object, or its text). Raises ``InputError``."""
    name, config = body.get("model"), body.get("config")
    if name is not None and config is not None:
        raise InputError("model", name, "is given beside config; must be one of the two")
    if config is not None:
        return _uploaded(config, body.get("name") or "")
    if name is None:
        raise InputError("model", "not given", "must be a zoo name (or give config)", "llama-3.1-8b")
    return ModelReading(
        shape=load_model(plain_name("model", name)), notes=(f"from the zoo: sartor catalog models {name}",)
    )


def _uploaded(config: Any, name: str) -> ModelReading:
    if isinstance(config, dict):
        return read_model(config, name=name)
    try:
        data = config.encode()
    except UnicodeEncodeError:
        raise InputError("config", "text", "must be text in UTF-8") from None
    return read_model(parse_config(data), name=name)


def gpu_of(name: Any) -> Gpu:
    """The device of a catalogue name. Raises ``InputError``."""
    return load_gpu(plain_name("gpu", name))


def plain_name(field: str, name: Any) -> str:
    """A catalogue name: anything that reads as a path is refused, since over HTTP no file is looked at."""
    if not isinstance(name, str):
        raise InputError(field, name, "must be a word")
    if "/" in name or "\\" in name or name.endswith((".toml", ".json")) or "\x00" in name or len(name) > 200:
        raise InputError(field, name, "must be a name of the catalogue; over HTTP no file is read by its path")
    return name


def question_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """Keyword arguments of ``api.ask``."""
    return {word: body[word] for word in WORDS if word in body}


def names_of(field: str, values: Sequence[Any] | None) -> tuple[str, ...]:
    """A list of words as a tuple; none where it is not given."""
    return tuple(str(value) for value in values or ())
