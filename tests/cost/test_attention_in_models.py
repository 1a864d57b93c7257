"""Decoding inside a model: its cache comes from memory, and an unknown framework is none faster than all known ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sartor.cost.correction.attention import frameworks_of
from sartor.cost.correction.calibration import ANY, load_calibration
from sartor.cost.correction.network import residual_records
from sartor.cost.gpu.attention import attention_cost
from sartor.cost.price import price
from sartor.hardware.catalog import load_gpu
from sartor.operators import Attention, OperatorGraph, Role

BATCHES, LENGTHS = np.array([1, 2, 4, 16, 64, 512])[:, None], np.array([500, 1024, 2896, 16384, 65535, 131072])
DECODE = Attention(
    name="decode",
    batch=BATCHES,
    num_heads=32,
    num_kv_heads=8,
    seq_q=1,
    seq_kv=LENGTHS,
    head_dim=128,
    v_head_dim=128,
    role=Role.ATTENTION,
)
MEASURED = sorted({record["gpu"] for record in residual_records().values() if record.get("part") == "generation"})


@pytest.mark.parametrize("name", [*MEASURED, "rtx_5090"])
@pytest.mark.parametrize("kv_heads", [2, 8, 32])
def test_decoding_in_a_model_reads_its_cache_from_memory(name: str, kv_heads: int) -> None:
    """qwen3-30b-a3b on RTX PRO 6000, 60000 tokens: 39 us for 123 MB that take 69 us at 1.79 TB/s."""
    gpu = load_gpu(name)
    known, op = load_calibration(gpu), replace(DECODE, num_kv_heads=kv_heads, count=32)
    for framework in (ANY, *frameworks_of(known)):
        time_s = price(OperatorGraph(operators=(op,)), gpu, known.with_kernels(framework)).costs[0].time_s
        assert np.all(time_s >= op.cached_bytes / gpu.hbm_bytes_per_s)


def test_a_kernel_alone_is_priced_as_tables_time_it() -> None:
    gpu = load_gpu("rtx_pro_6000_server")
    alone, known = replace(DECODE, role=None), load_calibration(gpu)
    as_measured = attention_cost(alone, gpu, known).time_s
    assert np.array_equal(price(OperatorGraph(operators=(alone,)), gpu, known).costs[0].time_s, as_measured)
    assert np.any(as_measured < alone.cached_bytes / gpu.hbm_bytes_per_s)  # from L2


def test_a_cache_of_more_than_eight_times_l2_costs_the_same_in_a_model_as_alone() -> None:
    gpu = load_gpu("h200_sxm")
    known = load_calibration(gpu)
    alone, inside = (attention_cost(DECODE, gpu, known, in_model=each).time_s for each in (False, True))
    large = DECODE.cached_bytes > 8 * gpu.l2_bytes
    assert np.any(large)
    assert np.allclose(inside[large], alone[large], rtol=0.03)


@pytest.mark.parametrize("name", MEASURED)
def test_an_unknown_framework_decodes_no_faster_or_slower_than_all_that_were_measured(name: str) -> None:
    """llama-3.1-8b on A100, 512 sequences of 1024: 2030 us, where SGLang takes 1963, vLLM 1307, TensorRT-LLM 1038."""
    gpu = load_gpu(name)
    known = load_calibration(gpu)
    unknown, *named = (attention_cost(DECODE, gpu, known.with_kernels(w)).time_s for w in (ANY, *frameworks_of(known)))
    if named:
        assert np.all(unknown >= np.min(named, axis=0) * (1 - 1e-12))
        assert np.all(unknown <= np.max(named, axis=0) * (1 + 1e-12))
