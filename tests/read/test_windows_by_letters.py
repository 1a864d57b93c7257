"""Windows of attention layers that a file gives as letters."""

from __future__ import annotations

from typing import Any

import pytest

from sartor.api.models import read

SIZES: dict[str, Any] = {
    "hidden_size": 512,
    "intermediate_size": 1024,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1024,
    "sliding_window": 256,
    "tie_word_embeddings": False,
}


@pytest.mark.parametrize("model_type", ["exaone4", "a_class_of_tomorrow"])
@pytest.mark.parametrize("pattern", ["LLLG", 4])
def test_every_fourth_layer_sees_all_keys_by_letters_or_by_number(model_type: str, pattern: object) -> None:
    shape = read({"model_type": model_type, "sliding_window_pattern": pattern, **SIZES}).shape
    assert [(int(run.count), run.positions) for run in shape.stacks[0].runs] == [(6, (0, 1, 2, 4, 5, 6)), (2, (3, 7))]


def test_an_unknown_class_with_a_window_and_no_pattern_says_that_every_layer_has_it() -> None:
    reading = read({"model_type": "a_class_of_tomorrow", **SIZES})
    assert "windows of sliding_window in every layer, as no field says" in reading.assumptions
