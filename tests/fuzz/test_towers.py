"""Encoders of images and sound, and decoders that read them, through every journey."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzz.readers import GOLDEN

TYPES = (
    "data2vec-vision",
    "gemma4",
    "pix2struct",
    "speecht5",
    "audio-spectrogram-transformer",
    "moss_transcribe_diarize",
)
PLAN = "plan --cluster dgx-h100 --num-devices 16 --global-batch-size 64"


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TYPES)
def test_a_tower_goes_through_every_journey(model_type: str, tmp_path: Path, sartor: Callable[..., object]) -> None:
    line = next(x for x in (GOLDEN / "configs.jsonl").read_text().splitlines() if f'"model_type":"{model_type}"' in x)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(line)["config"]))
    for command in ("estimate --gpu h100", "lint --gpu h100 --fail-on never", "advise --gpu h100 --top 1", PLAN):
        verb, *options = command.split()
        ran = sartor(verb, file, *options, "--json")
        assert ran.code in ((0,) if verb != "plan" else (0, 3)), ran.err  # type: ignore[attr-defined]
        memory = ran.body.get("best", {}).get("memory", {})  # type: ignore[attr-defined]
        assert all(held >= 0 for held in memory.values())
        assert ran.code != 3 or ran.body["tightest"]["over_bytes"] > 0  # type: ignore[attr-defined]
