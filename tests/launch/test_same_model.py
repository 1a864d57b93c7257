"""The model of a launch file is the model that was priced: every field that changes it is written, or refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.launch.fields import Row, argument_names, row_of, rows
from sartor.launch.megatron_model import model_arguments
from sartor.launch.megatron_model_read import read_model as read_megatron_model
from sartor.launch.plan import LaunchKind
from sartor.launch.stated import parse_flags
from sartor.model.shape import NEUTRAL, TransformerShape
from sartor.model.zoo import load_model, model_names
from sartor.read.huggingface import read_model

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": False,
}
SCALED = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
NOT_GPT = ("chatglm", "Qwen-7B-Chat", "roberta-base", "broken")
"""Configurations that are no decoder's, or of no known class."""


def written(shape: TransformerShape) -> dict[str, str]:
    arguments, _ = model_arguments(shape, 1, 4096)
    return {words[0]: " ".join(words[1:]) for words in arguments}


def through_megatron(shape: TransformerShape) -> TransformerShape:
    arguments, _ = model_arguments(shape, 1, 4096)
    assert {words[0] for words in arguments} <= argument_names()
    again = read_megatron_model(parse_flags(word for words in arguments for word in words), 1)
    assert again is not None
    return again


def same_model(shape: TransformerShape) -> None:
    again = through_megatron(shape)
    assert shape.numerics is not None
    assert again.numerics is not None
    assert again.numerics.unusual == shape.numerics.unusual
    sizes, found = shape.fields(), again.fields()
    assert {**found, "vocab_size": 0} == {**sizes, "vocab_size": 0}
    assert 0 <= int(again.vocab_size) - int(shape.vocab_size) < 128
    assert again.tied_embeddings is shape.tied_embeddings
    assert again.mtp_layers == shape.mtp_layers


def can_be_written(shape: TransformerShape) -> bool:
    try:
        return bool(written(shape))
    except InputError:
        return bool(refusal(shape)) is False


def refusal(shape: TransformerShape) -> InputError:
    with pytest.raises(InputError) as caught:
        model_arguments(shape, 1, 4096)
    assert caught.value.nearest
    return caught.value


@pytest.mark.parametrize("name", model_names())
def test_a_zoo_model_comes_back_from_megatrons_arguments_or_is_refused(name: str) -> None:
    shape = load_model(name)
    if can_be_written(shape):
        same_model(shape)


def test_every_known_config_comes_back_from_megatrons_arguments_or_is_refused(
    shared_configs: list[Path],
) -> None:
    shapes = [read_model(path).shape for path in shared_configs]
    writable = [shape for shape in shapes if can_be_written(shape)]
    assert len(writable) >= 20
    for shape in writable:
        same_model(shape)


@pytest.fixture
def shared_configs(repo_dir: Path) -> list[Path]:
    folder = repo_dir.parent / "shared" / "data" / "configs"
    if not folder.is_dir():
        pytest.skip("the configurations of ../shared are not there")
    found = sorted(folder.glob("*/*/config.json"))
    return [path for path in found if not any(name in str(path) for name in NOT_GPT)]


def test_a_llama_is_launched_with_its_own_rotary_base_and_scaling() -> None:
    said = written(read_model({**LLAMA, "rope_scaling": SCALED}).shape)
    assert said["--rotary-base"] == "500000"
    assert said["--norm-epsilon"] == "1e-05"
    assert "--use-rope-scaling" in said
    assert said["--rope-scaling-factor"] == "8"


def test_positions_interpolated_linearly_come_back() -> None:
    shape = read_model({**LLAMA, "rope_scaling": {"type": "linear", "factor": 2.0}}).shape
    assert written(shape)["--rotary-seq-len-interpolation-factor"] == "2"
    same_model(shape)


def test_layers_without_rotation_come_back() -> None:
    shape = read_model({**LLAMA, "model_type": "smollm3"}).shape
    assert written(shape)["--no-rope-freq"].startswith("([0]*3+[1]*1")
    same_model(shape)


def test_a_scaling_in_the_newer_form_is_the_same_scaling() -> None:
    older = read_model({**LLAMA, "rope_scaling": SCALED}).shape
    newer = dict(LLAMA)
    del newer["rope_theta"]
    newer["rope_parameters"] = {**SCALED, "rope_theta": 500000.0}
    again = read_model(newer).shape
    assert older.numerics is not None
    assert again.numerics is not None
    assert again.numerics.values == older.numerics.values


def test_deepseek_v3s_router_is_written() -> None:
    said = written(load_model("deepseek-v3"))
    assert said["--moe-router-score-function"] == "sigmoid"
    assert said["--moe-router-num-groups"] == "8"
    assert said["--moe-router-group-topk"] == "4"
    assert said["--moe-router-topk-scaling-factor"] == "2.5"
    assert "--moe-router-enable-expert-bias" in said
    assert said["--rotary-scaling-factor"] == "40"


