"""Roles of traced operators, by their kind and by the path of the module they ran in."""

from __future__ import annotations

from sartor.operators import Attention, Gemm, MemoryBound, Operator, Role, kernel_role

_PRODUCTS = {
    **dict.fromkeys(
        ("q", "k", "v", "qkv", "query", "key", "value", "q_proj", "k_proj", "v_proj", "qkv_proj", "c_attn", "Wqkv",
         "query_key_value"),
        Role.QKV,
    ),
    "q_a_proj": Role.Q_DOWN,
    "q_b_proj": Role.Q_UP,
    "kv_a_proj_with_mqa": Role.KV_DOWN,
    "kv_b_proj": Role.KV_UP,
    "o_proj": Role.ATTENTION_OUTPUT,
    **dict.fromkeys(
        ("up_proj", "gate_proj", "gate_up_proj", "c_fc", "fc1", "w1", "w3", "dense_h_to_4h"),
        Role.FFN_UP,
    ),
    **dict.fromkeys(("down_proj", "fc2", "w2", "dense_4h_to_h"), Role.FFN_DOWN),
    **dict.fromkeys(("lm_head", "embed_out"), Role.LOGITS),
    "router": Role.ROUTER,
}  # fmt: skip
"""By the last part of the module's path: the usual names in Hugging Face and Megatron models."""


def traced_role(operator: Operator, module: str) -> Role:
    """The role of a traced operator, if its kind or module path shows it; else ``PROJECTION``."""
    if isinstance(operator, MemoryBound):
        return kernel_role(operator.kind)
    if isinstance(operator, Attention):
        return Role.ATTENTION
    return _PRODUCTS.get(module.rpartition(".")[2], Role.PROJECTION) if isinstance(operator, Gemm) else Role.PROJECTION
