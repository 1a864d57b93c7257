"""The questions of the replay: command lines by section, and the small files that some of them name.

A word that begins with ``examples/`` or ``tests/`` is a file of the repository, ``shared/`` one beside the checkout,
``made/`` one of `MADE`, ``configs/TYPE/VARIANT`` a line of tests/golden/configs.jsonl.
"""

from __future__ import annotations

import csv
import io
import json
from typing import Any


def questions() -> dict[str, list[str]]:
    """Section to its command lines, without ``--json``."""
    return {
        "estimate": [*_estimates_by_device(), *_lines("estimate", ESTIMATES)],
        "gemm": [*_gemms_by_device(), *_lines("gemm", GEMMS)],
        "collective": [*_collectives_by_cluster(), *_lines("collective", COLLECTIVES)],
        "lint": _lines("lint", LINTS),
        "advise": [f"{line} --top 3" for line in _lines("advise", ADVICE)],
        "plan": [f"{line} --top 3" for line in _lines("plan", PLANS)] + _lines("plan", LAUNCHES),
        "place": _lines("place", PLACEMENTS),
        "schedule": _lines("schedule", SCHEDULES),
        "design": _designs(),
        "validate": _lines("validate", VALIDATIONS),
        "catalog": _lines("catalog", CATALOGS),
        "refusal": _lines("", REFUSALS),
        "shared": _lines("", SHARED),
    }


def _lines(command: str, text: str) -> list[str]:
    return [f"{command} {line.strip()}".strip() for line in text.strip().splitlines() if line.strip()]


def _words(text: str) -> list[str]:
    return text.split()


DEVICES = _words("""
    v100_sxm t4 p100_pcie_16gb a10 a30 a40 a100_sxm a100_pcie_40gb h100_sxm h100_pcie h20 h200_sxm gh200 b200_sxm
    b300_sxm gb200 gb300 l4 l40s rtx_3090 rtx_4090 rtx_5090 rtx_pro_6000_server arc_pro_b60 mi100 mi250x mi300x mi325x
    mi355x gaudi2 gaudi3 tpu_v4 tpu_v5e tpu_v5p tpu_v6e tpu_v7 trainium1 trainium2 inferentia2
""")
"""One of every make and generation of the catalogue."""

PHASES = ("train", "prefill", "decode")
SHAPES = ("llama-3.1-8b", "gpt3-2.7b", "mixtral-8x7b", "qwen2.5-7b")


def _estimates_by_device() -> list[str]:
    """Every device in two phases, models in turn."""
    return [
        f"estimate {SHAPES[(i + j) % len(SHAPES)]} --gpu {device} --phase {PHASES[(i + j) % 3]}"
        for i, device in enumerate(DEVICES)
        for j in (0, 1)
    ]


def _gemms_by_device() -> list[str]:
    """Every device with an aligned or a ragged product."""
    sizes = ("4096 4096 4096", "2049 5120 1283", "8 14336 4096", "16384 1024 8192")
    return [f"gemm {sizes[i % len(sizes)]} --gpu {device}" for i, device in enumerate(DEVICES)]


CLUSTERS = _words("""
    dgx-1v dgx-2 dgx-a100 dgx-h100 dgx-h200 dgx-b200 gb200-nvl72 gb300-nvl72 aws-p4d aws-p5 aws-trn2 frontier summit
    selene gaudi2-node mi300x-node mi355x-node meta-roce-h100 pcie-8x-a10 pcie-8x-l40s pcie-8x-rtx4090 tpu-v4 tpu-v5e
    tpu-v5p tpu-v6e
""")

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")


def _collectives_by_cluster() -> list[str]:
    return [
        f"collective {KINDS[i % 4]} {('64e6', '1e9', '65536')[i % 3]} {(4, 16, 8, 64)[i % 4]} --cluster {cluster}"
        for i, cluster in enumerate(CLUSTERS)
    ]


def _designs() -> list[str]:
    """Small enough that every point can be evaluated."""
    size = "--num-devices 8 --global-batch-size 32 --microbatch-size 4 --executor serial"
    lines = _lines("design --model", DESIGNS)
    return [f"{line} {size}" + (" --tp 1" if "--tp" not in line else "") for line in lines]


