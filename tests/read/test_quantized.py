"""Which modules of a quantized checkpoint are quantized, and in what."""

from __future__ import annotations

import pytest

from sartor.json_types import JsonDict
from sartor.model.workload import StoredTypes
from sartor.operators import DType, Role
from sartor.read.huggingface import read_model

DENSE: JsonDict = {
    "model_type": "llama", "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 8,
    "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 32000,
}  # fmt: skip
MIXTURE: JsonDict = {
    "model_type": "qwen3_moe", "hidden_size": 1024, "intermediate_size": 4096, "moe_intermediate_size": 512,
    "num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 32000,
    "num_experts": 16, "num_experts_per_tok": 2, "decoder_sparse_step": 1, "norm_topk_prob": True,
}  # fmt: skip
FP4 = {"num_bits": 4, "type": "float", "group_size": 16, "strategy": "tensor_group"}


def stored(model: JsonDict, **section: object) -> StoredTypes:
    found = read_model({**model, "quantization_config": section}).stored
    assert found is not None
    return found


def test_all_linear_layers_of_a_plain_fp8_checkpoint_are_narrow_and_the_head_is_not() -> None:
    found = stored(MIXTURE, quant_method="fp8", weight_block_size=[128, 128])
    assert found.dtype is DType.FP8_BLOCK
    for role in (Role.QKV, Role.ATTENTION_OUTPUT, Role.EXPERT_UP, Role.EXPERT_DOWN):
        assert found.bytes_of(role) == DType.FP8_BLOCK.bytes
    assert (found.bytes_of(Role.ROUTER), found.bytes_of(Role.LOGITS)) == (2.0, 2.0)


@pytest.mark.parametrize(
    ("words", "wide"),
    [
        ({"modules_to_not_convert": ["self_attn"]}, {Role.QKV, Role.ATTENTION_OUTPUT}),
        ({"modules_to_not_convert": ["model.layers.*.self_attn"]}, {Role.QKV, Role.ATTENTION_OUTPUT}),
        ({"ignored_layers": [f"model.layers.{i}.mlp.down_proj" for i in range(8)]}, {Role.FFN_DOWN}),
        ({"ignore": ["lm_head", "re:.*self_attn.o_proj"]}, {Role.ATTENTION_OUTPUT}),
        ({"ignore": ["re:.*mlp.gate$", "lm_head"]}, set()),
        ({"exclude_modules": ["*mlp*", "lm_head"]}, {Role.FFN_UP, Role.FFN_DOWN}),
        ({"exclude_modules": ["language_model.model.layers.*.mlp.gate_proj*", "lm_head"]}, set()),
    ],
)
def test_only_the_modules_that_a_list_names_stay_wide(words: JsonDict, wide: set[Role]) -> None:
    found = stored(DENSE, quant_method="fp8", **words)
    roles = {Role.QKV, Role.ATTENTION_OUTPUT, Role.FFN_UP, Role.FFN_DOWN}
    assert {role for role in roles if found.bytes_of(role) == 2.0} == wide


def test_single_layers_that_stay_wide_count_as_their_share() -> None:
    """Two of eight layers; a gate is half of what goes up."""
    kept = [f"model.layers.{i}.{name}" for i in (0, 7) for name in ("self_attn", "mlp.gate_proj")]
    found = stored(DENSE, quant_method="fp8", modules_to_not_convert=kept)
    assert found.bytes_of(Role.QKV) == pytest.approx((2 * 2 + 6) / 8)
    assert found.bytes_of(Role.FFN_UP) == pytest.approx(((2 * 2 + 6) / 8 + 1) / 2)
    assert found.dtype_of(Role.QKV) is DType.FP8
    assert found.bytes_of(Role.FFN_DOWN) == 1.0


def test_groups_of_compressed_tensors_have_types_of_their_own() -> None:
    eight = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {
        "group_0": {"targets": ["re:.*experts.*"], "weights": FP4, "input_activations": FP4},
        "group_1": {"targets": ["re:.*self_attn.*"], "weights": eight, "input_activations": eight},
    }
    found = stored(MIXTURE, quant_method="compressed-tensors", config_groups=groups, ignore=["lm_head"])
    assert found.dtype is DType.NVFP4
    assert found.bytes_of(Role.EXPERT_UP) == DType.NVFP4.bytes
    assert (found.bytes_of(Role.QKV), found.dtype_of(Role.QKV)) == (1.0, DType.FP8)


