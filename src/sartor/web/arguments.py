"""Convert a request's fields and uploaded files to API arguments.

They are checked like files on the command line, with the same messages. Names inside them are catalogue names; no path
is followed. A calibration is written to a temporary folder while its request is answered.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sartor.api.models import from_zoo
from sartor.api.words import device_of as warned_device
from sartor.bounded import parse_toml
from sartor.errors import InputError
from sartor.hardware.accelerator_catalog import device_from, load_device
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap
from sartor.model.workload import ModelReading
from sartor.read.config_text import parse_config
from sartor.read.huggingface import read_model
from sartor.run.fields import RunOptions


def _own_gpu(text: str) -> Gpu:
    """The device of a datasheet's or an accelerator's TOML text. Raises ``InputError``."""
    return warned_device(device_from(parse_toml(text, "gpu_toml", "the text sent"), "own"))


def plain_name(field: str, name: object) -> str:
    """A catalogue name; anything that looks like a path is rejected, since no file is read over HTTP."""
    if not isinstance(name, str):
        raise InputError(field, name, "must be a word")
    if "/" in name or "\\" in name or name.endswith((".toml", ".json")) or "\x00" in name or len(name) > 200:
        raise InputError(field, name, "must be a name of the catalogue; over HTTP no file is read by its path")
    return name


@contextmanager
def calibration_at_hand(body: JsonMap) -> Iterator[JsonMap]:
    """The request with its calibration's text in a temporary file, as the API expects it.

    The file name is a hash of the text, so that caches distinguish calibrations (``question_key``). Messages refer to
    the text that was sent.
    """
    text = body.get("calibration")
    if text is None:
        yield body
        return
    data = _encoded(text)
    with tempfile.TemporaryDirectory(prefix="sartor-calibration-") as folder:
        path = Path(folder) / f"{hashlib.sha256(data).hexdigest()[:24]}.toml"
        path.write_bytes(data)
        try:
            yield {**body, "calibration": path}
        except InputError as error:
            raise _of_the_text(error, str(path)) from None


def _encoded(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InputError("calibration", "text", "must be text in UTF-8") from None


def _of_the_text(error: InputError, path: str) -> InputError:
    value = "the text sent" if str(error.value) == path else error.value
    return InputError(error.field, value, error.must.replace(f"in {path}", "in it"), error.nearest)


def question_key(body: JsonMap) -> JsonDict:
    """The cache key of a request: its calibration by file name, whatever the folder."""
    calibration = body.get("calibration")
    return {**body, "calibration": calibration.name} if isinstance(calibration, Path) else dict(body)


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
    return from_zoo(plain_name("model", name))


def _uploaded(config: object, name: str) -> ModelReading:
    if isinstance(config, dict):
        return read_model(config, name=name)
    try:
        data = str(config).encode()
    except UnicodeEncodeError:
        raise InputError("config", "text", "must be text in UTF-8") from None
    return read_model(parse_config(data), name=name)


def _gpu_of(name: object) -> Gpu:
    """The GPU or accelerator of a catalogue name. Raises ``InputError``."""
    return warned_device(load_device(plain_name("gpu", name)))


def device_of(body: JsonMap) -> Gpu:
    """The device of ``gpu_toml`` (a datasheet's text) or ``gpu`` (a catalogue name). Raises ``InputError``."""
    return stated_device(body) or _gpu_of("h100")


def stated_device(body: JsonMap) -> Gpu | None:
    """As `device_of`; None where the body states none."""
    text, name = body.get("gpu_toml"), body.get("gpu")
    if text is not None:
        return _own_gpu(text)
    return None if name is None else _gpu_of(name)


def stated_devices(body: JsonMap) -> list[Gpu]:
    """The devices of ``gpus``, where the device of ``gpu_toml`` is called by its own name. Raises ``InputError``."""
    own_device = None if body.get("gpu_toml") is None else _own_gpu(body["gpu_toml"])
    names = body["gpus"] or ([own_device.name] if own_device else [])
    return [own_device if own_device and name == own_device.name else _gpu_of(name) for name in names]


def question_of(body: JsonMap) -> JsonDict:
    """Keyword arguments of ``api.ask``: the fields of a run."""
    words = {name: body[name] for name in RunOptions.__annotations__ if body.get(name) is not None}
    return words | ({"cluster": plain_name("cluster", words["cluster"])} if "cluster" in words else {})
