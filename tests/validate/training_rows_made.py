"""Rows of training runs made for tests, in the columns of data/end_to_end/training.csv."""

from __future__ import annotations

from typing import Any

LLAMA = {
    "model": "Llama3-8B", "arch": "dense", "L": 32, "h": 4096, "a": 32, "kv": 8, "head_dim": 128, "d_ff": 14336,
    "gated": 1, "vocab": 128256, "tied": 0, "learned_pos": 0,
}  # fmt: skip
ROW: dict[str, Any] = {
    "id": "made-0", "source": "made", "framework": "Megatron-LM", "framework_version": "2025", "run_kind": "pretrain",
    **LLAMA, "seq": 4096, "gpu": "A100-SXM-80GB", "n_gpu": 16, "gpus_per_node": 8, "intra_node": "NVLink3 600 GB/s",
    "inter_node": "8x HDR InfiniBand 200 Gbps per node", "inter_gbps_per_gpu": 200, "dtype": "bf16", "tp": 2, "sp": 1,
    "pp": 2, "vp": 1, "dp": 4, "cp": 1, "ep": 1, "zero_stage": 1, "mbs": 1, "gbs": 64, "grad_accum": 16,
    "recompute": "none", "flash_attention": 1, "optimizer": "", "plan_known": 1, "iter_time_s": 8.0, "peak_mem_gb": "",
    "mem_kind": "", "config_hash": "a",
}  # fmt: skip


def made(**changes: Any) -> dict[str, str]:
    """The row with changes, as a CSV reader gives it: all words."""
    return {key: str(value) for key, value in (ROW | changes).items()}
