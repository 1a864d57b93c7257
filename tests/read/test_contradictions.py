"""Configs whose values cannot be, or contradict each other: refused or said, each in one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.read.huggingface import read_model


@pytest.fixture
def llama(repo_dir: Path) -> dict[str, Any]:
    return dict(json.loads((repo_dir / "examples" / "llama-3-8b" / "config.json").read_text()))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rope_theta": 0}, "rope_theta=0: must be above 0"),
        ({"max_position_embeddings": 0}, "max_position_embeddings=0: must be above 0"),
        ({"tie_word_embeddings": "false"}, 'tie_word_embeddings="false" (a string): must be true or false'),
    ],
)
def test_a_value_that_cannot_be_is_refused(llama: dict[str, Any], change: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError) as found:
        read_model(llama | change)
    assert said in str(found.value)


def test_an_unknown_activation_and_a_class_of_another_type_are_assumptions(llama: dict[str, Any]) -> None:
    reading = read_model(llama | {"hidden_act": "foo", "architectures": ["Qwen2ForCausalLM"]})
    assert "hidden_act=foo is not an activation of transformers; priced like any other" in reading.assumptions
    said = "architectures=Qwen2ForCausalLM is a class of qwen2: read as model_type=llama says"
    assert said in reading.assumptions
    plain = read_model(llama)
    assert not [each for each in plain.assumptions if "activation" in each or "architectures" in each]


def test_groups_of_experts_must_divide_them(repo_dir: Path) -> None:
    config = json.loads((repo_dir / "examples" / "deepseek-v3" / "config.json").read_text())
    with pytest.raises(InputError, match="n_group=7: must divide the 256 experts"):
        read_model(config | {"n_group": 7, "topk_group": 4})


def test_a_pattern_of_layers_has_a_letter_for_each() -> None:
    config = {"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*", "num_hidden_layers": 52}
    with pytest.raises(InputError, match="num_hidden_layers=52: must be the 4 letters of hybrid_override_pattern"):
        read_model(config)


def test_a_missing_list_of_layer_types_is_asked_for_as_a_list() -> None:
    with pytest.raises(InputError, match="layers_block_type=missing: must be given as a list"):
        read_model({"model_type": "zamba2", "hidden_size": 2560, "num_hidden_layers": 54, "vocab_size": 32000})
