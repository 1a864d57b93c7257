"""A reading is called exact only where the golden conformance set holds its model type, class and parts."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from sartor.read.families import model_types
from sartor.read.fields import default_class, is_published_class
from sartor.read.huggingface import read_model
from sartor.read.verified import unverified, verified_model_types

GOLDEN = Path(__file__).parent.parent / "golden"
LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 4,
    "vocab_size": 32000,
}


def _golden() -> list[tuple[dict[str, str], dict[str, object]]]:
    with (GOLDEN / "conformance.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    configs = [json.loads(line)["config"] for line in (GOLDEN / "configs.jsonl").read_text().splitlines()]
    return list(zip(rows, configs, strict=True))


def test_every_type_called_exact_has_a_golden_row_with_its_parameters() -> None:
    held = {row["model_type"] for row, _ in _golden() if row["params"]}
    assert verified_model_types() <= held
    assert len(held) > 250


def test_no_reading_of_a_type_without_golden_rows_is_exact() -> None:
    held = {row["model_type"] for row, _ in _golden()}
    for model_type in model_types() - held:
        assert unverified(model_type, default_class(model_type), ())


def test_a_golden_config_that_is_not_settled_is_not_called_exact() -> None:
    for row, config in _golden():
        if not row["params"] and row["note"]:
            reading = read_model(dict(config))
            assert not reading.exact, row["model_type"]
            assert reading.inexact_because


def test_a_class_that_was_not_compared_is_said() -> None:
    assert read_model(LLAMA).exact
    assert read_model(LLAMA | {"architectures": ["LlamaForSequenceClassification"]}).exact
    sentences = unverified("bert", "BertGenerationDecoder", ())
    assert "BertGenerationDecoder" in sentences[0]


def test_a_part_that_was_not_compared_is_said() -> None:
    assert unverified("llava", "LlavaForConditionalGeneration", ("llama", "clip_vision_model")) == ()
    (sentence,) = unverified("llava", "LlavaForConditionalGeneration", ("llama", "new_tower"))
    assert "new_tower" in sentence


def test_a_class_nobody_published_is_counted_as_its_model_types_own() -> None:
    reading = read_model(LLAMA | {"architectures": ["MyLlamaModel"]})
    assert reading.shape.lm_head
    assert any("MyLlamaModel" in note for note in reading.notes)
    assert is_published_class("LlamaModel")
    assert not is_published_class("MyLlamaModel")
