"""Seconds that blocks add to a pipeline stage: compute, and communication and launches that are not hidden."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sartor.model.blocks import BlockKind
from sartor.model.training import Trainer
from sartor.step.coefficients import TrainingCoefficients
from sartor.step.results import BlockTimes
from sartor.units import FloatArray, Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSeconds:
    """Seconds of one microbatch through each block [K, D]: blocks by distinct rows of plans.

    ``forward_s`` and ``backward_s`` (without weight gradients) include exposed communication and host time; ``tp_s``,
    ``ep_s``, ``cp_s`` and ``host_s`` are those parts, for forward, backward and ``wgrad_s`` together.
    """

    forward_s: FloatArray
    backward_s: FloatArray
    wgrad_s: FloatArray
    selective_s: FloatArray
    full_s: FloatArray
    tp_s: FloatArray
    ep_s: FloatArray
    cp_s: FloatArray
    host_s: FloatArray
    deviation_s: FloatArray
    """Standard deviation of their sum."""
    flops: FloatArray


def block_seconds(
    times: tuple[BlockTimes, ...],
    kinds: Sequence[BlockKind],
    trainer: Trainer,
    c: TrainingCoefficients,
    *,
    overlapped: bool = False,
) -> BlockSeconds:
    """`BlockTimes` of distinct rows with the trainer's overlap and constants applied; ``overlapped`` if the schedule
    hides the experts' all-to-all behind another microbatch."""
    each = zip(times, compute_factors(kinds, trainer, c), strict=True)
    columns = [_seen(t, trainer, replace(c, compute_factor=factor), overlapped) for t, factor in each]
    stacked = {name: np.stack([column[name] for column in columns]) for name in columns[0]}
    return BlockSeconds(**stacked)


def compute_factors(kinds: Iterable[BlockKind], trainer: Trainer, c: TrainingCoefficients) -> tuple[float, ...]:
    """Seconds of each block's compute in the step over its kernels alone.

    ``compute_factor`` applies only to layers: it stands for gaps between their many kernels and for kernels not
    modelled. The embedding and the head have a few long kernels, for which gaps do not matter.
    """
    return tuple(c.compute_factor if has_gaps(kind, trainer) else 1.0 for kind in kinds)


def has_gaps(kind: BlockKind, trainer: Trainer) -> bool:
    """Whether a block has many short kernels; in lockstep a module for later tokens is part of the head."""
    return kind is BlockKind.LAYER or (kind is BlockKind.MTP and not trainer.lockstep)


def _seen(t: BlockTimes, trainer: Trainer, c: TrainingCoefficients, overlapped: bool) -> dict[str, Floats]:
    x, net = c.compute_factor, c.network_factor
    ahead, behind = _hidden_tp(t, trainer, c)
    tp_f = net * (t.tp_forward_s - ahead) + c.sm_contention * net * ahead
    tp_b = net * (t.tp_backward_s - behind) + c.sm_contention * net * behind
    ep = net * _seen_ep(t, trainer, c, overlapped)
    exchange_f, exchange_b = ep * t.ep_forward_s + net * t.cp_forward_s, ep * t.ep_backward_s + net * t.cp_backward_s
    forward, backward = x * t.forward_s + tp_f + exchange_f, x * t.dgrad_s + tp_b + exchange_b
    wgrad = x * np.asarray(t.wgrad_s)
    host = _host_s(t.kernels, forward + backward + wgrad, trainer, c)
    busy = t.forward_s + t.dgrad_s + t.wgrad_s + t.tp_forward_s + t.tp_backward_s + t.ep_forward_s + t.ep_backward_s
    regathered = c.checkpoint_s * np.greater(t.tp_forward_s, 0)
    again = np.maximum(t.full_s - t.tp_forward_s - t.ep_forward_s - t.cp_forward_s, 0.0)
    return {
        "forward_s": forward + host / 3,
        "backward_s": backward + host * (2 / 3),
        "wgrad_s": wgrad,
        "selective_s": x * np.asarray(t.selective_s),
        "full_s": np.where(np.greater(t.full_s, 0), x * again + tp_f + exchange_f + host / 3 + regathered, 0.0),
        "tp_s": tp_f + tp_b,
        "ep_s": ep * (t.ep_forward_s + t.ep_backward_s),
        "cp_s": net * (t.cp_forward_s + t.cp_backward_s),
        "host_s": host,
        "deviation_s": t.log_sigma * busy,
        "flops": np.asarray(t.flops),
    }


def _seen_ep(t: BlockTimes, trainer: Trainer, c: TrainingCoefficients, overlapped: bool) -> Any:
    """Factor on expert-parallel seconds: the hidden share runs beside another microbatch's compute and only slows
    it."""
    if not overlapped:
        return 1.0
    exchange = np.asarray(t.ep_forward_s + t.ep_backward_s)
    compute = np.asarray(t.forward_s + t.dgrad_s + t.wgrad_s)
    hidden = c.ep_overlap_share * np.minimum(compute / np.maximum(exchange, 1e-30), 1.0)
    return 1 - hidden * (1 - c.sm_contention)


def _hidden_tp(t: BlockTimes, trainer: Trainer, c: TrainingCoefficients) -> tuple[Floats, Floats]:
    """Tensor-parallel seconds hidden in forward and in backward.

    Megatron always runs collectives that no GEMM waits for beside another GEMM; with ``tp_overlap`` it also splits
    collectives into pieces that run beside pieces of the GEMM they belong to.
    """
    always = np.asarray(t.tp_beside_s) if trainer.hides_tp_backward else np.zeros_like(t.forward_s)
    if not trainer.tp_overlap:
        return np.zeros_like(t.forward_s), c.tp_overlap_share * always
    ahead = np.minimum(t.tp_forward_s, t.products_forward_s)
    behind = np.maximum(np.minimum(t.tp_backward_s, t.products_backward_s), always)
    return c.tp_overlap_share * ahead, c.tp_overlap_share * behind


def _host_s(kernels: Floats, device_s: Floats, trainer: Trainer, c: TrainingCoefficients) -> Floats:
    """Seconds by which kernel launches exceed the device's work, block by block."""
    launch = c.graph_launch_s if trainer.cuda_graphs else c.launch_s
    return np.maximum(launch * kernels - device_s, 0.0)
