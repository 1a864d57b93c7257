"""Adding a family is one TOML row: done here in a folder of its own, then asked through the api and the command line.

A family of your own inherits its tests: subclass `FamilyContract` with a config and the parameter count of its weights.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from sartor import api
from sartor.cli import main
from sartor.errors import InputError
from sartor.read import families as readers
from sartor.read import fields
from sartor.read.fields import class_defaults
from sartor.read.huggingface import read_model

CACHES = (fields.family_rows, fields.tower_rows, readers.reader_of, class_defaults)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with family files that is read after the package's own."""
    own = tmp_path / "families"
    own.mkdir()
    monkeypatch.setattr(fields, "FOLDERS", (*fields.FOLDERS, own))
    for cached in CACHES:
        cached.cache_clear()
    yield own
    for cached in CACHES:
        cached.cache_clear()


class FamilyContract:
    """What holds for every family: its counts, its defaults, its proof, and that every door knows it."""

    row: ClassVar[str]
    """The TOML of the row."""
    config: ClassVar[dict[str, Any]]
    """A config.json of the family, with every field that a file must state."""
    num_params: ClassVar[int]
    """The parameters of its weights."""

    @pytest.fixture(autouse=True)
    def _row(self, folder: Path) -> None:
        (folder / "acme.toml").write_text(self.row)

    @pytest.fixture
    def path(self, tmp_path: Path) -> str:
        path = tmp_path / "config.json"
        path.write_text(json.dumps(self.config))
        return str(path)

    def test_its_parameters_are_those_of_its_weights(self) -> None:
        assert read_model(dict(self.config)).num_params == self.num_params

    def test_it_is_exact_by_what_the_row_says(self) -> None:
        reading = read_model(dict(self.config))
        assert reading.exact, reading.inexact_because
        assert reading.unread == ""

    def test_the_api_estimates_it(self, path: str) -> None:
        answer = api.estimate(path, "h100", phase="prefill")
        assert answer.question.reading.num_params == self.num_params
        assert answer.microbatch.time_s > 0

    def test_the_command_line_says_its_parameters(self, path: str, capsys: pytest.CaptureFixture[str]) -> None:
        ask("estimate", path, "--gpu", "h100", "--phase", "prefill", "--json")
        body = json.loads(capsys.readouterr().out)
        assert body["model"]["num_params"] == self.num_params
        assert body["model"]["exact"]
        ask("lint", path, "--gpu", "h100")
        assert "not read" not in capsys.readouterr().out


def ask(*arguments: str) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    assert exit_.value.code == 0


def decoder_params(layers: int, h: int, ffn: int, vocab: int, heads: int, kv: int, d: int, norms: int) -> int:
    attention = h * heads * d * 2 + h * kv * d * 2
    return layers * (attention + 3 * h * ffn + norms * h + 2 * d) + h + 2 * vocab * h


class TestFamilyLikeAnother(FamilyContract):
    """A row that takes everything from Qwen3's but the number of norms, with names and defaults of its own."""

    row = """
[acme]
like = "qwen3"
norms = 4
aliases = { hidden_size = "n_model", num_key_value_heads = "kv_groups" }
defaults = { tie_word_embeddings = false, attention_bias = false, use_sliding_window = false, head_dim = 64 }
verified = "counted from the safetensors of acme-1, 2026-11-28"
"""
    config: ClassVar[dict[str, Any]] = {
        "model_type": "acme",
        "architectures": ["AcmeForCausalLM"],
        "n_model": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "kv_groups": 2,
        "intermediate_size": 1536,
        "vocab_size": 32000,
        "hidden_act": "silu",
    }
    num_params = decoder_params(4, 512, 1536, 32000, 8, 2, 64, 4)


class TestFamilyOfFacts(FamilyContract):
    """A row of facts alone, one of them a call."""

    row = """
[acme]
reader = "decoder.read_decoder"
qk_norm = "head"
spans = "parts.window_pattern(2)"
tied = false
verified = "the count of its paper, table 1"
"""
    config: ClassVar[dict[str, Any]] = {
        "model_type": "acme",
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "head_dim": 64,
        "sliding_window": 128,
        "intermediate_size": 1536,
        "vocab_size": 32000,
    }
    num_params = decoder_params(4, 512, 1536, 32000, 8, 8, 64, 2)


def test_a_fact_that_its_reader_does_not_know_is_named(folder: Path) -> None:
    (folder / "acme.toml").write_text('[acme]\nlike = "llama"\nqk_norms = "head"\n')
    with pytest.raises(InputError, match="qk_norm"):
        read_model({"model_type": "acme", "hidden_size": 512})


def test_a_family_without_a_proof_is_not_exact(folder: Path) -> None:
    (folder / "acme.toml").write_text('[acme]\nlike = "llama"\n')
    config = {name: value for name, value in TestFamilyOfFacts.config.items() if name != "sliding_window"}
    reading = read_model(config)
    assert reading.inexact_because == ("the counts of acme have not been compared with its published class",)


def test_every_row_makes_its_reader() -> None:
    for model_type in readers.model_types():
        assert readers.reader_of(model_type) is not None