ESTIMATES = """
    llama-3.1-8b --gpu h100 --dtype fp8
    llama-3.1-8b --gpu h200 --dtype fp8 --tp 8
    llama-3.1-8b --gpu h200 --dtype bf16 --tp 8
    llama-3.1-8b --gpu h100 --dtype fp8_block --phase prefill
    llama-3.1-8b --gpu b200 --dtype nvfp4 --phase prefill
    llama-3.1-8b --gpu b200 --dtype nvfp4 --phase decode
    llama-3.1-8b --gpu b200 --dtype mxfp8
    llama-3.1-8b --gpu mi355x --dtype mxfp4 --phase decode
    llama-3.1-8b --gpu mi300x --dtype fp8 --phase prefill
    llama-3.1-8b --gpu a100 --dtype int8 --phase prefill
    llama-3.1-8b --gpu a100 --dtype int4_wo --phase decode
    llama-3.1-8b --gpu h100 --dtype int8_wo --phase decode
    llama-3.1-8b --gpu l40s --dtype fp8 --phase decode --microbatch-size 1
    llama-3.1-8b --gpu rtx_4090 --dtype int4_wo --phase decode --microbatch-size 1
    llama-3.1-8b --gpu v100_sxm --dtype fp32
    llama-3.1-8b --gpu v100_sxm --dtype fp16 --tp 4
    llama-3.1-8b --gpu a100 --dtype tf32
    llama-3.1-8b --gpu tpu_v5p --tp 4 --phase prefill
    llama-3.1-8b --gpu tpu_v6e --dtype int8 --phase prefill
    llama-3.1-8b --gpu h100 --eager
    llama-3.1-8b --gpu h100 --attention unfused
    llama-3.1-8b --gpu h100 --eager --attention unfused --phase prefill
    llama-3.1-8b --gpu h100 --phase decode --context-len 131072
    llama-3.1-8b --gpu h100 --phase decode --context-len 1 --microbatch-size 256
    llama-3.1-8b --gpu h100 --phase prefill --context-len 8192 --seq-len 512
    llama-3.1-8b --gpu h100 --seq-len 131072 --microbatch-size 1
    llama-3.1-8b --gpu h100 --seq-len 127 --microbatch-size 3
    llama-3.1-8b --gpu h100 --tp 2 --set num_heads=24 --set num_kv_heads=6 --set hidden_size=3072
    llama-3.1-70b --gpu h100 --tp 8
    llama-3.1-70b --gpu gb200 --tp 4 --dtype nvfp4 --phase decode
    llama-3.1-405b --gpu h200 --tp 8 --dtype fp8 --phase decode --microbatch-size 64
    llama-4-scout --gpu h100 --tp 8
    llama-4-scout --gpu b200 --phase decode
    gpt2-small --gpu a100
    gpt2-xl --gpu a100 --eager --attention unfused
    gpt3-175b --gpu a100 --tp 8 --set vocab_size=51200 --microbatch-size 1
    gpt3-2.7b --gpu mi250x --attention unfused
    megatron-gpt2-54 --gpu v100_sxm --dtype fp16
    bloom-176b --gpu a100 --tp 8
    bloom-7.1b --gpu a100
    opt-13b --gpu a100 --phase decode
    falcon-7b --gpu h100
    falcon-40b --gpu h100 --tp 4 --phase prefill
    falcon-180b --gpu h100 --tp 8 --phase decode
    pythia-70m --gpu a100
    pythia-2.8b --gpu a100
    pythia-12b --gpu h100 --phase prefill
    gpt-neox-20b --gpu a100 --tp 4
    gpt-j-6b --gpu a40
    phi-2 --gpu rtx_4090
    phi-3-mini --gpu l4 --phase decode
    gemma-1-2b --gpu tpu_v5e
    gemma-2-9b --gpu tpu_v5p
    gemma-2-9b --gpu h100 --phase decode --context-len 16384
    gemma-3-27b --gpu h100 --seq-len 8192
    gemma-3-12b --gpu h100 --phase prefill --seq-len 32768
    mistral-7b-v0.1 --gpu h100 --seq-len 16384 --microbatch-size 1
    olmo-2-7b --gpu h100
    qwen2.5-0.5b --gpu rtx_3090
    qwen3-8b --gpu h100 --phase decode
    qwen3-30b-a3b --gpu h100
    qwen3-30b-a3b --gpu b200 --dtype fp8 --phase decode
    qwen3-235b-a22b --gpu h200 --tp 8 --phase prefill
    mixtral-8x7b --gpu h100 --tp 8
    mixtral-8x7b --gpu h100 --phase decode --microbatch-size 128
    mixtral-8x22b --gpu mi300x --tp 8 --dtype fp8
    deepseek-v2-lite --gpu h100
    deepseek-v2-lite --gpu a100 --phase decode
    deepseek-v3 --gpu h200 --dtype fp8_block --tp 8 --phase decode
    deepseek-v3 --gpu h20 --dtype fp8_block --tp 4
    deepseek-v3 --gpu gb200 --dtype nvfp4 --tp 8 --phase prefill
    kimi-k2 --gpu b200 --tp 8 --dtype nvfp4
    gpt-oss-20b --gpu h100 --phase decode
    gpt-oss-120b --gpu mi355x --dtype mxfp4 --phase prefill
    bert-base --gpu v100_sxm --dtype fp16
    bert-large --gpu a100
    bert-large --gpu a100 --eager --attention unfused --dtype fp32
    t5-large --gpu a100
    t5-large --gpu h100 --phase decode
    t5-11b --gpu tpu_v4 --tp 8
    t5-v1.1-xxl --gpu h100 --phase prefill
    configs/jamba/default --gpu h100 --tp 2
    configs/jamba/default --gpu h100 --phase decode
    configs/mamba/default --gpu a100
    configs/mamba2/default --gpu h100
    configs/mamba2/default --gpu h100 --phase prefill
    configs/falcon_mamba/falcon-mamba-7b --gpu h100 --phase decode
    configs/nemotron_h/nemotron-nano --gpu h100
    configs/bamba/default --gpu b200 --phase prefill
    configs/granitemoehybrid/granite4 --gpu h100
    configs/zamba2/zamba2-1.2b --gpu a100
    configs/falcon_h1/default --gpu mi300x
    configs/recurrent_gemma/recurrentgemma-2b --gpu tpu_v5p
    configs/rwkv/rwkv --gpu a100
    configs/xlstm/default --gpu h100
    configs/kimi_linear/default --gpu h100
    configs/qwen3_next/default --gpu h100 --phase decode
    configs/minimax/default --gpu h100
    configs/longcat_flash/default --gpu h200 --tp 8
    configs/glm4_moe/sized --gpu h100 --tp 8
    configs/modernbert/modernbert --gpu a100
    configs/switch_transformers/default --gpu tpu_v4
    configs/bart/bart-mnli --gpu a100
    configs/whisper/whisper-large-v3 --gpu a100
    configs/qwen2_vl/qwen2-vl-2b --gpu h100
    configs/mllama/mllama --gpu h100 --phase prefill
    configs/wav2vec2/default --gpu a100
    examples/deepseek-v3/config.json --gpu h100 --tp 8
    tests/golden/tiny_llama_graph.json --gpu h100
"""

