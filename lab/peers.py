"""Other predictors of a training step, run on the same training runs as far as each can express them.

``llm-analysis`` (https://github.com/cli99/llm-analysis, Apache-2.0) comes from the package index; Calculon
(https://github.com/calculon-ai/calculon, Apache-2.0) and SimuMax (https://github.com/MooreThreads/SimuMax, Apache-2.0)
from a checkout. None of their code is copied here. Devices they lack are described to them by our datasheets.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from sartor.hardware.gpu import Gpu
from sartor.model.layer import LatentAttentionMixer
from sartor.model.training import Recompute
from sartor.operators import DType
from sartor.validate.training_rows import TrainingCase


class Refused(Exception):
    """The predictor cannot express this run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    name: str
    note: str
    """How it was run, and with which constants."""
    step_s: Callable[[TrainingCase], float]
    """Seconds of a step. Raises ``Refused``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A training run in plain numbers, the input of the other predictors."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    gated: bool
    seq_len: int
    batch: int
    tp: int
    pp: int
    dp: int
    microbatch: int
    microbatches: int
    virtual_stages: int
    zero: int
    recompute: str
    sequence_parallel: bool
    bits: int
    experts: int
    experts_per_token: int
    ep: int


RECOMPUTE = {Recompute.NONE: "none", Recompute.SELECTIVE: "selective", Recompute.FULL: "full"}


def plain_run(case: TrainingCase) -> Run:
    """The plain numbers of a run whose layers are all dense or all routed. Raises ``Refused``."""
    assert case.job is not None
    assert case.plan is not None
    job, plan, dims = case.job, case.plan, case.plan.dims
    moe, shape = job.shape.moe_ffn, job.shape
    if isinstance(shape.attention, LatentAttentionMixer):
        raise Refused("latent attention")
    if int(dims.cp) > 1:
        raise Refused("context parallelism")
    if not job.trains_weights:
        raise Refused("adapters")
    if case.no_optimizer:
        raise Refused("forward and backward alone")
    part = moe.expert if moe else shape.dense_ffn
    if part is None or shape.attention is None:
        raise Refused("no attention or feed-forward part")
    return Run(
        layers=int(shape.num_layers),
        hidden=int(shape.hidden_size),
        ffn=int(part.ffn_hidden_size),
        heads=int(shape.num_heads),
        kv_heads=int(shape.num_kv_heads),
        head_dim=int(shape.head_dim),
        vocab=int(shape.vocab_size),
        gated=bool(part.gated),
        seq_len=job.seq_len,
        batch=job.global_batch_size,
        tp=int(dims.tp),
        pp=int(dims.pp),
        dp=int(dims.dp),
        microbatch=int(plan.microbatch_size),
        microbatches=int(plan.num_microbatches),
        virtual_stages=int(plan.virtual_stages),
        zero=int(plan.zero_stage),
        recompute=RECOMPUTE[Recompute(int(plan.recompute))],
        sequence_parallel=bool(dims.sequence_parallel),
        bits=int(8 * job.recipe.dtype.bytes),
        experts=int(moe.num_experts) if moe else 1,
        experts_per_token=int(moe.experts_per_token) if moe else 1,
        ep=int(dims.ep),
    )


def peers(calculon: str = "", simumax: str = "", simumax_system: str = "") -> tuple[list[Peer], dict[str, str]]:
    """The available predictors, and the reasons why others are not."""
    found: list[Peer] = []
    missing: dict[str, str] = {}
    wanted: dict[str, tuple[str, Callable[[], list[Peer]]]] = {
        "llm-analysis": ("", _llm_analysis),
        "Calculon": (calculon, lambda: [_calculon(Path(calculon))]),
        "SimuMax": (simumax, lambda: [_simumax(Path(simumax), simumax_system)]),
    }
    for name, (path, make) in wanted.items():
        if name != "llm-analysis" and not path:
            missing[name] = f"no checkout given (--{name.lower()} PATH)"
            continue
        try:
            found += make()
        except (ImportError, OSError) as why:
            missing[name] = f"not installed: {why}"
    return found, missing


# -- llm-analysis ----------------------------------------------------------------------------------------------------


def _llm_analysis() -> list[Peer]:
    package: Any = import_module("llm_analysis.analysis")
    logging.getLogger("llm_analysis").setLevel(logging.CRITICAL)
    package.logger.setLevel(logging.CRITICAL)
    release = version("llm-analysis")
    return [
        Peer(
            name=f"llm-analysis {release}",
            note="FLOPs over half of the peak (`flops_efficiency` 0.5, what its source names for Megatron-LM)",
            step_s=lambda case: _asked_llm_analysis(package, case),
        )
    ]


def _asked_llm_analysis(package: Any, case: TrainingCase) -> float:
    assert case.cluster is not None
    run, gpu = plain_run(case), case.cluster.gpu
    if run.experts > 1:
        raise Refused("experts: its training FLOPs are a dense layer's")
    if run.bits not in (4, 8, 16):
        raise Refused("fp32")
    config = package.ModelConfig(
        name="run",
        num_layers=run.layers,
        n_head=run.heads,
        hidden_dim=run.hidden,
        vocab_size=run.vocab,
        max_seq_len=run.seq_len,
        num_key_value_heads=run.kv_heads,
        ffn_embed_dim=run.ffn,
        expansion_ratio=run.ffn / run.hidden,
    )
    narrow = package.DtypeConfig(weight_bits=run.bits, activation_bits=run.bits, embedding_bits=16)
    parallel = package.ParallelismConfig(
        tp_size=run.tp, pp_size=run.pp, dp_size=run.dp, sp_size=run.tp if run.sequence_parallel else 1
    )
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            analysis = package.LLMAnalysis(config, _gpu_config(package, gpu), narrow, parallel, flops_efficiency=0.5)
            answer = analysis.training(
                batch_size_per_gpu=run.microbatch,
                gradient_accumulation_steps=run.microbatches,
                global_batch_size=run.microbatch * run.microbatches * run.dp,
                seq_len=run.seq_len,
                activation_recomputation=package.ActivationRecomputation[run.recompute.upper()],
                ds_zero=package.DSZeRO(run.zero),
                mlp_gated_linear_units=run.gated,
            )
        except (AssertionError, ValueError, ZeroDivisionError) as why:
            raise Refused(f"it stops: {type(why).__name__} {str(why)[:60]}") from None
    return float(answer["latency_per_iter"])


def _gpu_config(package: Any, gpu: Gpu) -> Any:
    peaks = gpu.peak_flops_per_s
    wide = peaks.get(DType.BF16) or peaks.get(DType.FP16)
    if wide is None:
        raise Refused("a device without a 16-bit peak")
    config = import_module("llm_analysis.config")
    return config.GPUConfig(  # type: ignore[attr-defined]
        name=gpu.name,
        mem_per_GPU_in_GB=gpu.hbm_bytes / 1024**3,
        hbm_bandwidth_in_GB_per_sec=gpu.hbm_bytes_per_s / 1e9,
        intra_node_bandwidth_in_GB_per_sec=gpu.link_bytes_per_s / 1e9,
        intra_node_min_message_latency=gpu.link_latency_s,
        peak_fp16_TFLOPS=wide / 1e12,
        peak_i8_TFLOPS=peaks.get(DType.FP8, 2 * wide) / 1e12,
        peak_i4_TFLOPS=peaks.get(DType.NVFP4, 4 * wide) / 1e12,
    )


# -- Calculon --------------------------------------------------------------------------------------------------------

SYSTEMS = {"a100_sxm": "a100_80g", "h100_sxm": "h100_80g_nvl8"}
"""Catalogue name -> system file in Calculon's checkout (systems/*.json)."""


