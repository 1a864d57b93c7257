"""Files sent as text in a request: a datasheet, a cluster, a calibration.

They are checked like files on the command line, with the same messages. Names inside them are catalogue names; no path
is followed. A calibration is written to a temporary folder while its request is answered.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sartor.bounded import parse_toml
from sartor.errors import InputError
from sartor.hardware.cluster import Cluster
from sartor.hardware.cluster_catalog import cluster_from_table
from sartor.hardware.device import device_from
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap


def own_gpu(text: str) -> Gpu:
    """The device of a datasheet's or an accelerator's TOML text. Raises ``InputError``."""
    return device_from(parse_toml(text, "gpu_toml", "the text sent"), "own")


def own_cluster(text: str) -> Cluster:
    """The cluster of a TOML text. Raises ``InputError``."""
    table = parse_toml(text, "cluster_toml", "the text sent")
    pools = table.get("others", [])
    for pool in (table, *(pools if isinstance(pools, list) else [])):
        if isinstance(pool, dict) and isinstance(pool.get("gpu"), str):
            plain_name("gpu", pool["gpu"])
    return cluster_from_table(table, "own")


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
