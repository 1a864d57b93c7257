"""The zoo: every entry builds, is sourced, and comes to the published counts to the unit."""

from __future__ import annotations

import csv
import re
from pathlib import Path

import pytest

from sartor.errors import InputError
from sartor.model.counts import count_params
from sartor.model.layer import LatentAttentionMixer, NormKind
from sartor.model.shape import TransformerShape
from sartor.model.zoo import build_shape, load_model, model_aliases, model_entry, model_names
from sartor.operators import DType

NAMES = model_names()

# Published exact counts, from the cards or checkpoints of the models themselves (transformers 5.23.0 on the meta
# device for the first column's classes; OpenAI's card for gpt-oss 120B: 116.83B), 2026-11.
PUBLISHED = {
    "gpt2-small": 124_439_808,
    "gpt-j-6b": 6_050_882_784,
    "gpt-neox-20b": 20_554_567_680,
    "pythia-2.8b": 2_775_208_960,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "qwen3-30b-a3b": 30_532_122_624,
    "gemma-2-27b": 27_227_128_320,
    "olmo-2-7b": 7_298_617_344,
    "deepseek-v3": 671_026_404_352,
    "gpt-oss-20b": 20_914_757_184,
    "gpt-oss-120b": 116_829_156_672,
    "bert-base": 109_482_240,
    "t5-11b": 11_307_321_344,
    "t5-v1.1-xxl": 11_135_332_352,
    "opt-350m": 331_196_416,
}

# Models of the published co-design search and of measured runs that the reference table does not have.
BEYOND_THE_TABLE = {
    "Qwen3 1.7B",
    "Qwen3 4B",
    "Qwen3 14B",
    "Llama 3 8B",
    "Llama 3 70B",
    "OPT 350M",
    "Megatron BERT",
    "Megatron GPT2-XL",
    "Megatron GPT2-54",
    "Megatron GPT2-72",
    "Turing-NLG",
    "Llama 4 Maverick",
    "Llama 4 Scout",
    "GLM-5 744B",
    "Kimi K2.5 1T",
    "Nemotron 3 Nano 30B-A3B",
}

# Configurations of the shared collection that are models of the zoo.
SAME_AS_CONFIG = {
    "gpt2": "gpt2-small",
    "gpt2-1.5b-neuron": "gpt2-xl",
    "Llama-2-7b": "llama-2-7b",
    "Llama-2-70b": "llama-2-70b",
    "Meta-Llama-3.1-8B": "llama-3.1-8b",
    "Meta-Llama-3.1-405B": "llama-3.1-405b",
    "Llama-3.2-1B": "llama-3.2-1b",
    "Mistral-7B-v0.1": "mistral-7b-v0.1",
    "Mixtral-8x7B-v0.1": "mixtral-8x7b",
    "Qwen3-8B": "qwen3-8b",
    "Qwen3-30B-A3B": "qwen3-30b-a3b",
    "gemma-2b": "gemma-2b",
    "gemma-2-9b": "gemma-2-9b",
    "gemma-3-1b-it": "gemma-3-1b",
    "phi-2": "phi-2",
    "falcon-40b": "falcon-40b",
    "pythia-6.9b-deduped": "pythia-6.9b",
    "gpt-j-6b": "gpt-j-6b",
    "opt-13b": "opt-13b",
    "OLMo-2-1124-7B": "olmo-2-7b",
    "DeepSeek-V2-Lite": "deepseek-v2-lite",
    "DeepSeek-V3": "deepseek-v3",
    "gpt-oss-20b": "gpt-oss-20b",
}


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_comes_to_its_counts_to_the_unit(name: str) -> None:
    entry, counts = model_entry(name), count_params(load_model(name))
    assert (counts.total, counts.active) == (entry["params"]["total"], entry["params"]["active"])


@pytest.mark.parametrize("name", NAMES)
def test_an_entry_says_where_it_is_from_and_when(name: str) -> None:
    entry = model_entry(name)
    assert {"paper", "config"} <= set(entry["sources"])
    assert all(re.search(r"\b20\d\d\b", source) for source in entry["sources"].values()), entry["sources"]
    assert re.fullmatch(r"20\d\d-\d\d", entry["released"])
    assert "weights" not in entry or DType(entry["weights"]).bytes < 2


@pytest.mark.parametrize("name", NAMES)
def test_the_nominal_size_is_the_counted_one_within_rounding(name: str) -> None:
    """Within 15%, but for two names: GPT-3 XL (24 heads of 128 printed beside h=2048), Llama 3.2 1B (1.24 billion)."""
    params = model_entry(name)["params"]
    number, scale = re.match(r"([\d.]+)([MBT])", params["nominal"]).groups()  # type: ignore[union-attr]
    nominal = float(number) * {"M": 1e6, "B": 1e9, "T": 1e12}[scale]
    assert params["total"] == pytest.approx(nominal, rel=0.25 if name in ("gpt3-xl", "llama-3.2-1b") else 0.15)


