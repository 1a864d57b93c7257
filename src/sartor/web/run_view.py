"""A run over HTTP: the uploaded log or trace compared with the prediction, with the records of its figures."""

from __future__ import annotations

import base64
import binascii
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from sartor import api
from sartor.answers.diagnosis import LogDiagnosis, TraceDiagnosis, part_words
from sartor.errors import InputError
from sartor.json_types import JsonDict, JsonMap, plain
from sartor.report.words import printable
from sartor.traces.read import REPORTS
from sartor.web.asked import device_of, model_of
from sartor.web.plan_view import fixed_axes
from sartor.web.uploads import plain_name

SAID = ("number", "num_devices", "global_batch_size", "seq_len", "dtype", "framework", "set", "calibration")
"""Fields passed to ``api.diagnose`` unchanged."""


def run_body(body: JsonMap) -> JsonDict:
    """The answer of ``api.diagnose`` to a request, as text and figures too. Raises ``InputError``."""
    from sartor.report.diagnose_words import diagnose_answer
    from sartor.report.run_points import run_points

    answer = _diagnosed(body)
    title, lines = diagnose_answer(answer)
    names = {part.kind: part_words(part.kind) for part in answer.run_parts}
    says = {"title": title, "lines": [printable(line) for line in lines], "parts": names}
    return {**answer.to_dict(), "says": says, "figures": plain(run_points(answer))}


def _diagnosed(body: JsonMap) -> LogDiagnosis | TraceDiagnosis:
    name = Path(str(body["file"] or "the file sent")).name[:100]
    request = _asked(body)
    with tempfile.TemporaryDirectory(prefix="sartor-run-") as folder:
        path = Path(folder) / f"run{''.join(end for end in REPORTS if name.endswith(end))}"
        path.write_bytes(_decoded(body["run"]))
        try:
            return replace(api.diagnose(path, **request), path=name)
        except InputError as error:
            value = name if str(error.value) == str(path) else error.value
            raise InputError(error.field, value, error.must.replace(str(path), name), error.nearest) from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise InputError("run", f"{text[:20]}...", "must be the bytes of a log or a trace in base64") from None


def _asked(body: JsonMap) -> JsonDict:
    """The request's arguments; without a device unless it names one, since a trace names its own."""
    cluster = body["cluster"]
    return {
        **{name: body[name] for name in SAID},
        "model": None if body["model"] is None and body["config"] is None else model_of(body),
        "cluster": None if cluster is None else plain_name("cluster", cluster),
        "gpu": None if body["gpu"] is None and body["gpu_toml"] is None else device_of(body),
        "fix": fixed_axes(body["fix"] if isinstance(body["fix"], Mapping) else None),
    }