@contextlib.contextmanager
def _importing(folder: Path) -> Iterator[None]:
    if not folder.is_dir():
        raise FileNotFoundError(f"{folder} is not a folder")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _calculon(checkout: Path) -> Peer:
    with _importing(checkout):
        package: Any = import_module("calculon")
        llm: Any = import_module("calculon.llm")
    log = logging.getLogger("calculon")

    @cache
    def system(name: str) -> Any:
        return package.System(json.loads((checkout / "systems" / f"{name}.json").read_text()))

    def step_s(case: TrainingCase) -> float:
        assert case.cluster is not None
        run, name = plain_run(case), SYSTEMS.get(case.cluster.gpu.name)
        if name is None:
            raise Refused("a device it has no system for")
        _of_calculon(run)
        widths = {"tensor": (run.tp, 1), "pipeline": (run.pp, run.tp), "data": (run.dp, run.tp * run.pp)}
        node = case.cluster.devices_per_node
        network = {f"{axis}_par_net": int(n > 1 and n * inner > node) for axis, (n, inner) in widths.items()}
        model = llm.Llm(llm.Llm.Application(_application(run)), log)
        try:
            model.compile(system(name), llm.Llm.Execution({**_execution(run), **network}))
            model.run(system(name))
        except (AssertionError, llm.Llm.Error) as why:
            raise Refused(f"it stops: {type(why).__name__} {str(why)[:60]}") from None
        return float(model.get_stats_json(False)["total_time"])

    return Peer(name="Calculon", note="its own systems (A100 80 GB, H100) and efficiencies", step_s=step_s)


