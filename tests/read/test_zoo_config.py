"""The config.json written for a zoo model, which the page offers and extraction builds."""

from __future__ import annotations

import pytest

from sartor.errors import InputError
from sartor.model.counts import count_params
from sartor.model.shape import TransformerShape
from sartor.model.zoo import load_model, model_entry, model_names
from sartor.read.huggingface import read_model
from sartor.read.zoo_config import CLASSES, zoo_config

WITHOUT = {"gpt3-13b", "gpt3-xl", "nemotron-3-nano"}
"""Widths that num_heads does not divide, and a hybrid whose class has fields of its own."""


def windows_of(shape: TransformerShape) -> list[int]:
    return sorted({int(getattr(mixer, "window", 0)) for run in shape.main.runs for mixer in run.layer.mixers})


@pytest.mark.parametrize("name", [name for name in model_names() if name not in WITHOUT])
def test_a_zoo_model_has_a_config_of_its_own_family_that_reads_back_as_itself(name: str) -> None:
    shape, family = load_model(name), model_entry(name)["family"]
    config = zoo_config(shape, name)
    reading = read_model(dict(config))
    assert reading.num_params == count_params(shape).total
    assert reading.shape.fields() == shape.fields()
    assert windows_of(reading.shape) == windows_of(shape)
    if family in {each.model_type for each in CLASSES}:
        assert config["model_type"] == family


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_a_model_without_a_published_class_says_so(name: str) -> None:
    with pytest.raises(InputError, match=r"no config\.json can be written"):
        zoo_config(load_model(name), name)