GEMMS = """
    4096 4096 4096 --gpu h100 --dtype fp8
    4096 4096 4096 --gpu h100 --dtype fp8_block
    4096 4096 4096 --gpu h100 --dtype fp32
    4096 4096 4096 --gpu h100 --dtype tf32
    4096 4096 4096 --gpu h100 --dtype fp64
    4096 4096 4096 --gpu h100 --clock sustained
    4096 4096 4096 --gpu b200 --dtype nvfp4
    4096 4096 4096 --gpu b200 --dtype mxfp8
    4096 4096 4096 --gpu mi355x --dtype mxfp4
    4096 4096 4096 --gpu mi300x --dtype fp8
    4096 4096 4096 --gpu a100 --dtype fp16
    4096 4096 4096 --gpu a100 --dtype int8
    4096 4096 4096 --gpu l40s --dtype fp8
    16 4096 14336 --gpu a100 --dtype int4_wo
    16 4096 14336 --gpu h100 --dtype int8_wo
    1 4096 4096 --gpu h100
    1 128256 4096 --gpu h100
    2304 1600 4096 --gpu a100 --dtype fp16
    8192 50257 768 --gpu h100
    8192 50304 768 --gpu h100
    8191 50257 767 --gpu a100
    8192 4096 4096 --gpu h100 --layout NN
    8192 4096 4096 --gpu h100 --layout NT
    8192 4096 4096 --gpu a100 --layout NT --dtype fp16
    8192 4096 4096 --gpu mi250x --layout NN
    2048 2048 64 --gpu a100 --batch 128
    2048 64 2048 --gpu h100 --batch 96
    1024 1024 80 --gpu h100 --batch 32 --layout NN
    17 33 65 --gpu v100_sxm --batch 7
    128 128 131072 --gpu h100
    65536 65536 32 --gpu h100
    32768 32768 32768 --gpu b200
    7 7 7 --gpu tpu_v5p
    1000 1000 1000 --gpu tpu_v6e --dtype int8
"""