def test_a_head_is_narrow_only_where_the_file_says_so() -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": weights}}
    words = {"quant_method": "compressed-tensors", "config_groups": groups}
    assert stored(DENSE, **words, ignore=["lm_head"]).bytes_of(Role.LOGITS) == 2.0
    assert stored(DENSE, **words, ignore=[]).bytes_of(Role.LOGITS) == 1.0
    assert stored(DENSE, quant_method="gptq", bits=4, group_size=128).bytes_of(Role.LOGITS) == 2.0


@pytest.mark.parametrize(("group_size", "extra"), [(128, 2.5 / 128), (32, 2.5 / 32), (-1, 0.0)])
def test_groups_of_integers_have_a_scale_and_a_zero_point(group_size: int, extra: float) -> None:
    found = stored(DENSE, quant_method="awq", bits=4, group_size=group_size)
    assert found.bytes_of(Role.QKV) == pytest.approx(0.5 + extra)


def test_modelopt_lists_what_is_quantized_and_the_type_of_the_cache() -> None:
    layers = {f"model.layers.{i}.mlp.down_proj": {"quant_algo": "FP8"} for i in range(8)}
    found = stored(DENSE, quant_method="modelopt", quant_algo="MIXED_PRECISION", quantized_layers=layers)
    assert (found.bytes_of(Role.FFN_DOWN), found.bytes_of(Role.FFN_UP)) == (1.0, 2.0)
    words = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    assert stored(MIXTURE, quantization=words).cache is DType.FP8


def test_bitsandbytes_keeps_the_modules_it_is_told_to() -> None:
    found = stored(DENSE, quant_method="bitsandbytes", load_in_4bit=True, llm_int8_skip_modules=["lm_head", "q_proj"])
    assert found.bytes_of(Role.FFN_UP) == DType.INT4_WO.bytes
    assert found.bytes_of(Role.QKV) > 1.0


def test_mxfp4_is_of_experts_alone_with_and_without_its_list() -> None:
    """The list is that of OpenAI's gpt-oss."""
    names = ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]
    for words in ({}, {"modules_to_not_convert": names}):
        found = stored(MIXTURE, quant_method="mxfp4", **words)
        assert (found.bytes_of(Role.EXPERT_UP), found.bytes_of(Role.EXPERT_DOWN)) == 2 * (DType.MXFP4.bytes,)
        assert (found.bytes_of(Role.QKV), found.bytes_of(Role.ATTENTION_OUTPUT)) == (2.0, 2.0)


def test_an_expression_that_is_none_names_nothing() -> None:
    assert stored(DENSE, quant_method="fp8", ignore=["re:*("]).bytes_of(Role.QKV) == 1.0


def test_a_checkpoint_that_is_not_quantized_has_no_types_of_its_own() -> None:
    assert read_model(DENSE).stored is None


def test_quarks_schemes_are_those_of_layers_by_pattern_and_of_every_other_one() -> None:
    four, eight = {"dtype": "fp4", "qscheme": "per_group", "group_size": 32}, {"dtype": "fp8_e4m3"}
    words: JsonDict = {"quant_method": "quark", "exclude": ["re:.*self_attn.*", "lm_head"]}
    whole = {"weight": four, "input_tensors": {"dtype": "fp4", "is_dynamic": True}}
    single = {"*mlp.down_proj": {"weight": eight, "input_tensors": eight}}
    found = stored(DENSE, **words, global_quant_config=whole, layer_quant_config=single)
    assert found.dtype is DType.MXFP4
    assert found.bytes_of(Role.FFN_UP) == DType.MXFP4.bytes
    assert (found.bytes_of(Role.FFN_DOWN), found.bytes_of(Role.QKV), found.bytes_of(Role.LOGITS)) == (1.0, 2.0, 2.0)
    integers = {"weight": {"dtype": "uint4", "group_size": 128}}
    assert stored(DENSE, **words, global_quant_config=integers).dtype is DType.INT4_WO
    assert read_model({**DENSE, "quantization_config": {**words, "global_quant_config": {}}}).stored is None
