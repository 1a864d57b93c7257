"""What is asked of one device: a model, a workload and a degree of parallelism, settled and with its assumptions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sartor.answers import Question
from sartor.api.models import Model, read
from sartor.api.words import GpuLike, device_of, own_calibration, precision_of, size_of, word_of
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.model.parallel import ParallelDims
from sartor.model.reading import ModelReading
from sartor.model.workload import AttentionKernel, Phase, Workload
from sartor.operators import DType

DEFAULT_SEQ_LEN = 2048


DEFAULT_MICROBATCH = {Phase.TRAIN: 4, Phase.PREFILL: 1, Phase.DECODE: 8}
"""Sequences at once when nobody says: 8,192 tokens per device in training, as in the sweeps of arXiv 2401.14489."""


def ask(
    model: Model,
    gpu: GpuLike = "h100_sxm",
    *,
    phase: str = "train",
    seq_len: int | None = None,
    microbatch_size: int | None = None,
    context_len: int | None = None,
    tp: int = 1,
    pp: int = 1,
    ep: int = 1,
    dtype: str | None = None,
    attention: str = "flash",
    set: Mapping[str, Any] | None = None,
    calibration: str | Path | None = None,
) -> Question:
    """Read a model and a device and settle what is asked, saying each thing that was assumed.

    ``model`` is a config.json, its folder, a zoo name or ``org/name``; ``gpu`` a catalogue name or TOML file;
    ``set`` changes fields of the shape; ``calibration`` is a file of ``sartor calibrate``. Sizes are in sequences and
    tokens. Raises ``InputError``.
    """
    reading = read(model, set)
    device = device_of(gpu)
    phase_ = word_of(Phase, "phase", phase)
    if phase_ is Phase.DECODE and reading.shape.encoder_only:
        raise InputError("phase", "decode", "an encoder-only model does not decode", "train or prefill")
    traced = reading.shape.traced
    if traced is not None:  # what is not said is as it was traced
        dtype, seq_len = dtype or traced.dtype.value, seq_len or traced.seq_len
        microbatch_size = microbatch_size or traced.microbatch_size
    _train_in_16_bits(device)
    dtype_, dtype_notes = precision_of(dtype, device)
    limit = reading.shape.max_positions or DEFAULT_SEQ_LEN
    seq = size_of("seq_len", seq_len, min(DEFAULT_SEQ_LEN, limit))
    context = size_of("context_len", context_len, seq if phase_ is Phase.DECODE else 0, least=0)
    batch = size_of("microbatch_size", microbatch_size, DEFAULT_MICROBATCH[phase_])
    workload = Workload(
        shape=reading.shape,
        phase=phase_,
        microbatch_size=batch,
        seq_len=seq,
        context_len=context,
        dtype=dtype_,
        attention_kernel=word_of(AttentionKernel, "attention", attention),
    )
    dims = ParallelDims(tp=size_of("tp", tp, 1), pp=size_of("pp", pp, 1), ep=size_of("ep", ep, 1))
    given = {"microbatch_size": microbatch_size, "seq_len": seq_len}
    if phase_ is Phase.DECODE:
        given = {"microbatch_size": microbatch_size, "context_len": context_len}
    notes = tuple(f"{name}={getattr(workload, name)} (not given)" for name, value in given.items() if value is None)
    long = () if seq <= limit or not reading.shape.max_positions else (f"seq_len={seq} is beyond the model's {limit}",)
    return Question(
        reading=reading,
        workload=workload,
        dims=dims,
        gpu=device,
        calibration=own_calibration(calibration, device),
        assumptions=(
            *reading.assumptions,
            *reading.notes,
            *dtype_notes,
            *notes,
            *long,
            *_fit_note(workload, dims, device, reading),
        ),
    )


def _train_in_16_bits(gpu: Gpu) -> None:
    """Refuses arrays too narrow for what a model computes in 16 bits whatever its linear layers are in."""
    if DType.BF16 not in gpu.peak_flops_per_s and DType.FP16 not in gpu.peak_flops_per_s and gpu.accelerator:
        widest = gpu.accelerator.dtype.value
        must = f"its arrays multiply {widest} at most, and attention, logits and gradients are computed in 16 bits"
        raise InputError("gpu", gpu.name, must, "tpu_v4_like; sartor gemm answers for single products")


def _fit_note(workload: Workload, dims: ParallelDims, gpu: Gpu, reading: ModelReading) -> tuple[str, ...]:
    """Says when the states a device must hold exceed its memory: the times are then of a share that needs more devices.

    Training holds 16 bytes per parameter (ZeRO, Rajbhandari et al. 2020, sec. 3.1: 2 + 2 + 12), inference its weights.
    """
    per_param = 16 if workload.phase is Phase.TRAIN else workload.dtype.bytes
    held = reading.num_params * per_param / (int(dims.tp) * int(dims.pp))
    if held <= gpu.hbm_bytes:
        return ()
    what = "parameters, gradients and optimizer states" if workload.phase is Phase.TRAIN else "weights"
    return (
        f"{what} take {held / 2**30:,.0f} GiB per device and {gpu.name} has {gpu.hbm_bytes / 2**30:.0f}: "
        "times are those of one tensor-parallel rank doing all layers; spread it over more devices to run it",
    )