COLLECTIVES = """
    all_reduce 64e6 32 --cluster dgx-h100 --stride 8
    all_reduce 64e6 8 --cluster dgx-h100 --alone
    all_reduce 1e9 1024 --cluster dgx-h100
    all_reduce 8192 8 --cluster dgx-h100 --library custom
    all_reduce 8192 8 --cluster dgx-h100 --library trtllm
    all_reduce 1e6 4 --cluster dgx-a100 --eager
    all_reduce 1e6 8 --gpu mi300x
    all_reduce 1e8 6 --cluster summit
    all_gather 1e8 72 --cluster gb200-nvl72
    all_gather 1e8 144 --cluster gb200-nvl72 --stride 2
    reduce_scatter 3e9 256 --cluster dgx-b200 --stride 8
    all_to_all 1e8 64 --cluster tpu-v5p
    all_to_all 2.5e7 32 --cluster dgx-h100
    all_to_all 2.5e7 8 --gpu h200
    send_recv 1.6e7 2 --cluster dgx-a100 --stride 8
    send_recv 1.6e7 2 --gpu h100
    all_reduce 4 2 --cluster pcie-8x-rtx4090
"""

LINTS = """
    gpt2 --gpu h100
    gpt2-xl --gpu a100
    gpt3-2.7b --gpu a100
    gpt-neo-2.7b --gpu v100_sxm
    pythia-70m --gpu a100
    pythia-2.8b --gpu a100
    pythia-12b --gpu h100 --phase prefill
    openllama-3b --gpu a100
    phi-2 --gpu h100
    llama-2-7b --gpu h100 --phase decode
    llama-1-33b --gpu a100 --tp 8
    llama-3.1-8b --gpu h100
    llama-3.1-8b --gpu h100 --attention unfused
    llama-3.1-8b --gpu h100 --dtype fp8
    llama-3.1-8b --gpu b200 --dtype nvfp4 --phase decode
    llama-3.1-8b --gpu tpu_v5p
    llama-3.1-8b --gpu mi300x --tp 4
    llama-3.1-8b --gpu h100 --set hidden_size=4000 --set head_dim=125
    llama-3.1-8b --gpu h100 --set num_heads=30 --set num_kv_heads=10 --set head_dim=136
    llama-3.1-8b --gpu h100 --microbatch-size 1 --seq-len 128
    llama-3.1-70b --gpu h100 --tp 8 --pp 4
    llama-3.1-405b --gpu h100 --tp 8 --pp 12
    falcon-40b --gpu a100 --tp 8
    bert-large --gpu a100
    t5-large --gpu tpu_v4
    gemma-2-9b --gpu tpu_v5e
    mixtral-8x7b --gpu h100 --ep 8
    mixtral-8x7b --gpu h100 --ep 3
    qwen3-30b-a3b --gpu h100 --ep 4 --phase decode
    deepseek-v2-lite --gpu h100
    deepseek-v3 --gpu h200 --ep 64 --dtype fp8_block
    gpt-oss-20b --gpu h100
    configs/jamba/default --gpu h100 --tp 2
    configs/nemotron_h/nemotron-nano --gpu a100
    configs/whisper/whisper-large-v3 --gpu a100
"""

ADVICE = """
    gpt2-small --gpu h100
    gpt3-2.7b --gpu a100
    pythia-2.8b --gpu a100
    pythia-2.8b --gpu a100 --gpu h100
    pythia-410m --gpu v100_sxm --params-tolerance 0.03
    gpt2-xl --gpu a100 --objective decode
    llama-3.1-8b --gpu h100 --freeze vocab_size,num_layers
    llama-3.2-1b --gpu tpu_v5p
    mixtral-8x7b --gpu h100 --tp 8
    bert-large --gpu a100 --evidence 0.5
    phi-2 --gpu h100 --objective prefill
"""