@pytest.mark.parametrize(
    ("more", "groups"),
    [("--moe-router-num-groups 8 --moe-router-group-topk 4", (8, 4)), ("--moe-router-num-groups 8", (1, 1))],
)
def test_routing_by_groups_is_read_where_both_of_megatrons_flags_limit_it(more: str, groups: tuple[int, int]) -> None:
    words = "--num-layers 2 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --num-experts 64"
    read = read_megatron_model(parse_flags(f"{words} --moe-router-topk 8 {more}".split()), 1)
    assert read is not None
    assert read.moe_ffn is not None
    assert (read.moe_ffn.routing_groups, read.moe_ffn.groups_per_token) == groups


def test_more_groups_a_token_may_choose_from_than_there_are_is_refused() -> None:
    words = "--num-layers 2 --hidden-size 1024 --num-attention-heads 8 --seq-length 2048 --num-experts 64"
    more = "--moe-router-num-groups 4 --moe-router-group-topk 5"
    with pytest.raises(InputError, match="--moe-router-group-topk"):
        read_megatron_model(parse_flags(f"{words} {more}".split()), 1)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"final_logit_softcapping": 30.0}, "logit_softcap=30"),
        ({"attn_logit_softcapping": 50.0}, "attention_softcap=50"),
        ({"rope_theta": 10000.5}, "rope_theta=10000.5: Megatron-LM takes whole numbers by --rotary-base"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type=dynamic"),
        ({"rope_scaling": {"type": "linear", "factor": 1.5}}, "rope_factor=1.5"),
        ({"rope_scaling": {**SCALED, "high_freq_factor": 8.0}}, "rope_high_freq_factor=8: Megatron-LM has 4 alone"),
        ({"residual_multiplier": 0.22}, "residual_multiplier=0.22"),
        ({"attention_multiplier": 0.5}, "attention_multiplier=0.5"),
        ({"mup_scale_logits": 4.0}, "mup_scale_logits=4"),
        ({"clip_qkv": 8.0}, "qkv_clip=8"),
    ],
)
def test_what_megatron_has_no_argument_for_is_refused_by_name(changes: dict[str, Any], sentence: str) -> None:
    assert sentence in str(refusal(read_model({**LLAMA, **changes}, name="mine").shape))


@pytest.mark.parametrize("changes", [{"query_pre_attn_scalar": 128}, {"attention_multiplier": 128**-0.5}])
def test_an_attention_scale_that_is_the_usual_one_is_no_obstacle(changes: dict[str, Any]) -> None:
    assert written(read_model({**LLAMA, **changes}).shape) == written(read_model(LLAMA).shape)


@pytest.mark.parametrize("name", ["gemma-2-9b", "gemma-3-1b", "olmo-2-7b", "olmo-7b", "bloom-7.1b", "opt-13b"])
def test_a_family_that_computes_something_else_is_refused(name: str) -> None:
    refusal(load_model(name))


def test_a_family_nobody_compared_is_written_with_a_warning() -> None:
    shape = replace(load_model("llama-3.1-8b"), model_type="unheard_of")
    assert shape.numerics is not None
    _, notes = model_arguments(replace(shape, numerics=replace(shape.numerics, compared=False)), 1, 4096)
    assert any("check it before training" in note for note in notes)
    _, notes = model_arguments(replace(shape, numerics=None), 1, 4096)
    assert any("the trainer's defaults stand" in note for note in notes)


@pytest.mark.parametrize("row", rows(LaunchKind.MEGATRON, "numerics"), ids=lambda row: f"{row.field}-{row.argument}")
def test_a_row_of_the_table_names_a_known_field_and_an_argument_with_its_release(row: Row) -> None:
    assert row.field in NEUTRAL or row.field in {"rope_factor", "rope_original_max_positions"}
    assert row.argument or row.only
    if row.argument:
        assert row.argument in argument_names()
        assert row.since


def test_every_argument_that_is_written_has_its_first_release() -> None:
    for name in ("llama-3.1-8b", "deepseek-v3", "gpt-oss-20b", "gpt3-175b", "mixtral-8x7b"):
        for words in model_arguments(load_model(name), 1, 4096)[0]:
            row = row_of(LaunchKind.MEGATRON, words[0])
            assert row
            assert row.since, words[0]


def test_nothing_beside_the_sizes_changes_what_a_shape_is() -> None:
    plain, scaled = read_model(json.loads(json.dumps(LLAMA))).shape, read_model({**LLAMA, "rope_theta": 1e6}).shape
    assert plain == scaled
    assert hash(plain) == hash(scaled)


def test_the_page_of_the_table_is_made_from_it(repo_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(repo_dir / "tools"))
    page = __import__("launch_docs")
    monkeypatch.setattr(page, "PAGE", tmp_path / "page.md")
    page.main()
    assert (tmp_path / "page.md").read_text() == (repo_dir / "docs" / "launch-fields.md").read_text()
