"""Logs as each trainer prints them, of runs made up here: six steps, the first one slow."""

from __future__ import annotations

import math
from datetime import datetime, timedelta

TIMES = (9.0, 2.02, 2.0, 1.98, 2.01, 1.99)
DUMP = {
    "num_layers": 32,
    "hidden_size": 4096,
    "ffn_hidden_size": 11008,
    "num_attention_heads": 32,
    "seq_length": 4096,
    "max_position_embeddings": 4096,
    "micro_batch_size": 1,
    "global_batch_size": 64,
    "tensor_model_parallel_size": 2,
    "pipeline_model_parallel_size": 2,
    "world_size": 16,
    "bf16": True,
    "fp8": None,
    "swiglu": True,
    "use_distributed_optimizer": True,
    "sequence_parallel": True,
    "overlap_grad_reduce": True,
    "add_bias_linear": False,
    "use_rotary_position_embeddings": True,
    "position_embedding_type": "rope",
    "normalization": "RMSNorm",
    "untie_embeddings_and_output_weights": True,
    "vocab_size": 32000,
    "recompute_granularity": "selective",
}


def dump(**changed: object) -> str:
    lines = [f"  {name} {'.' * (48 - len(name))} {value}" for name, value in {**DUMP, **changed}.items()]
    return "\n".join(["---- arguments ----", *lines, "---- end of arguments ----", ""])


def megatron(times: tuple[float, ...] = TIMES, batch: int = 64, memory_mb: float = 40000.0) -> str:
    lines = [
        f" [2025-03-01 10:00:{i:02d}] iteration {i:8d}/     100 | consumed samples: {i * batch:12d} | elapsed time per "
        f"iteration (ms): {1e3 * t:.1f} | throughput per GPU (TFLOP/s/GPU): {400 / max(t, 1):.1f} | lr: 1e-6 | "
        f"global batch size: {batch:5d} | lm loss: 2.0E+00 | grad norm: 6.9 | number of nan iterations:   0 |"
        for i, t in enumerate(times, start=1)
    ]
    report = (
        f"[Rank 0] (after 1 iterations) memory (MB) | allocated: 30000.0 | max allocated: {memory_mb} | "
        f"reserved: 45000.0 | max reserved: {memory_mb + 5000}"
    )
    return "\n".join([lines[0], report, *lines[1:], ""])


def torchtitan(times: tuple[float, ...] = TIMES, coloured: bool = False, tokens: int = 8192) -> str:
    """Of 8 GPUs with ``tokens`` each."""
    at, lines = 0.0, []
    for i, t in enumerate(times):
        at += 10 * t
        clock = f"2025-06-04 11:{int(at // 60):02d}:{at % 60:06.3f}".replace(".", ",")
        text = f"step: {1 + 10 * i:2d}  loss: 10.4260  memory: 30.89GiB(32.51%)  tps: {tokens / t:,.0f}  tflops: 367.39"
        colour = "\x1b[31m" if coloured else ""
        lines.append(
            f"[rank0]:[titan] {clock} - root - INFO - {colour}{text}  mfu: 37.15%{colour and chr(27) + '[39m'}"
        )
        lines.append(f"[rank1]:[titan] {clock} - root - INFO - {text}  mfu: 37.15%")
    head = "[rank0]:[titan] 2025-06-04 11:00:00,000 - root - INFO - Building 1-D device mesh with ['dp_shard'], [8]\n"
    return head + "\n".join(lines) + "\n"


