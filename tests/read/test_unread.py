"""Fields that a reader leaves out are named; an unknown model type with other mixers or experts is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sartor.errors import InputError
from sartor.model.layer import AttentionMixer
from sartor.read.config_text import packaged_json
from sartor.read.huggingface import read_fields, read_model

SIZES = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "vocab_size": 32000,
    "rms_norm_eps": 1e-5,
    "hidden_act": "silu",
}
LINEAR = {
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "full_attention_interval": 4,
}
EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 2}
IGNORED = "ignored, as the class of this model_type does not read them"


@pytest.mark.parametrize("around", [{}, {"architectures": ["LlamaForCausalLM"]}])
def test_an_unknown_type_with_another_mixer_is_refused(around: dict[str, Any]) -> None:
    with pytest.raises(InputError) as found:
        read_model({"model_type": "zorblax", **SIZES, **LINEAR, **around})
    assert str(found.value).startswith("linear_num_key_heads=16: describes a mixer other than attention (as ")
    assert "full_attention_interval" in str(found.value)
    assert found.value.nearest.startswith("model_type=qwen3")


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"full_attention_interval": 4}, "full_attention_interval"),
        ({"mamba_num_heads": 64}, "mamba_num_heads"),
        ({"ssm_cfg": {"d_state": 64, "expand": 2}}, "ssm_cfg"),
        ({"linear_num_heads": 8}, "linear_num_heads"),
        ({"experts": 8}, "experts"),
        ({**EXPERTS, "moe_layer_interval": 2}, "moe_layer_interval"),
    ],
)
def test_each_such_field_of_an_unknown_type_is_refused(more: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=f"{field}=.*: counted only for a known model_type, and zorblax is unknown"):
        read_model({"model_type": "zorblax", **SIZES, **more})


def test_an_unknown_type_is_still_read_by_fields_that_are_used() -> None:
    plain = read_model({"model_type": "zorblax", **SIZES, "num_experts": 0, "linear_bias": False})
    assert not plain.exact
    moe = read_model({"model_type": "zorblax", **SIZES, **EXPERTS, "router_aux_loss_coef": 0.01, "moe_layer_freq": 1})
    assert moe.shape.moe_ffn is not None
    assert moe.shape.moe_ffn.num_experts == 8


def test_the_text_part_of_an_unknown_type_is_refused_by_its_path() -> None:
    with pytest.raises(InputError, match=r"text_config\.linear_num_key_heads=16"):
        read_model({"model_type": "zorblax", "text_config": {"model_type": "foo", **SIZES, **LINEAR}})


@pytest.mark.parametrize("more", [EXPERTS, LINEAR])
def test_a_known_class_names_what_it_does_not_read_and_is_not_exact(more: dict[str, Any]) -> None:
    reading = read_model({"model_type": "llama", **SIZES, **more})
    sizes = ", ".join(f"{name}={value}" for name, value in more.items())
    assert f"{sizes} are not read: the parameter count is unknown" in reading.assumptions
    assert not reading.exact


@pytest.mark.parametrize(
    "field",
    ["q_lora_rank", "moe_latent_size", "routed_expert_hidden_size", "num_memory_slots", "n_hash_tables", "d_bridge"],
)
def test_with_a_size_that_no_reader_knows_the_parameter_count_is_unknown(field: str) -> None:
    reading = read_model({"model_type": "llama", **SIZES, field: 513, "num_experts": 1})
    assert reading.unread_sizes == (f"{field}=513",)
    assert reading.unread == f"{field}=513 is not read: the parameter count is unknown"
    assert reading.unread in reading.assumptions
    assert not reading.exact
    assert reading.interval_factor > 1


@pytest.mark.parametrize(
    "more",
    [{"hc_mult": 4}, {"loop_count": 3}, {"mlp_ratio": 8}, {"cross_attention_layers": [3, 5]}, {"aside": {"rows": 24}}],
)
def test_a_field_of_no_known_kind_that_could_be_a_size_leaves_the_count_unknown(more: dict[str, Any]) -> None:
    reading = read_model({"model_type": "llama", **SIZES, **more})
    assert not reading.exact
    assert next(iter(more)) in reading.unread


@pytest.mark.parametrize("more", [{"seed": 42}, {"max_sequence_length": 8192}, {"note": "mine"}, {"flag": True}])
def test_a_field_that_cannot_be_a_size_changes_no_verdict(more: dict[str, Any]) -> None:
    assert read_model({"model_type": "llama", **SIZES, **more}).exact


@pytest.mark.parametrize(
    ("more", "modules"),
    [({}, 3), ({"use_mtp": True, "mtp_transformer_layers": 1}, 3), ({"use_mtp": False}, 0)],
)
def test_prediction_modules_in_the_words_of_minimax_are_read(more: dict[str, Any], modules: int) -> None:
    reading = read_model({"model_type": "llama", **SIZES, "num_mtp_modules": 3, **more})
    plain = read_model({"model_type": "llama", **SIZES})
    assert reading.exact
    assert reading.shape.mtp_layers == modules
    assert reading.num_params == plain.num_params
    assert read_model({"model_type": "llama", **SIZES, "num_mtp_modules": 3, "mtp_transformer_layers": 2}).unread_sizes


def test_a_size_that_repeats_one_that_was_read_is_no_new_one() -> None:
    reading = read_model({"model_type": "llama", **SIZES, "text_hidden_size": 2048})
    assert reading.exact
    assert not reading.unread_sizes


def test_the_experts_width_of_a_kimi_file_is_read() -> None:
    """Experts between two projections, as the file's own field says; the published class has no such field."""
    config = {
        "model_type": "kimi_linear",
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 8,
        "first_k_dense_replace": 1,
        "num_attention_heads": 16,
        "q_lora_rank": 512,
        "kv_lora_rank": 256,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "num_experts": 64,
        "num_experts_per_token": 8,
        "num_shared_experts": 1,
        "moe_intermediate_size": 1024,
        "linear_attn_config": {"full_attn_layers": [4, 8], "head_dim": 128, "num_heads": 16},
        "vocab_size": 32000,
    }
    whole, latent = read_model(config), read_model(config | {"routed_expert_hidden_size": 1024})
    experts, projections = 7 * 64 * 3 * 1024 * (2048 - 1024), 7 * 2 * 2048 * 1024
    assert whole.num_params - latent.num_params == experts - projections
    assert not latent.exact


