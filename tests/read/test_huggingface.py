"""Real configs against the published classes' counts, and what is said when a file leaves something open."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from read.published_counts import conformance_rows
from sartor.errors import InputError
from sartor.model.counts import count_params, layer_runs
from sartor.model.layer import AttentionMixer
from sartor.model.workload import settled_seq_len, usual_seq_len
from sartor.read.config_text import packaged_json
from sartor.read.families import model_types
from sartor.read.fields import class_defaults
from sartor.read.huggingface import read_model

GPT2: dict[str, Any] = {"model_type": "gpt2", "n_embd": 768, "n_layer": 12, "n_head": 12, "vocab_size": 50257}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "tie_word_embeddings": False,
}
LLAMA_3_8B = 8_030_261_248


def test_every_compared_column_of_every_model_equals_the_published_class_exactly(shared_dir: Path) -> None:
    rows = list(conformance_rows(shared_dir / "data/configs"))
    assert len(rows) > 250
    wrong = [f"{r.name} {r.column}: {r.ours} not {r.truth}" for r in rows if not r.agrees]
    assert wrong == []


def test_each_reading_of_a_known_model_type_is_exact(shared_dir: Path) -> None:
    folder = shared_dir / "data/configs"
    with (folder / "truth.csv").open(newline="") as file:
        for entry in csv.DictReader(file):
            if entry["status"] == "ok":
                reading = read_model(folder / entry["family"] / entry["name"] / "config.json")
                if not entry["expected_params"]:  # Llama 4 without its vision_config
                    assert not reading.exact
                    assert reading.inexact_because
                    continue
                assert reading.exact, (entry["name"], reading.inexact_because)
                assert reading.interval_factor == 1.0


OWN_CODE = {"auto_map": {"AutoModelForCausalLM": "modeling_own.OwnForCausalLM"}, "tie_word_embeddings": False}
QWEN_7B = OWN_CODE | {  # sizes: Qwen/Qwen-7B's config.json, which counts gate and up together (22016 = 2 x 11008)
    "model_type": "qwen",
    "architectures": ["QWenLMHeadModel"],
    "hidden_size": 4096,
    "intermediate_size": 22016,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "layer_norm_epsilon": 1e-06,
    "no_bias": True,
    "seq_length": 8192,
    "vocab_size": 151936,
}
CHATGLM3 = OWN_CODE | {  # sizes: zai-org/chatglm3-6b's config.json
    "model_type": "chatglm",
    "architectures": ["ChatGLMModel"],
    "add_bias_linear": False,
    "add_qkv_bias": True,
    "ffn_hidden_size": 13696,
    "hidden_size": 4096,
    "kv_channels": 128,
    "multi_query_attention": True,
    "multi_query_group_num": 2,
    "num_attention_heads": 32,
    "num_layers": 28,
    "padded_vocab_size": 65024,
    "rmsnorm": True,
}
KIMI_K2 = OWN_CODE | {  # sizes: moonshotai/Kimi-K2-Instruct's config.json
    "model_type": "kimi_k2",
    "architectures": ["DeepseekV3ForCausalLM"],
    "first_k_dense_replace": 1,
    "hidden_act": "silu",
    "hidden_size": 7168,
    "intermediate_size": 18432,
    "kv_lora_rank": 512,
    "max_position_embeddings": 131072,
    "moe_intermediate_size": 2048,
    "n_routed_experts": 384,
    "n_shared_experts": 1,
    "num_attention_heads": 64,
    "num_experts_per_tok": 8,
    "num_hidden_layers": 61,
    "num_key_value_heads": 64,
    "num_nextn_predict_layers": 0,
    "q_lora_rank": 1536,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "topk_method": "noaux_tc",
    "v_head_dim": 128,
    "vocab_size": 163840,
}


@pytest.mark.parametrize(
    ("config", "params", "said"),
    [
        (QWEN_7B, 7_721_324_544, "read as qwen2"),  # the published weights' number
        (CHATGLM3, 6_243_584_000, "output head: there is one"),  # the published weights' number
        (KIMI_K2, 1_026_408_209_408, "read as deepseek_v3"),  # published: 1 trillion, of which 32 billion active
        ({k: v for k, v in KIMI_K2.items() if k != "architectures"}, 1_026_408_209_408, "read as deepseek_v3"),
    ],
)
def test_a_model_of_own_code_is_read_by_its_fields_and_says_as_what(
    config: dict[str, object], params: int, said: str
) -> None:
    reading = read_model(config)
    assert count_params(reading.shape).total == params
    assert any(said in sentence for sentence in reading.assumptions)
    assert any("auto_map names code" in note for note in reading.notes)
    assert not reading.exact
    assert reading.interval_factor > 1


def test_own_code_without_its_sizes_is_refused_by_the_size_that_misses() -> None:
    with pytest.raises(InputError, match="hidden_size"):
        read_model({k: v for k, v in CHATGLM3.items() if k != "hidden_size"})


def test_an_image_is_as_long_as_its_patches_and_its_class_token() -> None:
    # Sizes: google/vit-base-patch16-224-in21k's config.json.
    config = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    config |= {"model_type": "vit", "image_size": 224, "patch_size": 16, "num_channels": 3}
    assert usual_seq_len(read_model(config).shape) == 14 * 14 + 1


@pytest.mark.parametrize("model_type", ["roberta", "xlm-roberta", "camembert", "mpnet", "xlm-roberta-xl"])
def test_positions_before_the_first_token_are_no_length_of_a_sequence(model_type: str) -> None:
    # Sizes: FacebookAI/roberta-base's config.json.
    config = {"hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12}
    config |= {"max_position_embeddings": 514, "pad_token_id": 1, "vocab_size": 50265}
    shape = read_model({"model_type": model_type, **config}).shape
    assert (shape.max_positions, shape.learned_positions) == (512, 514)
    assert usual_seq_len(shape) == 512
    assert settled_seq_len(514, shape)[1] == ("seq_len=514 is beyond the model's 512",)
    assert read_model({"model_type": "bert", **config}).shape.max_positions == 514


def test_a_file_with_neither_model_type_nor_architectures_is_refused(shared_dir: Path) -> None:
    with pytest.raises(InputError, match="architectures"):
        read_model(shared_dir / "data/configs/roberta/roberta-base/config.json")


def test_an_unknown_model_type_is_read_by_its_field_names_and_every_guess_is_said() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "architectures"} | {"model_type": "brand_new"}
    reading = read_model(config)
    assert count_params(reading.shape).total == LLAMA_3_8B
    assert reading.interval_factor > 1
    assert not reading.exact
    said = " ".join(reading.assumptions)
    assert "brand_new" in said
    assert "RMS norms" in said
    assert "gated" in said


def test_an_unknown_model_type_of_a_known_class_is_read_as_that_class() -> None:
    reading = read_model(LLAMA | {"model_type": "brand_new"})
    assert count_params(reading.shape).total == LLAMA_3_8B
    assert reading.interval_factor > 1
    assert any("LlamaForCausalLM" in sentence for sentence in reading.assumptions)


def test_a_missing_model_type_is_taken_from_the_class() -> None:
    reading = read_model({k: v for k, v in LLAMA.items() if k != "model_type"})
    assert count_params(reading.shape).total == LLAMA_3_8B


def test_gpt2_names_are_understood_in_an_unknown_model_type() -> None:
    fields = {"n_positions": 1024, "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5}
    known = read_model(GPT2 | fields)
    unknown = read_model(GPT2 | fields | {"model_type": "gpt_something"})
    assert count_params(unknown.shape).total == count_params(known.shape).total


def test_experts_are_understood_in_an_unknown_model_type() -> None:
    config = {k: v for k, v in LLAMA.items() if k != "architectures"}
    config |= {"model_type": "brand_new", "num_local_experts": 8, "num_experts_per_tok": 2}
    shape = read_model(config).shape
    mixtral = config | {"model_type": "mixtral"}
    assert count_params(shape).total == count_params(read_model(mixtral).shape).total


def test_the_text_part_of_an_unknown_composite_is_read_and_the_rest_said() -> None:
    reading = read_model({"model_type": "brand_new_vl", "text_config": LLAMA, "vision_config": {"hidden_size": 1024}})
    assert count_params(reading.shape).total == LLAMA_3_8B
    assert any("not counted" in sentence for sentence in reading.assumptions)
    assert reading.interval_factor > 1


def test_a_state_space_model_of_unknown_type_is_refused_rather_than_guessed() -> None:
    with pytest.raises(InputError, match="state-space"):
        read_model({"model_type": "brand_new", "hidden_size": 64, "num_hidden_layers": 2, "state_size": 16})


def test_a_default_that_is_taken_is_said() -> None:
    reading = read_model({k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads", "tie_word_embeddings")})
    assert any("tie_word_embeddings is not in the file; assumed false" in s for s in reading.assumptions)
    assert reading.exact


def test_a_complete_file_needs_no_assumption() -> None:
    assert read_model(LLAMA | {"head_dim": 128}).assumptions == ()


def test_zero_experts_weights_are_counted_as_the_class_makes_them_and_said() -> None:
    """LongCat-Flash: 256 zero experts of 2 x 2048 x 6144 in 28 layers are 180B; its makers count 560B without them."""
    sizes = {"num_layers": 28, "hidden_size": 6144, "zero_expert_num": 256, "vocab_size": 131072}
    reading = read_model({"model_type": "longcat_flash", **sizes})
    assert any("zero_expert_num=256" in s and "have 180B less" in s for s in reading.assumptions)
    assert 555e9 < count_params(reading.shape).total - 256 * 2 * 2048 * 6144 * 28 < 565e9


def test_a_null_is_not_a_missing_field(shared_dir: Path) -> None:
    """DeepSeek-V2-Lite: ``q_lora_rank`` null means none, absent means the published 1536."""
    file = shared_dir / "data/configs/deepseek_v2/DeepSeek-V2-Lite/config.json"
    config = json.loads(file.read_bytes())
    with_null = count_params(read_model(config).shape).total
    del config["q_lora_rank"]
    absent = read_model(config)
    assert count_params(absent.shape).total != with_null
    assert any("q_lora_rank is not in the file; assumed 1536" in s for s in absent.assumptions)


def test_heads_follow_the_class_in_architectures() -> None:
    bare = read_model(LLAMA | {"architectures": ["LlamaModel"]}).shape
    labelled = read_model(LLAMA | {"architectures": ["LlamaForSequenceClassification"], "num_labels": 5}).shape
    assert count_params(bare).total == LLAMA_3_8B - 128256 * 4096
    assert count_params(labelled).total == count_params(bare).total + 5 * 4096


def test_first_dense_layers_come_first() -> None:
    config = {
        "model_type": "deepseek_v3", "hidden_size": 256, "num_hidden_layers": 5, "num_attention_heads": 4,
        "vocab_size": 512, "first_k_dense_replace": 2, "n_routed_experts": 8, "num_experts_per_tok": 2,
        "moe_intermediate_size": 64, "intermediate_size": 512, "n_group": 1, "topk_group": 1,
    }  # fmt: skip
    shape = read_model(config).shape
    assert [int(run.count) for run in shape.main.runs] == [2, 3]
    assert layer_runs(shape.main)[0][0] == 2


def test_windows_alternate_as_the_class_says() -> None:
    config = LLAMA | {"model_type": "gemma2", "sliding_window": 4096, "architectures": ["Gemma2ForCausalLM"]}
    shape = read_model(config).shape
    windows = {run.positions[:3]: run.layer.mixers[0] for run in shape.main.runs}
    local, full = windows[(0, 2, 4)], windows[(1, 3, 5)]
    assert isinstance(local, AttentionMixer)
    assert isinstance(full, AttentionMixer)
    assert (local.window, full.window) == (4096, 0)


def test_published_defaults_have_a_source() -> None:
    table = packaged_json("class_defaults.json")
    assert "transformers 5." in table["source"]
    assert len(table["model_types"]) > 700
    assert class_defaults("llama").values["vocab_size"] == 32000
    assert not class_defaults("no such type").known


def test_hundreds_of_model_types_have_a_reader_and_published_defaults() -> None:
    assert len(model_types()) > 300
    assert {"llama", "gpt2", "deepseek_v3", "bert", "t5", "mamba"} <= model_types()


def test_folder_file_bytes_and_dictionary_give_the_same_shape(tmp_path: Path) -> None:
    folder = tmp_path / "some-model-1.5b"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(LLAMA))
    by_folder, by_file = read_model(folder), read_model(folder / "config.json")
    assert by_folder == by_file
    assert by_folder.shape.name == "some-model-1.5b"
    assert read_model(json.dumps(LLAMA).encode()).shape == read_model(LLAMA).shape


SMALL: dict[str, object] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 4,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000, "rms_norm_eps": 1e-5, "hidden_act": "silu",
}  # fmt: skip


def test_a_model_type_that_is_almost_another_names_it() -> None:
    assert any("lama (did you mean llama?)" in x for x in read_model({**SMALL, "model_type": "lama"}).assumptions)


def test_a_file_without_a_model_type_is_told_which_one_has_its_fields() -> None:
    with pytest.raises(InputError, match="nearest: add model_type, by its fields perhaps llama"):
        read_model({key: value for key, value in SMALL.items() if key != "model_type"})


def test_a_switch_of_no_class_that_names_a_gate_makes_the_count_inexact() -> None:
    assert read_model(SMALL).exact
    reading = read_model({**SMALL, "attn_output_gate": True})
    assert not reading.exact
    assert any("attn_output_gate=true" in reason for reason in reading.inexact_because)
    assert read_model({**SMALL, "attn_output_gate": False}).exact


@pytest.mark.parametrize("name", ["routed_expert_hidden_size", "moe_latent_size"])
def test_experts_of_a_width_of_their_own_have_two_projections_in_each_mixture_layer(name: str) -> None:
    moe = {**SMALL, "model_type": "qwen3_moe", "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 256}
    plain, narrow = read_model(moe), read_model({**moe, name: 128})
    saved = 4 * 8 * 3 * 256 * (512 - 128)
    assert int(plain.num_params) - int(narrow.num_params) == saved - 4 * 2 * 512 * 128
    assert not narrow.exact
    assert not narrow.unread_sizes