LOGS = {
    "megatron": megatron(),
    "torchtitan": torchtitan(),
    "deepspeed": "train_batch_size ............................. 64\n"
    + "".join(
        f"[2023-12-20 08:26:2{i},101] [INFO] [timer.py:260:stop] epoch=0/micro_step={i}/global_step={i}, "
        f"RunningAvgSamplesPerSec=9.9, CurrSamplesPerSec={64 / t}, MemAllocated=1.75GB, MaxMemAllocated=22.6GB\n"
        for i, t in enumerate(TIMES, start=1)
    ),
    "deepspeed pipeline": "".join(
        f"steps: {i} loss: 5.9 iter time (s): {t} samples/sec: {64 / t}\n" for i, t in enumerate(TIMES, start=1)
    ),
    "litgpt": "".join(
        f"Epoch 1 | iter {16 * i} step {i} | loss train: 8.515, val: n/a | iter time: {1e3 * t:.2f} ms (step) "
        "remaining time: 909 days, 3:20:37\n"
        for i, t in enumerate(TIMES, start=1)
    ),
    "nanotron": "".join(
        f"10/17/2025 16:31:5{i} [INFO|DP=0|PP=0|TP=0]: iteration: {i} / 100 | consumed_tokens: 85.8G | "
        f"elapsed_time_per_iteration_ms: {t:.3g}K | tokens_per_sec: {131.072 / t:.3g}K | tokens_per_sec_per_gpu: "
        f"{16.384 / t:.3g}K | global_batch_size: 64 | lm_loss: 2.38 | model_tflops_per_gpu: 38.3 | "
        "hardware_tflops_per_gpu: 38.3 | grad_norm: 1.25 | cuda_max_memory_reserved: 30G\n"
        for i, t in enumerate(TIMES, start=1)
    ),
    "nemo": "".join(
        f" 0: Training epoch 0, iteration {i}/29 | lr: 5.389e-06 | global_batch_size: 64 | global_step: {i} | "
        f"max_memory_reserved: 57466159104 | max_memory_allocated: 53930270720 | train_step_timing in s: {t} | "
        "TFLOPS_per_GPU: 48.58\n"
        for i, t in enumerate(TIMES, start=1)
    ),
    "mlperf": ':::MLLOG {"namespace": "", "time_ms": 1700000000000, "event_type": "POINT_IN_TIME", '
    '"key": "global_batch_size", "value": 64, "metadata": {"lineno": 1}}\n'
    + "".join(
        f':::MLLOG {{"namespace": "", "time_ms": {1700000000000 + 9000 * i}, "event_type": "POINT_IN_TIME", '
        f'"key": "tracked_stats", "value": {{"train_step_time": {t}}}, "metadata": {{"samples_count": {64 * i}}}}}\n'
        for i, t in enumerate(TIMES, start=1)
    ),
    "maxtext": "Num_devices: 8, shape (1, 8)\nConfig param max_target_length: 8192\n"
    + "".join(
        f"completed step: {i}, seconds: {t:.3f}, TFLOP/s/device: {800 / t:.3f}, Tokens/s/device: {8192 / t:.3f}, "
        f"total_weights: 65536, loss: 9.102\n"
        for i, t in enumerate(TIMES)
    ),
    "nanogpt": "tokens per iteration will be: 491,520\n"
    + "".join(f"iter {i}: loss 4.1021, time {1e3 * t:.2f}ms, mfu {50 / t:.2f}%\n" for i, t in enumerate(TIMES)),
    "llama-factory": "".join(
        f'{{"current_steps": {10 * i}, "total_steps": 60, "loss": 1.2, "lr": 1e-05, "epoch": 0.1, "percentage": 1.0, '
        f'"elapsed_time": "0:{int(10 * sum(TIMES[:i])) // 60:02d}:{int(10 * sum(TIMES[:i])) % 60:02d}", '
        '"remaining_time": "1:00:00"}\n'
        for i in range(1, len(TIMES) + 1)
    ),
}


SAMPLE_STEP_S, CHECKPOINT_S = 1.157, 9.0
"""The step that sartor predicts for the sample's plan (Llama 3 8B, dp 8, ZeRO 3, selective recomputation, one sequence
of 8,192 tokens per H100), and a pause after every 50th."""
FLOPS_PER_TOKEN = 6 * (8_030_261_248 - 128_256 * 4096) + 12 * 32 * 32 * 128 * 8192
"""torchtitan's count (get_nparams_and_flops): without the embedding, with full attention."""


def sample_log() -> str:
    """The log ``examples/llama-3-8b/train.log``: 300 steps of torchtitan, which lose time to checkpoints."""
    start, now = datetime(2026, 11, 2, 9, 0, 0), 42.0
    head = (
        "Building 1-D device mesh with ['dp_shard'], [8]",
        "CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory",
        "Applied selective activation checkpointing to the model",
        "Applied FSDP to the model",
        "Training starts at step 1, with local batch size 1, global batch size 8, sequence length 8192, "
        "total steps 300",
    )
    lines = [(0.4 * number, text) for number, text in enumerate(head)]
    for number in range(31):
        step, seed = max(10 * number, 1), math.sin(12.9898 * number)
        seconds = (SAMPLE_STEP_S * (1 + 0.003 * seed)) if number else 22.0
        if number > 5 and number % 5 == 1:
            lines.append((now, "Saving the checkpoint (or staging if async is enabled)."))
            lines.append((now + CHECKPOINT_S, f"Finished saving the checkpoint in {CHECKPOINT_S:.2f} seconds."))
            seconds += CHECKPOINT_S / 10
        now += seconds * {0: 1, 1: 9}.get(number, 10)
        rate = 8192 / seconds
        tera = rate * FLOPS_PER_TOKEN / 1e12
        loss = 5.1 + 7.15 * math.exp(-step / 42) + 0.04 * seed
        memory = "29.40GiB(37.17%)" if number == 0 else "38.96GiB(49.25%)"
        lines.append(
            (
                now,
                f"step: {step:2d}  loss: {loss:7.4f}  memory: {memory}  tps: {rate:,.0f}  tflops: {tera:.2f}  "
                f"mfu: {tera / 9.89:.2f}%",
            )
        )
    clocks = [f"{start + timedelta(seconds=at):%Y-%m-%d %H:%M:%S,%f}"[:-3] for at, _ in lines]
    return "".join(
        f"[rank0]:[titan] {at} - root - INFO - {text}\n" for at, (_, text) in zip(clocks, lines, strict=True)
    )