def test_a_text_of_unknown_type_inside_a_known_model_is_read_like_the_text_alone() -> None:
    text = {
        "model_type": "kimi_k2",
        **SIZES,
        "moe_intermediate_size": 256,
        "first_k_dense_replace": 1,
        "n_routed_experts": 16,
        "num_experts_per_tok": 4,
        "topk_method": "noaux_tc",
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 64,
        "qk_rope_head_dim": 32,
        "v_head_dim": 64,
    }
    inside = read_model({"model_type": "kimi_k25", "text_config": text})
    alone = read_model(text | {"tie_word_embeddings": True})
    assert inside.text_params == alone.text_params
    assert not inside.exact


def test_no_class_is_said_to_ignore_its_own_fields() -> None:
    """Class defaults as ``to_dict`` writes them into a file."""
    read = 0
    for model_type, entry in packaged_json("class_defaults.json")["model_types"].items():
        try:
            reading = read_model({**entry.get("values", {}), "model_type": model_type})
        except InputError:
            continue
        read += 1
        assert not [said for said in (*reading.notes, *reading.assumptions) if IGNORED in said], model_type
    assert read > 400


def test_published_files_are_read_as_before(shared_dir: Path) -> None:
    """None of them holds a size that no class reads."""
    named = []
    for file in sorted((shared_dir / "data" / "configs").glob("*/*/config.json")):
        try:
            reading = read_model(file)
        except InputError:
            continue
        named += [said for said in (*reading.notes, *reading.assumptions) if IGNORED in said] + [*reading.unread_sizes]
    assert named == []


def test_an_untied_head_is_no_tower(repo_dir: Path) -> None:
    config = {
        "model_type": "t5",
        "architectures": ["T5ForConditionalGeneration"],
        "d_model": 1024,
        "d_kv": 64,
        "d_ff": 2816,
        "num_layers": 24,
        "num_decoder_layers": 24,
        "num_heads": 16,
        "vocab_size": 32128,
        "feed_forward_proj": "gated-gelu",
        "tie_word_embeddings": False,
    }
    assert not [said for said in read_model(config).assumptions if "towers" in said]
    assert [said for said in read_model(config).assumptions if "output head" in said]


def test_a_named_quantization_is_said_like_an_object() -> None:
    for value in ("gptq", {"quant_method": "gptq"}):
        reading = read_model(json.loads(json.dumps({"model_type": "llama", **SIZES, "quantization_config": value})))
        assert any("parameters are counted as if not quantized" in note for note in reading.notes)


def test_files_of_2026_are_read_as_what_they_are() -> None:
    step = {
        "model_type": "step3p7", "num_hidden_layers": 45, "hidden_size": 4096, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 128896, "intermediate_size": 11264,
        "moe_intermediate_size": 1280, "share_expert_dim": 1280, "n_routed_experts": 288, "num_experts_per_tok": 8,
    }  # fmt: skip
    flat = read_fields(step, name="")
    assert int(flat.params.total) == int(flat.params.text) == 195_844_496_640
    assert not flat.exact
    inner = {
        "architectures": ["DeepseekV2ForCausalLM"], "hidden_size": 1280, "intermediate_size": 6848, "use_mla": False,
        "kv_lora_rank": None, "q_lora_rank": None, "qk_nope_head_dim": 0, "qk_rope_head_dim": 0, "v_head_dim": 0,
        "moe_intermediate_size": 896, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 10,
        "num_key_value_heads": 10, "num_experts_per_tok": 6, "num_hidden_layers": 12, "vocab_size": 129280,
        "first_k_dense_replace": 1,
    }  # fmt: skip
    nested = read_fields({"model_type": "deepseek_vl_v2", "language_config": inner, "n_routed_experts": 64}, name="")
    assert int(nested.params.total) == 2_934_734_080
    assert isinstance(nested.shape.attention, AttentionMixer)
    gated = {
        "model_type": "spark2_5", "hidden_act": "gelu", "hidden_size": 2560, "intermediate_size": 10240,
        "head_dim": 256, "num_attention_heads": 16, "num_key_value_heads": 4, "num_hidden_layers": 36,
        "vocab_size": 131072,
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "attention_bias": False,
    }  # fmt: skip
    assert int(read_fields(gated, name="").params.total) == 4_110_604_800  # "4B"
