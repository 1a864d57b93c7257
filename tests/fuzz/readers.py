"""Every reader of a user's file: whole samples of what it reads, and the command lines that read them."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random

from fuzz.recipes import as_command, as_json, as_yaml
from launch.test_launch_reading import GPT, TITAN
from sartor.cli import run
from sartor.hardware.catalog import GPUS
from sartor.hardware.cluster_catalog import CLUSTERS
from traces.kineto_made import Made, trace
from traces.logs_made import LOGS, dump, megatron
from traces.nsight_made import export
from validate.training_rows_made import LLAMA, ROW

REPO = Path(__file__).resolve().parents[2]
GOLDEN, EXAMPLES = REPO / "tests" / "golden", REPO / "examples"
CONSTANTS = REPO / "src" / "sartor" / "cost" / "correction" / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """``files`` makes the samples; a case takes one of them and one of the ``commands``, where ``{file}`` is the
    mutated file and ``{training}`` a table of training runs."""

    files: Callable[[], list[bytes]]
    commands: tuple[str, ...]
    suffix: str = ".toml"
    make: Callable[[Random], bytes] | None = None
    """Makes a file by structure; then ``files`` has none."""


@cache
def configs() -> list[bytes]:
    lines = (GOLDEN / "configs.jsonl").read_text().splitlines()[::12]
    return [json.dumps(json.loads(line)["config"], indent=1).encode() for line in lines]


def examples(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [(EXAMPLES / name).read_bytes() for name in names]


def datasheets() -> list[bytes]:
    return [GPUS.text(name).encode() for name in ("h100", "mi300x", "rtx4090")]


def clusters() -> list[bytes]:
    pod = (EXAMPLES / "my_pod.toml").read_bytes().replace(b'"my_chip.toml"', b'"h100"')
    return [*(CLUSTERS.text(name).encode() for name in ("dgx-h100", "gb200-nvl72")), pod]


def table(**columns: object) -> bytes:
    """Three rows of a CSV, the sizes doubled from row to row."""
    rows = [
        [value * 2**i if type(value) is int and value > 8 else value for value in columns.values()] for i in (0, 1, 2)
    ]
    return "\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows), ""]).encode()


def measured() -> list[bytes]:
    of = {"gpu": "h100_sxm", "dtype": "bf16"}
    return [
        table(**of, m=512, n=512, k=4096, latency_us=40.5, flag=0),
        table(
            **of, phase="prefill", batch=1, heads=32, kv_heads=8, head_dim=128, seq_q=1024, seq_kv=1024, latency_us=90
        ),
        table(**of, op="rmsnorm", rows=4096, cols=4096, bytes=67108864, latency_us=30.0),
        table(**of, num_tokens=64, hidden_size=2048, inter_size=1024, topk=2, num_experts=8, latency_us=99.0),
        table(**of, op="all_reduce", n_gpus=8, bytes=1048576, latency_us=30.0),
        table(**of, model="gpt2", phase="prefill", part="layer", batch=1, seq=512, latency_us=500.0),
    ]


def records() -> list[bytes]:
    of = {"table": "gemm", "gpu": "h100_sxm", "dtype": "bf16", "date": "2026-01-01"}
    rows = [
        {**of, "m": 256 * m, "n": 1024 * n, "k": 2048, "latency_us": 9.5 * m * n}
        for m in range(1, 6)
        for n in (1, 2, 3)
    ]
    return ["\n".join([",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows), ""]).encode()]


def inference() -> list[bytes]:
    of = {"framework": "vLLM", "gpu": "H100-SXM-80GB", "n_gpu": 1, "weight_dtype": "bf16", "tp": 1, **LLAMA}
    return [
        table(mode="prefill_forward", **of, batch=1, isl=1024, osl=1, latency_ms=60.5),
        table(mode="offline_max_throughput", **of, batch=32, isl=128, osl=128, output_tokens_per_s=9000.5),
    ]


def training() -> list[bytes]:
    return [
        table(**ROW),
        table(**{**ROW, "framework": "torchtitan", "gpu": "H100-SXM-80GB", "zero_stage": 3, "pp": 1, "dp": 8}),
    ]


DEEPSPEED = {
    "train_batch_size": 64,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}, "reduce_bucket_size": 5e8},
    "bf16": {"enabled": True},
    "activation_checkpointing": {"partition_activations": False},
}
ACCELERATE = b"""compute_environment: LOCAL_MACHINE
distributed_type: FSDP
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_activation_checkpointing: true
mixed_precision: bf16
num_machines: 2
num_processes: 16
"""
MEGATRON_YAML = b"""MODEL_ARGS:
  --num-layers: 32
  --hidden-size: 4096
  --num-attention-heads: 32
  --seq-length: 4096
  --micro-batch-size: 1
  --global-batch-size: 64
  --tensor-model-parallel-size: 2
  --moe-layer-freq: ([0]*2+[1]*30)
  --num-experts: 8
  --bf16: true
"""
LAYOUT = """torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096
 --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1
 --global-batch-size 64 --pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et*8|(t*8|)*2t*8L'
 --multi-latent-attention --q-lora-rank 1536 --kv-lora-rank 512 --window-size 128,0 --group-query-attention
 --num-query-groups 8 --recompute-granularity full --recompute-method uniform --recompute-num-layers 2