PLANS = """
    llama-3.1-8b --cluster dgx-h100 --num-devices 8 --global-batch-size 64
    llama-3.1-8b --cluster dgx-h100 --num-devices 64 --global-batch-size 512 --seq-len 8192
    llama-3.1-8b --cluster dgx-h100 --num-devices 64 --global-batch-size 512 --dtype fp8
    llama-3.1-8b --cluster dgx-h100 --num-devices 64 --global-batch-size 512 --framework torchtitan
    llama-3.1-8b --cluster dgx-h100 --num-devices 64 --global-batch-size 512 --framework deepspeed
    llama-3.1-8b --cluster dgx-h100 --num-devices 16 --global-batch-size 64 --fix tp=8
    llama-3.1-8b --cluster dgx-h200 --num-devices 8 --global-batch-size 32 --fix tp=8,pp=1 --dtype fp8
    llama-3.1-8b --cluster dgx-h200 --num-devices 8 --global-batch-size 32 --fix tp=8,pp=1
    llama-3.1-8b --cluster dgx-a100 --num-devices 16 --global-batch-size 64 --attention unfused
    llama-3.1-8b --cluster dgx-b200 --num-devices 32 --global-batch-size 256 --dtype nvfp4
    llama-3.1-8b --cluster gb200-nvl72 --num-devices 72 --global-batch-size 288
    llama-3.1-8b --cluster mi300x-node --num-devices 16 --global-batch-size 64
    llama-3.1-8b --cluster tpu-v5p --num-devices 64 --global-batch-size 64 --framework maxtext
    llama-3.1-8b --cluster tpu-v6e --num-devices 64 --global-batch-size 128 --framework maxtext
    llama-3.1-8b --cluster frontier --num-devices 64 --global-batch-size 128
    llama-3.1-8b --cluster aws-trn2 --num-devices 64 --global-batch-size 128
    llama-3.1-8b --cluster pcie-8x-a100 --num-devices 8 --global-batch-size 32
    llama-3.1-8b --cluster pcie-8x-rtx4090 --num-devices 8 --global-batch-size 32
    llama-3.1-8b --cluster dgx-h100 --num-devices 64 --global-batch-size 64 --seq-len 65536 --context-parallel ring
    llama-3.1-8b --cluster dgx-h100 --num-devices 32 --global-batch-size 128 --optimizer muon
    llama-3.1-70b --cluster dgx-h100 --num-devices 128 --global-batch-size 512 --fix recompute=full,pp=4
    llama-3.1-70b --cluster dgx-h100 --num-devices 64 --global-batch-size 256 --fix tp=8,pp=4,virtual_stages=5
    llama-3.1-405b --cluster dgx-h100 --num-devices 1024 --global-batch-size 512 --fix tp=8,pp=16
    llama-3.1-70b --cluster dgx-a100 --num-devices 8 --global-batch-size 8
    gpt2-xl --cluster dgx-1v --num-devices 16 --global-batch-size 128
    gpt2-xl --cluster summit --num-devices 24 --global-batch-size 96 --fix tp=1
    gpt3-6.7b --cluster dgx-a100 --num-devices 64 --global-batch-size 512 --seq-len 2048 --microbatch-size 2
    gpt3-175b --cluster selene --num-devices 1024 --global-batch-size 1536 --seq-len 2048 --fix tp=8,pp=8
    gpt3-175b --cluster selene --num-devices 96 --global-batch-size 192 --seq-len 2048 --fix tp=8 --tokens 300B
    bert-large --cluster dgx-a100 --num-devices 8 --global-batch-size 256 --seq-len 512
    t5-large --cluster dgx-a100 --num-devices 16 --global-batch-size 128 --seq-len 512
    mixtral-8x7b --cluster dgx-h100 --num-devices 64 --global-batch-size 256
    mixtral-8x7b --cluster dgx-h100 --num-devices 64 --global-batch-size 256 --fix ep=8,tp=1 --routing-skew 1.3
    mixtral-8x7b --cluster mi300x-node --num-devices 32 --global-batch-size 128 --fix tp=1
    qwen3-30b-a3b --cluster dgx-b200 --num-devices 32 --global-batch-size 256 --fix tp=1
    deepseek-v2-lite --cluster dgx-h100 --num-devices 32 --global-batch-size 256 --fix pp=1
    deepseek-v3 --cluster dgx-h100 --num-devices 2048 --global-batch-size 8192 --fix tp=1,pp=16,ep=64
    configs/jamba/default --cluster dgx-h100 --num-devices 64 --global-batch-size 128 --fix tp=8
    configs/mamba2/default --cluster dgx-h100 --num-devices 16 --global-batch-size 64
    examples/pythia-2.8b/config.json --cluster dgx-a100 --num-devices 8 --global-batch-size 64 --fix pp=1
"""

