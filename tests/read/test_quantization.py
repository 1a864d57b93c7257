"""The element type that a quantization_config names."""

from __future__ import annotations

from typing import Any

import pytest

from sartor.api.models import read
from sartor.operators import DType
from sartor.read.huggingface import released_type


def _packed(activations: object = None, **weights: object) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": activations}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}


@pytest.mark.parametrize(
    ("said", "dtype"),
    [
        ({"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}, DType.MXFP4),
        ({"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}, DType.FP8_BLOCK),
        ({"quant_method": "fp8", "weight_block_size": None}, DType.FP8),
        ({"quant_method": "fbgemm_fp8"}, DType.FP8),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, DType.NVFP4),
        ({"quant_method": "modelopt", "quant_algo": "FP8"}, DType.FP8),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128}, DType.INT4_WO),
        ({"quant_method": "awq", "bits": 4, "version": "gemm"}, DType.INT4_WO),
        ({"quant_method": "gptq", "bits": 8}, DType.INT8_WO),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": False}, DType.INT4_WO),
        ({"quant_method": "bitsandbytes", "load_in_8bit": True}, DType.INT8_WO),
        (_packed(num_bits=4, type="int", strategy="group"), DType.INT4_WO),
        (_packed({"num_bits": 8, "type": "int"}, num_bits=8, type="int", strategy="channel"), DType.INT8),
        (_packed({"num_bits": 8, "type": "float"}, num_bits=8, type="float", strategy="channel"), DType.FP8),
        (_packed({"num_bits": 8, "type": "float"}, num_bits=8, type="float", strategy="block"), DType.FP8_BLOCK),
        (_packed({"num_bits": 4, "type": "float"}, num_bits=4, type="float", group_size=16), DType.NVFP4),
        (_packed({"num_bits": 4, "type": "float"}, num_bits=4, type="float", group_size=32), DType.MXFP4),
        ("fp8", DType.FP8),
    ],
)
def test_a_published_form_names_its_type(said: object, dtype: DType) -> None:
    assert released_type({"quantization_config": said}) is dtype


@pytest.mark.parametrize(
    "said",
    [None, {}, [], 4, "gptq", {"quant_method": "aqlm"}, {"quant_method": ["fp8"]}, {"bits": [4]}, {"bits": 3},
     {"config_groups": {"a": None}}, {"config_groups": {"a": {"weights": 4}}}, _packed(True, num_bits="8")],
)  # fmt: skip
def test_what_names_no_known_type_is_none(said: object) -> None:
    assert released_type({"quantization_config": said}) is None


def test_weights_of_a_type_that_is_not_known_are_said_to_be_taken_in_16_bits() -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = {"model_type": "llama", "vocab_size": 1024, **sizes, "quantization_config": {"bits": 2}}
    assert any("taken in 16 bits" in sentence for sentence in read(config).assumptions)


def test_a_checkpoint_says_how_many_of_its_weights_share_a_scale() -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = {"model_type": "llama", "vocab_size": 1024, **sizes}
    packed = _packed({"num_bits": 4, "type": "float"}, num_bits=4, type="float", group_size=16)
    for said, group in ((packed, 16), ({"quant_method": "awq", "bits": 4, "group_size": 64}, 64)):
        stored = read({**config, "quantization_config": said}).stored
        assert stored is not None
        assert stored.scale_group == group