def test_published_totals_are_met_to_the_unit() -> None:
    assert {name: count_params(load_model(name)).total for name in PUBLISHED} == PUBLISHED


def test_the_zoo_holds_every_model_of_the_reference_table(shared_dir: Path) -> None:
    rows = read_csv(shared_dir / "reference/models.csv")
    by_title = {model_entry(name)["name"]: name for name in NAMES}
    assert {row["model"] for row in rows} == set(by_title) - BEYOND_THE_TABLE
    for row in rows:
        name = by_title[row["model"]]
        entry, fields = model_entry(name), load_model(name).fields()
        assert fields["num_layers"] == int(row["L"])
        assert fields["hidden_size"] == int(row["h"])
        assert fields["num_heads"] == int(row["a"])
        assert fields["head_dim"] == int(row["head_dim"])
        assert fields["vocab_size"] == int(row["vocab"])
        omitted = "note" in entry["params"]
        assert omitted or entry["params"]["total"] == int(row["params_computed"])
        assert omitted or entry["params"]["active"] == int(row["params_active_computed"])


def test_counts_agree_with_published_classes_on_shared_configurations(shared_dir: Path) -> None:
    truth = {row["name"]: row for row in read_csv(shared_dir / "data/configs/truth.csv")}
    for config, name in SAME_AS_CONFIG.items():
        counts = count_params(load_model(name))
        assert str(counts.total) == truth[config]["expected_params"], name
        assert str(counts.active) == truth[config]["active_params"], name
        assert str(counts.embedding) == truth[config]["embedding_params"], name


def test_every_part_of_a_family_is_there() -> None:
    v3 = load_model("deepseek-v3")
    assert isinstance(v3.attention, LatentAttentionMixer)
    assert [run.count for run in v3.main.runs] == [3, 58]
    assert v3.moe_ffn is not None
    assert v3.moe_ffn.shared is not None
    t5 = load_model("t5-11b")
    assert [stack.name for stack in t5.stacks] == ["encoder", "decoder"]
    assert [mixer.cross for mixer in t5.main.runs[0].layer.mixers] == [False, True]  # type: ignore[union-attr]
    gemma = load_model("gemma-3-27b")
    assert [(run.count, run.layer.mixers[0].window) for run in gemma.main.runs] == [(52, 1024), (10, 0)]  # type: ignore[union-attr]
    olmo = load_model("olmo-7b").main.norms[0]
    assert (olmo.kind, olmo.weight, olmo.bias) == (NormKind.LAYER_NORM, False, False)
    assert load_model("pythia-2.8b").main.runs[0].layer.parallel
    assert load_model("falcon-7b").num_kv_heads == 1
    assert load_model("gpt3-13b").hidden_size == 5140


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("GPT2", "gpt2-small"),
        ("gpt3 2.7B", "gpt3-2.7b"),
        ("GPT-3 2.7B", "gpt3-2.7b"),
        ("meta-llama/Llama-2-7b-hf", "llama-2-7b"),
        ("Meta-Llama-3.1-8B", "llama-3.1-8b"),
        ("EleutherAI/pythia-2.8b", "pythia-2.8b"),
        ("mixtral_8x7b", "mixtral-8x7b"),
        ("deepseek-ai/DeepSeek-V3", "deepseek-v3"),
        ("Qwen/Qwen3-30B-A3B", "qwen3-30b-a3b"),
    ],
)
def test_spelling_is_forgiven(said: str, meant: str) -> None:
    assert load_model(said) == load_model(meant)


def test_titles_and_aliases_lead_home() -> None:
    for name in NAMES:
        assert model_entry(name)["name"]
    for alias, name in model_aliases().items():
        assert name in NAMES, alias
        assert alias not in NAMES
        assert model_entry(alias) == model_entry(name)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"^model=llama-3\.1-9b: not in the zoo .*nearest: .*llama-3\.1-8b"):
        load_model("llama-3.1-9b")
    with pytest.raises(InputError, match="not in the zoo"):
        load_model("")
    with pytest.raises(InputError, match="not in the zoo"):
        load_model("\x1b[2J../../etc/passwd")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_layer": 3}, "key=num_layer: "),
        ({"norm": "batchnorm"}, "norm=batchnorm: "),
        ({"biases": ["qkv"]}, "bias=qkv: "),
        ({"architecture": "mixture"}, "architecture=mixture: "),
        ({"qk_norm": "l2"}, "qk_norm=l2: "),
    ],
)
def test_an_entry_the_builder_does_not_know_is_refused(change: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=re.escape(sentence)):
        build_shape({**model_entry("gpt2"), **change})


def test_names_are_sorted_as_people_would() -> None:
    pythia = [name for name in NAMES if name.startswith("pythia")]
    assert pythia == [f"pythia-{size}" for size in ("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")]


def test_loading_builds_a_shape_of_plain_integers() -> None:
    shape = load_model("mixtral-8x22b")
    assert isinstance(shape, TransformerShape)
    assert all(isinstance(value, int) for value in shape.fields().values())