LAUNCHES = """
    --launch made/dense.sh --cluster dgx-h100
    --launch made/dense.sh --cluster dgx-a100 --fail-on warn
    --launch made/too_big.sh --cluster dgx-h100
    --launch made/mixture.sh --cluster dgx-h100
    llama-3.1-8b --launch made/titan.toml --cluster dgx-h100 --num-devices 16
    llama-3.1-8b --launch made/zero.json --cluster dgx-h100 --num-devices 16 --seq-len 4096
"""

PLACEMENTS = """
    examples/placement/encoder_decoder.json
    examples/placement/encoder_decoder.json --terms examples/placement/nvlink_nodes.terms.json
    made/chain.json
    made/too_full.json
"""

SCHEDULES = """
    examples/schedule/decoder_backward.json
    examples/schedule/decoder_backward.json --solver greedy
    made/diamond.json
    made/diamond.json --solver milp
"""

DESIGNS = """
    made/small.json --space made/space.toml --tp 1,2 --recompute none
    made/small.json --space made/space.toml --objective throughput-per-watt --area-mm2 9.5 --recompute none
    made/small.json --space made/space.toml --hbm-gib 0.001
    made/small.json --space made/space.toml --pareto area_mm2 --recompute none
    made/small.json --space made/space.toml --shapes 2 --recompute none
    made/small.json --space made/space.toml --shapes all --params-tolerance 0.05 --recompute none
    made/small.json --model made/wide.json --space made/space.toml --shapes all --params-tolerance 0.05 --recompute none
    made/small.json --space made/space.toml --baselines --recompute none
    made/small.json --model made/wide.json --space made/space.toml --recompute none
"""

VALIDATIONS = """
    operators --data tests/golden/measured/gemm_fp16_bf16.csv --group-by gpu
    operators --data tests/golden/measured/gemm_fp32_kernels.csv --group-by gpu
    operators --data tests/golden/measured/gemm_lowbit.csv --group-by dtype
    operators --data tests/golden/measured/attention.csv --group-by gpu,phase
    operators --data tests/golden/measured/collectives.csv --group-by op
    operators --data tests/golden/measured/memory_bound.csv --group-by op
    operators --data tests/golden/measured/moe_bf16.csv --group-by gpu
    training --data made/training.csv --group-by framework,gpu
    inference --data made/inference.csv --group-by gpu,mode
"""

CATALOGS = """
    gpus
    models
    clusters
    accelerators
    spaces
    rules
"""

REFUSALS = """
    estimate llama-3.1-8b --gpu h100 --tp 7
    estimate llama-3.1-8b --gpu h100 --dtype fp5
    estimate llama-3.1-8b --gpu h1000
    estimate llama-3.1-8b --gpu h100 --set num_heads=0
    estimate no-such-model --gpu h100
    gemm 0 1 1 --gpu h100
    collective all_reduce 1e6 0 --cluster dgx-h100
    lint llama-3.1-8b --gpu h100 --fail-on often
    plan llama-3.1-8b --cluster dgx-h100 --num-devices 0 --global-batch-size 8
    plan llama-3.1-8b --cluster dgx-h100 --num-devices 8 --global-batch-size 8 --fix tp=3
    place examples/schedule/decoder_backward.json
    schedule examples/placement/encoder_decoder.json
    design --model gpt2-small --num-devices 8 --global-batch-size 32 --space no-such-space
"""

