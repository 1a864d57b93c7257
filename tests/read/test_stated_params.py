"""A model of one's own is exact if its parameter count equals the one that its owner states or its weights have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.read.huggingface import read_model

OWN: dict[str, Any] = {
    "model_type": "acme",
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 1000,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}
TENSORS = {
    "embed": [1000, 64],
    "head": [1000, 64],
    "norm": [64],
    **{
        f"layers.{i}.{name}": sizes
        for i in range(2)
        for name, sizes in {
            "qkv": [192, 64],
            "out": [64, 64],
            "up": [384, 64],
            "down": [64, 192],
            "norms": [2, 64],
        }.items()
    },
}


def counted(shapes: dict[str, list[int]]) -> int:
    return sum(sizes[0] * (sizes[1] if len(sizes) > 1 else 1) for sizes in shapes.values())


def safetensors(path: Path, shapes: dict[str, list[int]]) -> None:
    tensors = {name: {"dtype": "BF16", "shape": sizes, "data_offsets": [0, 0]} for name, sizes in shapes.items()}
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header)


def test_an_unknown_type_is_not_exact_by_itself() -> None:
    reading = read_model(dict(OWN))
    assert not reading.exact
    assert reading.num_params == counted(TENSORS)


@pytest.mark.parametrize("section", [{"num_params": counted(TENSORS)}, {"tensors": TENSORS}])
def test_a_stated_count_that_agrees_makes_the_reading_exact(section: dict[str, Any]) -> None:
    reading = read_model(OWN | {"sartor": section, "num_memory_slots": 1024})
    assert reading.exact
    assert reading.inexact_because == ()
    assert reading.unread == ""
    assert reading.interval_factor == 1.0
    assert any("the parameter count equals that of sartor." in note for note in reading.notes)


@pytest.mark.parametrize("model_type", ["acme", "llama"])
def test_a_stated_count_that_differs_is_said_with_both(model_type: str) -> None:
    reading = read_model(OWN | {"model_type": model_type, "sartor": {"num_params": 1_000_000}})
    assert not reading.exact
    assert any("sartor.num_params states 1,000,000 parameters, but the fields give" in x for x in reading.assumptions)


@pytest.mark.parametrize(
    "section", [7, {}, {"params": 1}, {"num_params": 0}, {"num_params": "1B"}, {"tensors": {"a": 3}}, {"tensors": {}}]
)
def test_a_section_that_states_nothing_is_refused(section: object) -> None:
    with pytest.raises(InputError, match="sartor"):
        read_model(OWN | {"sartor": section})


def test_weights_beside_the_config_prove_it(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OWN))
    safetensors(tmp_path / "model.safetensors", TENSORS)
    for source in (tmp_path, tmp_path / "config.json"):
        reading = read_model(source)
        assert reading.exact
        assert any("model.safetensors" in note for note in reading.notes)


def test_shards_are_counted_together_and_an_incomplete_set_proves_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OWN))
    names = list(TENSORS)
    halves = {"a.safetensors": names[:5], "b.safetensors": names[5:]}
    for file, half in halves.items():
        safetensors(tmp_path / file, {name: TENSORS[name] for name in half})
    index = {"metadata": {"total_size": 1}, "weight_map": {n: file for file, half in halves.items() for n in half}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model(tmp_path).exact
    (tmp_path / "b.safetensors").unlink()
    assert not read_model(tmp_path).exact
    index["metadata"] = {"total_parameters": counted(TENSORS)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert read_model(tmp_path).exact


@pytest.mark.parametrize("data", [b"", b"abc", b"\xff" * 16, (2).to_bytes(8, "little") + b"[]"])
def test_damaged_weights_are_refused_in_one_sentence(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "config.json").write_text(json.dumps(OWN))
    (tmp_path / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="must be a safetensors file"):
        read_model(tmp_path)


def test_weights_with_further_tensors_leave_a_published_class_exact(tmp_path: Path) -> None:
    """Weights of DeepSeek-V3 hold the multi-token-prediction module too."""
    (tmp_path / "config.json").write_text(json.dumps(OWN | {"model_type": "llama"}))
    safetensors(tmp_path / "model.safetensors", TENSORS | {"mtp": [64, 64]})
    reading = read_model(tmp_path)
    assert reading.exact
    assert any("model.safetensors holds" in note for note in reading.notes)