""".replace("\n ", " ")


def calibration() -> list[bytes]:
    packaged = (CONSTANTS / "h200_sxm.bf16.toml").read_text()
    return [f'gpu = "h200_sxm"\ndtype = "bf16"\n\n{packaged}'.encode()]


SPACE = b"""num_tensor_cores = [1, 2]
num_vector_cores = { from = 1, to = 2, factor = 2 }
array_rows = { from = 96, to = 128, step = 32 }
array_cols = 128
global_buffer_mib = [8]
"""
ONE_CHIP = b"""num_tensor_cores = [1]
num_vector_cores = [1]
array_rows = 128
array_cols = 128
global_buffer_mib = [8]
"""


@cache
def studies() -> list[bytes]:
    """The study of a search of one chip."""
    job = "design --model gpt2 --num-devices 2 --global-batch-size 2 --seq-len 64"
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        space, study = Path(folder) / "space.toml", Path(folder) / "study.db"
        space.write_bytes(ONE_CHIP)
        assert run([*job.split(), "--space", str(space), "--study", str(study)]) == 0
        return [study.read_bytes()]


ESTIMATE = "estimate {file} --gpu h100"
LAUNCH = "plan --launch {file} --cluster dgx-h100 --num-devices 32"
SHAPED = "plan gpt2 --launch {file} --cluster dgx-h100 --num-devices 16 --global-batch-size 64 --seq-len 1024"


def logs() -> list[bytes]:
    """The first one has no dump of arguments, as a model must be named for it; the others are of every trainer."""
    return [text.encode() for text in (*LOGS.values(), dump() + megatron())]


@cache
def traces() -> list[bytes]:
    return [json.dumps(trace(Made(seed=1, steps=3)), indent=0)[:120000].rpartition("},")[0].encode() + b"}]}"]


@cache
def exports() -> list[bytes]:
    with tempfile.TemporaryDirectory() as folder:
        return [export([trace(Made(seed=1, steps=2))], Path(folder) / "t.sqlite").read_bytes()]


READERS: dict[str, Reader] = {
    "config": Reader(
        files=configs,
        commands=(
            ESTIMATE,
            f"{ESTIMATE} --phase decode",
            "lint {file} --gpu a100",
            ESTIMATE,
            "advise {file} --gpu h100 --top 1",
        ),
        suffix=".json",
    ),
    "gpu": Reader(files=datasheets, commands=("gemm 512 768 1024 --gpu {file}", "estimate gpt2 --gpu {file}")),
    "cluster": Reader(files=clusters, commands=("collective all_reduce 64e6 16 --cluster {file}",)),
    "accelerator": Reader(
        files=examples("my_chip.toml"), commands=("gemm 512 768 1024 --gpu {file}", "lint gpt2 --gpu {file}")
    ),
    "calibration": Reader(files=calibration, commands=("gemm 512 768 1024 --gpu h200 --calibration {file}",)),
    "constants": Reader(
        files=lambda: [(CONSTANTS / "training.toml").read_bytes()],
        commands=("validate training --data {training} --calibration {file}",),
    ),
    "space": Reader(
        files=lambda: [SPACE],
        commands=(
            "design --model gpt2 --num-devices 2 --global-batch-size 2 --seq-len 64 --time-limit 1 --space {file}",
        ),
    ),
    "study": Reader(files=studies, commands=("study {file}",), suffix=".db"),
    "placement": Reader(files=examples("placement/encoder_decoder.json"), commands=("place {file}",), suffix=".json"),
    "terms": Reader(
        files=examples("placement/nvlink_nodes.terms.json"),
        commands=(f"place {EXAMPLES}/placement/encoder_decoder.json --terms {{file}}",),
        suffix=".json",
    ),
    "schedule": Reader(
        files=examples("schedule/decoder_backward.json"), commands=("schedule {file} --solver greedy",), suffix=".json"
    ),
    "graph": Reader(
        files=lambda: [(GOLDEN / "tiny_llama_graph.json").read_bytes()], commands=(ESTIMATE,), suffix=".json"
    ),
    "measured": Reader(
        files=measured, commands=("validate operators --data {file}", "operators {file}"), suffix=".csv"
    ),
    "records": Reader(files=records, commands=("calibrate {file}",), suffix=".csv"),
    "inference": Reader(files=inference, commands=("validate inference --data {file}",), suffix=".csv"),
    "training": Reader(files=training, commands=("validate training --data {file}",), suffix=".csv"),
    **{
        f"recipe{suffix}": Reader(files=list, commands=(LAUNCH, SHAPED), suffix=suffix, make=make)
        for suffix, make in ((".yaml", as_yaml), (".json", as_json), (".sh", as_command))
    },
    "megatron": Reader(files=lambda: [GPT.encode(), LAYOUT.encode()], commands=(LAUNCH,), suffix=".sh"),
    "megatron-yaml": Reader(files=lambda: [MEGATRON_YAML], commands=(LAUNCH,), suffix=".yaml"),
    "torchtitan": Reader(files=lambda: [TITAN.encode()], commands=(LAUNCH,)),
    "deepspeed": Reader(files=lambda: [json.dumps(DEEPSPEED, indent=1).encode()], commands=(SHAPED,), suffix=".json"),
    "accelerate": Reader(files=lambda: [ACCELERATE], commands=(SHAPED,), suffix=".yaml"),
    "log": Reader(
        files=logs,
        commands=(
            "diagnose {file} --gpu h100 --model llama-3.1-8b --num-devices 8 --global-batch-size 64",
            "diagnose {file} --gpu h100",
            "compare {file} {file}",
        ),
        suffix=".log",
    ),
    "trace": Reader(files=traces, commands=("diagnose {file}", "compare {file} {file}"), suffix=".json"),
    "nsight": Reader(files=exports, commands=("diagnose {file}",), suffix=".sqlite"),
}
