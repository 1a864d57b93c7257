"""Convert a request's fields to API arguments. No field of a request is ever used as a path."""

from __future__ import annotations

from collections.abc import Sequence

from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import load_cluster
from sartor.hardware.device import load_device
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.model.reading import ModelReading
from sartor.model.zoo import load_model
from sartor.read.config_text import parse_config
from sartor.read.huggingface import read_model
from sartor.run.fields import RunOptions
from sartor.web.uploads import own_cluster, own_gpu, plain_name


def body_of(data: bytes) -> JsonDict:
    """The JSON object of a request: bounded depth, no duplicate keys, no NaN. Raises ``InputError``."""
    return parse_config(data, name="request")


def model_of(body: JsonMap) -> ModelReading:
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


def _uploaded(config: object, name: str) -> ModelReading:
    if isinstance(config, dict):
        return read_model(config, name=name)
    try:
        data = str(config).encode()
    except UnicodeEncodeError:
        raise InputError("config", "text", "must be text in UTF-8") from None
    return read_model(parse_config(data), name=name)


def gpu_of(name: object) -> Gpu:
    """The GPU or accelerator of a catalogue name. Raises ``InputError``."""
    return load_device(plain_name("gpu", name))


def device_of(body: JsonMap) -> Gpu:
    """The device of ``gpu_toml`` (a datasheet's text) or ``gpu`` (a catalogue name). Raises ``InputError``."""
    text = body.get("gpu_toml")
    return gpu_of(body["gpu"]) if text is None else own_gpu(text)


def devices_of(body: JsonMap) -> list[Gpu]:
    """The devices of ``gpus``, where the device of ``gpu_toml`` is called by its own name. Raises ``InputError``."""
    own_device = None if body.get("gpu_toml") is None else own_gpu(body["gpu_toml"])
    names = body["gpus"] or [own_device.name if own_device else "h100"]
    return [own_device if own_device and name == own_device.name else gpu_of(name) for name in names]


def cluster_of(body: JsonMap) -> Cluster | None:
    """The cluster of ``cluster_toml`` (a file's text) or ``cluster`` (a catalogue name), if any. Raises
    ``InputError``."""
    text, name = body.get("cluster_toml"), body.get("cluster")
    if text is None:
        return None if name is None else load_cluster(plain_name("cluster", name))
    return own_cluster(text)


def question_of(body: JsonMap) -> JsonDict:
    """Keyword arguments of ``api.ask``: the fields of a run."""
    words = {name: body[name] for name in RunOptions.__annotations__ if body.get(name) is not None}
    return words | ({"cluster": plain_name("cluster", words["cluster"])} if "cluster" in words else {})


def names_of(field: str, values: Sequence[object] | None) -> tuple[str, ...]:
    """A list of words as a tuple; empty if not given."""
    return tuple(str(value) for value in values or ())