def _of_calculon(run: Run) -> None:
    if run.experts > 1:
        raise Refused("experts")
    if run.bits != 16:
        raise Refused("not 16 bits")
    if run.gated or run.kv_heads not in (1, run.heads):
        raise Refused("a gated feed-forward part or grouped-query attention")
    if run.zero > 1:
        raise Refused("ZeRO beyond stage 1")


def _application(run: Run) -> dict[str, int]:
    return {
        "hidden": run.hidden,
        "feedforward": run.ffn,
        "seq_size": run.seq_len,
        "attn_heads": run.heads,
        "attn_size": run.head_dim,
        "num_blocks": run.layers,
    }


def _execution(run: Run) -> dict[str, object]:
    splits = run.tp > 1
    return {
        "training": True,
        "num_procs": run.tp * run.pp * run.dp,
        "tensor_par": run.tp,
        "pipeline_par": run.pp,
        "data_par": run.dp,
        "batch_size": run.batch,
        "microbatch_size": run.microbatch,
        "datatype": "float16",
        "fused_activation": True,
        "attention_type": "multiquery" if run.kv_heads == 1 else "multihead",
        "activation_recompute": {"selective": "attn_only"}.get(run.recompute, run.recompute),
        "pipeline_interleaving": run.virtual_stages if run.pp > 1 else 1,
        "optimizer_sharding": run.zero == 1 and run.dp > 1,
        "tensor_par_comm_type": "rs_ag" if splits and run.sequence_parallel else "ar",
        "tensor_par_overlap": "none",
        "seq_par_ag_redo": splits and run.sequence_parallel and run.recompute != "full",
        "data_par_overlap": run.dp > 1,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
    }


# -- SimuMax ---------------------------------------------------------------------------------------------------------


def _simumax(checkout: Path, system: str) -> Peer:
    """SimuMax; ``system`` is the file of measured efficiencies that it needs for a prediction."""
    if not system or not Path(system).is_file():
        raise FileNotFoundError("no system file given (--simumax-system FILE, one of its configs/system)")
    with _importing(checkout):
        package: Any = import_module("simumax.core.perf_llm")
    device = Path(system).stem.split("_")[0]

    def step_s(case: TrainingCase) -> float:
        assert case.cluster is not None
        run = plain_run(case)
        if case.cluster.gpu.name.split("_")[0] != device:
            raise Refused("another device than its system file's")
        if run.bits == 32 or run.zero > 1:
            raise Refused("fp32, or ZeRO beyond stage 1")
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            paths = {"strategy_config": _strategy(run), "model_config": _model(run)}
            for name, body in paths.items():
                (Path(folder) / name).write_text(json.dumps(body))
            model = package.PerfLLM()
            try:
                model.configure(system_config=system, **{name: str(Path(folder) / name) for name in paths})
                model.run_estimate()
                cost = model.analysis_cost()
            except (AssertionError, ValueError, KeyError, NotImplementedError) as why:
                raise Refused(f"it stops: {type(why).__name__} {str(why)[:60]}") from None
        return _seconds(str(getattr(cost, "data", cost)["duration_time_per_iter"]))

    return Peer(name="SimuMax", note=f"its own efficiencies ({Path(system).name})", step_s=step_s)


def _model(run: Run) -> dict[str, object]:
    experts = {"expert_num": run.experts, "topk": run.experts_per_token} if run.experts > 1 else {}
    return {
        "model_type": "moe" if experts else "dense",
        "model_name": "run",
        "hidden_size": run.hidden,
        "head_num": run.heads,
        "kv_head_num": run.kv_heads,
        "head_size": run.head_dim,
        "intermediate_size": run.ffn,
        "layer_num": run.layers,
        "vocab_size": run.vocab,
        "use_swiglu": run.gated,
        **experts,
    }


def _strategy(run: Run) -> dict[str, object]:
    return {
        "seq_len": run.seq_len,
        "micro_batch_size": run.microbatch,
        "micro_batch_num": run.microbatches,
        "dtype": "bf16",
        "fp8": run.bits == 8,
        "world_size": run.tp * run.pp * run.dp,
        "tp_size": run.tp,
        "pp_size": run.pp,
        "ep_size": run.ep,
        "etp_size": 1,
        "enable_sequence_parallel": run.sequence_parallel,
        "interleaving_size": run.virtual_stages,
        "zero_state": run.zero,
        "use_flash_sdp": True,
        "use_fp32_accum_grad": True,
        "enable_recompute": run.recompute != "none",
        "mem_factor": 0.94,
    }


def _seconds(words: str) -> float:
    """Seconds from a printed time like ``12.3 ms``."""
    value, _, unit = words.strip().partition(" ")
    return float(value) * {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0}[unit or "ms"]