SHARED = """
    place shared/reference/placement/bert24_d1024.json
    place shared/reference/placement/gpt2xl48_d1024.json
    place shared/reference/placement/gpt3_t1248_d1024_h80_adam_rec.json
    place shared/reference/placement/gpt3_t48_d1024_h32_rec.json
    place shared/reference/placement/gpt3_t48_d1024_h40_adam_rec_bw50.json
    place shared/reference/placement/gpt3_t48_d3072.json
    place shared/reference/placement/gpt3_t8_d1024_h4_infeasible.json
    place shared/reference/placement/llama405b126_t8_d2048.json
    place shared/reference/placement/llama7b32_t1248_d128.json
    place shared/reference/placement/mgpt2_72_t1248_d1024.json
    place shared/reference/placement/opt24_d1024.json
    place shared/reference/placement/small08.json
    schedule shared/reference/scheduling/bertlarge_fwd_c8x2_w128.json
    schedule shared/reference/scheduling/bertlarge_bwd_c8x2_w128.json
    schedule shared/reference/scheduling/gpt3_t4_fwd_c8x2.json
    schedule shared/reference/scheduling/llama7b_bwd_c8x2.json
    schedule shared/reference/scheduling/real_gpt3_t8_fwd.json
    schedule shared/reference/scheduling/real_llama7b_bwd.json
    schedule shared/reference/scheduling/real_megatronbert_t4_fwd.json
    schedule shared/reference/scheduling/rand08_n10_tc2_vc2.json
    schedule shared/reference/scheduling/rand16_n14_tc4_vc3.json
    estimate shared/data/configs/qwen2_5_vl/Qwen2.5-VL --gpu h100
    validate training --data shared/data/end_to_end/training.csv --group-by framework
"""


