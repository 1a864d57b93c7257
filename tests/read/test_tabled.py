"""Towers known by their sizes alone: polynomials of config fields, with guards."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.model.counts import count_params
from sartor.read.config_text import packaged_json
from sartor.read.families import model_types
from sartor.read.families.tabled import is_tabled
from sartor.read.huggingface import read_model

GOLDEN = Path(__file__).parent.parent / "golden"


def _config(model_type: str) -> dict[str, Any]:
    with (GOLDEN / "conformance.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    lines = (GOLDEN / "configs.jsonl").read_text().splitlines()
    chosen = next(i for i, row in enumerate(rows) if row["model_type"] == model_type and row["params"])
    config: dict[str, Any] = json.loads(lines[chosen])["config"]
    return config


def test_a_tower_grows_as_its_layers_do() -> None:
    config = _config("git")
    vision = config["vision_config"]
    sizes = []
    for layers in (4, 5, 6):
        changed = config | {"vision_config": vision | {"num_hidden_layers": layers}}
        sizes.append(int(count_params(read_model(changed).shape).total))
    h = vision.get("hidden_size", 768)
    width = vision.get("intermediate_size", 3072)
    layer = 4 * h * h + 4 * h + 2 * h * width + h + width + 4 * h  # attention, feed-forward, two norms
    assert sizes[1] - sizes[0] == sizes[2] - sizes[1] == layer


def test_text_alone_does_not_run_a_tabled_tower() -> None:
    shape = read_model(_config("blip")).shape
    (tower,) = [stack for stack in shape.stacks if not stack.is_text]
    assert tower.tokens == 0
    assert count_params(shape).text < count_params(shape).total


def test_a_field_that_changes_the_structure_is_said() -> None:
    config = _config("florence2")
    assert read_model(config).exact
    vision = dict(config.get("vision_config") or {})
    reading = read_model(config | {"vision_config": vision | {"depths": [1, 1, 2, 1]}})
    assert not reading.exact
    assert any("depths" in sentence for sentence in reading.inexact_because)


def test_a_zero_that_divides_is_refused() -> None:
    config = _config("git")
    with pytest.raises(InputError, match="patch_size"):
        read_model(config | {"vision_config": {"patch_size": 0}})


def test_every_tabled_type_has_a_reader_for_its_text() -> None:
    named = {name.partition(":")[0] for name in packaged_json("tensor_tables.json")["model_types"]}
    assert named <= model_types()
    assert all(is_tabled(*name.split(":")) for name in packaged_json("tensor_tables.json")["model_types"])


TOWERS_ASIDE = "time and memory are those of the text model alone"


def test_every_config_with_a_tower_says_that_it_is_not_priced() -> None:
    silent, counted = [], 0
    for line in (GOLDEN / "configs.jsonl").read_text().splitlines():
        config = json.loads(line)["config"]
        try:
            reading = read_model(config)
        except InputError:
            continue
        beside = [stack for stack in reading.shape.stacks if not stack.is_text]
        if not beside or len(beside) == len(reading.shape.stacks) or reading.num_params == reading.text_params:
            continue
        counted += 1
        if not any(TOWERS_ASIDE in sentence for sentence in reading.assumptions):
            silent.append(reading.shape.model_type)
    assert counted > 300
    assert not silent


def test_a_model_of_images_alone_is_priced_and_so_says_nothing() -> None:
    reading = read_model(_config("vit"))
    assert not any(TOWERS_ASIDE in sentence for sentence in reading.assumptions)