def _table(rows: list[dict[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(key for row in rows for key in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


LLAMA = {"L": 32, "h": 4096, "a": 32, "kv": 8, "head_dim": 128, "d_ff": 14336, "gated": 1, "vocab": 128256}
RUN: dict[str, Any] = {
    "id": "made-0", "source": "made", "framework": "Megatron-LM", "framework_version": "2025", "run_kind": "pretrain",
    "model": "Llama3-8B", "arch": "dense", **LLAMA, "tied": 0, "learned_pos": 0, "seq": 4096, "gpu": "A100-SXM-80GB",
    "n_gpu": 16, "gpus_per_node": 8, "intra_node": "NVLink3 600 GB/s",
    "inter_node": "8x HDR InfiniBand 200 Gbps per node", "inter_gbps_per_gpu": 200, "dtype": "bf16", "tp": 2, "sp": 1,
    "pp": 2, "vp": 1, "dp": 4, "cp": 1, "ep": 1, "zero_stage": 1, "mbs": 1, "gbs": 64, "grad_accum": 16,
    "recompute": "none", "flash_attention": 1, "optimizer": "", "plan_known": 1, "iter_time_s": 8.0,
    "peak_mem_gb": 60.0, "mem_kind": "allocated", "config_hash": "a",
}  # fmt: skip
H100 = {"gpu": "H100-SXM-80GB", "intra_node": "NVLink4 900 GB/s", "inter_gbps_per_gpu": 400}
SHARDED = {**H100, "tp": 1, "sp": 0, "pp": 1, "dp": 16, "zero_stage": 3, "gbs": 32, "grad_accum": 2}
RUNS = [
    RUN,
    {**RUN, "id": "made-1", "recompute": "full", "iter_time_s": 10.0},
    {**RUN, "id": "made-2", "dtype": "fp16", "tp": 8, "pp": 1, "dp": 2, "iter_time_s": 9.0},
    {**RUN, **H100, "id": "made-3", "iter_time_s": 4.0},
    {**RUN, **H100, "id": "made-4", "dtype": "fp8", "iter_time_s": 3.0},
    {**RUN, **SHARDED, "id": "made-5", "framework": "torchtitan", "iter_time_s": 2.5},
    {**RUN, **SHARDED, "id": "made-6", "framework": "DeepSpeed", "iter_time_s": 2.7},
    {**RUN, **H100, "id": "made-7", "framework": "NeMo", "iter_time_s": 3.5},
]

SERVED: dict[str, Any] = {
    "mode": "decode_batch1", "model": "Llama-3.1-8B", "gpu": "A100-SXM-80GB", "weight_dtype": "bf16", "batch": 1,
    "isl": "", "osl": 200, "tp": 1, "pp": 1, "tpot_ms": 10.65, "output_tokens_per_s": "", "latency_ms": "", **LLAMA,
}  # fmt: skip
LOADED = {**SERVED, "mode": "offline_max_throughput", "tpot_ms": "", "isl": 1000, "osl": 1000}
SERVICE = [
    SERVED,
    {**SERVED, "gpu": "H100-SXM-80GB", "weight_dtype": "fp8", "tpot_ms": 4.0},
    {**SERVED, "gpu": "H100-SXM-80GB", "tp": 2, "tpot_ms": 4.5},
    {**LOADED, "output_tokens_per_s": 5000},
    {**LOADED, "gpu": "B200-SXM-180GB", "weight_dtype": "fp4", "output_tokens_per_s": 25000},
]

SMALL = """{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 4, "n_embd": 256, "n_head": 4,
"n_positions": 128, "vocab_size": 1024}
"""
WIDE = SMALL.replace("256", "320").replace(": 4,", ": 2,", 1)

SPACE = """
num_tensor_cores = [1, 4]
num_vector_cores = 2
array_rows = { from = 16, to = 32, step = 16 }
array_cols = 32
global_buffer_mib = 2
hbm_gb = [0.02, 4]
"""

_DENSE = (
    "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention"
    " --num-query-groups 8 --swiglu --vocab-size 128256 --seq-length 4096 --max-position-embeddings 8192 --bf16"
    " --use-flash-attn --micro-batch-size 1 --global-batch-size 64"
)
_MIXTURE = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --tensor-model-parallel-size 1"
_TORCHRUN = "torchrun --nnodes 2 --nproc-per-node 8 pretrain_gpt.py"

TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
seq_len = 4096
local_batch_size = 1
global_batch_size = 64
[parallelism]
data_parallel_shard_degree = 8
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
[compile]
enable = false
"""

ZERO = """{"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
"zero_optimization": {"stage": 3, "overlap_comm": true}, "optimizer": {"type": "AdamW"}, "bf16": {"enabled": true}}
"""

DIAMOND = """{"name": "diamond", "note": "made", "num_tc": 2, "num_vc": 1, "ops": [
{"id": "a", "type": "TC", "latency": 40, "intra_latency": 22}, {"id": "b", "type": "TC", "latency": 30,
"intra_latency": 18}, {"id": "c", "type": "VC", "latency": 25, "intra_latency": 25}, {"id": "d", "type": "TC",
"latency": 50, "intra_latency": 27}, {"id": "e", "type": "VC", "latency": 10, "intra_latency": 10}],
"edges": [["a", "b"], ["a", "c"], ["b", "d"], ["c", "d"], ["a", "e"]]}
"""


def _chain(max_memory_bytes: float) -> str:
    """A placement instance of six layers in a row."""
    layers = [
        {
            "id": i - 1,
            "parameterSize": 2e8 + 3e7 * i,
            "activationSize": 3e8,
            "optimalLatencyFw": 0.010 + 0.001 * i,
            "optimalLatencyBw": 0.021 + 0.002 * i,
            "isTensorParallelized": False,
        }
        for i in range(6)
    ]
    edges = [{"sourceId": i - 1, "destId": i, "communicationCost": 40_000_000} for i in range(5)]
    limits = {"maxMemoryPerDevice": max_memory_bytes, "maxDevices": 8, "bandwidth": 4e9, "mbsInBatch": 32}
    choices = {"activationRecomputation": True, "optimizerAlgorithm": "Adam", "numTransformerLayers": 4}
    fixed = {"fixedPP": 2, "fixedTMPC": 1, "fixedDP": 4}
    return json.dumps({**limits, "nodes": {"1": layers}, "edges": {"1": edges}, **choices, **fixed})


MADE = {
    "training.csv": _table(RUNS),
    "inference.csv": _table(SERVICE),
    "small.json": SMALL,
    "wide.json": WIDE,
    "space.toml": SPACE,
    "dense.sh": f"{_TORCHRUN} {_DENSE} --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2"
    " --recompute-granularity full --recompute-method uniform --recompute-num-layers 1\n",
    "too_big.sh": f"{_TORCHRUN} {_DENSE.replace('--num-layers 32', '--num-layers 160')}\n",
    "mixture.sh": f"{_TORCHRUN} {_DENSE} {_MIXTURE} --use-distributed-optimizer\n",
    "titan.toml": TITAN,
    "zero.json": ZERO,
    "diamond.json": DIAMOND,
    "chain.json": _chain(6e9),
    "too_full.json": _chain(3e8),
}
