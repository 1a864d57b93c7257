"""State-space and other recurrent mixers: projections as GEMMs, convolution and scan as memory-bound kernels, the scan
of Mamba-2 as GEMMs over chunks."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from sartor.model.layer import NormKind, Split, StateSpaceMixer
from sartor.model.lower.attention import swapped
from sartor.model.lower.linear import linears, local_width
from sartor.model.lower.piece import Piece, chain, norm, streamed
from sartor.model.lower.setting import Setting
from sartor.operators import DType, Gemm, MemoryBound, MemoryBoundKind, Operator, Pass, Role
from sartor.units import Floats, Ints, ceil_div


def state_space(setting: Setting, mixer: StateSpaceMixer) -> Piece:
    """Input projections, short convolution, scan, output projection on one device, without the collectives of tensor
    parallelism. Context parallelism trades sequence for channels around convolution and scan (Megatron-Core's
    context-parallel Mamba)."""
    parts = mixer.linears(setting.hidden_size)
    before = [(f"{mixer.name}_{x.fused or x.name}", x) for x in parts if x.split is not Split.ROW]
    after = [(f"{mixer.name}_{x.fused or x.name}", x) for x in parts if x.split is Split.ROW]
    inner = ceil_div(mixer.inner_size, setting.tp)
    entering: Ints = sum((local_width(x, setting.tp) for _, x in before if x.split is Split.COLUMN), 0)
    scan = _dual(setting, mixer) if mixer.chunk_size and not setting.decoding else _scan(setting, mixer)
    sequences = chain(
        _turned(setting, mixer, entering, "turn"),
        _conv(setting, mixer),
        scan,
        _turned(setting, mixer, inner, "turn_back"),
    )
    whole = swapped(setting, sequences, entering, inner, mixer.name)
    ins, outs = linears(setting, before, role=Role.STATE_SPACE_IN), linears(setting, after, role=Role.STATE_SPACE_OUT)
    return chain(*ins, whole, *outs)


def _turned(setting: Setting, mixer: StateSpaceMixer, width: Ints, name: str) -> Piece:
    """Megatron's activations are [tokens, batch, width], but Mamba-2's kernels need contiguous sequences: with several
    per microbatch, both sides are copied (Megatron-Core, ssm/mamba_mixer.py, ``_ssm_training``; read 2026-11-25)."""
    if not (setting.training and setting.kernels.strided_heads and mixer.chunk_size):
        return Piece()
    several = np.greater(setting.batch, 1)
    moved, kernels = 2 * setting.element * several, 1 * several
    kind, rows, role = MemoryBoundKind.RESIDUAL, setting.tokens, Role.SCAN
    return streamed(setting, f"{mixer.name}_{name}", kind, rows, width, moved, moved, kernels=kernels, role=role)


def _conv(setting: Setting, mixer: StateSpaceMixer) -> Piece:
    """Depthwise causal convolution: reads and writes every channel once; backward reads x and dy and writes dx;
    Mamba-2's recomputes the output first. A decoding step also reads and writes the last taps of every channel."""
    if not mixer.conv_size:
        return Piece()
    e, taps = setting.element, mixer.conv_size
    state = 2 * taps * e if setting.decoding else 0.0
    channels = ceil_div(mixer.conv_channels, setting.tp)
    name, flops, again = f"{mixer.name}_conv", 2.0 * taps, 2 * e if mixer.chunk_size else 0.0
    kind, rows = MemoryBoundKind.CONV, setting.tokens
    return streamed(setting, name, kind, rows, channels, 2 * e + state, 3 * e + again, flops=flops)


def _scan(setting: Setting, mixer: StateSpaceMixer) -> Piece:
    """Selective scan (Gu and Dao, arXiv 2312.00752, sec. 3.3.2): the state stays on chip; x, gate and step are read
    and y written per channel (4 elements), B and C (2 states) once per token. Backward reads those and dy and writes
    their gradients, recomputing the states: 9 elements. A decoding step reads and writes the fp32 state itself.
    FLOPs: 9 per channel and state (github.com/state-spaces/mamba, issue 110)."""
    e, channels, states = setting.element, ceil_div(mixer.inner_size, setting.tp), mixer.state_size
    shared = 2.0 * e * states / channels
    cache = 8.0 * states if setting.decoding else 0.0
    width: Ints = channels
    return streamed(
        setting,
        f"{mixer.name}_scan",
        MemoryBoundKind.SCAN,
        setting.tokens,
        width,
        4 * e + shared + cache,
        9 * e + 3 * shared,
        flops=9.0 * states,
    )


def _dual(setting: Setting, mixer: StateSpaceMixer) -> Piece:
    """The scan of Mamba-2 by chunks of Q tokens (state-space duality, Dao and Gu, arXiv 2405.21060, sec. 6), kernel by
    kernel as mamba_ssm runs it (ops/triton/ssd_combined.py, read 2026-11-25): scores C B' of a chunk in fp32, its state
    in fp32, states passed from chunk to chunk (read, written in 16 bits), and the output, scores and states in one
    product over Q + N. In blocks of 64 rows, three quarters of a triangle's square are computed. Then the gate (its
    operand read, the ungated output written for backward) and, in most models, a norm.

    Backward recomputes scores and states (states passed in fp32), and computes gradients of the states, of x, B and C,
    of the scores and through them again of B and C, and of the decays. Heads of a group share B and C, so they are
    columns of one GEMM; GEMMs are priced as a library's, the two passes over states by their bytes.
    """
    q, e = mixer.chunk_size, setting.element
    channels, groups = ceil_div(mixer.inner_size, setting.tp), ceil_div(mixer.num_groups, setting.tp)
    chunks: Ints = setting.batch * ceil_div(ceil_div(setting.seq_q, setting.dims.cp), q)
    n, wide, triangle = mixer.state_size, ceil_div(channels, groups), 3 * q // 4
    gemm = partial(_product, setting, mixer, groups * chunks)
    kind, flops = MemoryBoundKind.SCAN, 2.0
    passed = _kernel(setting, mixer, "pass", kind, 1.0 * chunks * n, channels)
    gate = _kernel(setting, mixer, "gate", MemoryBoundKind.ACTIVATION, 1.0 * setting.tokens, channels)
    forward: tuple[Operator, ...] = (
        gemm("scores", q, q, n, out=DType.FP32),
        gemm("states", wide, n, q, out=DType.FP32),
        passed(4 + e, flops),
        gemm("out", q, wide, n + triangle),
        gate(2 * e, 8.0),
    )
    normed = norm(setting, setting.tokens, channels, f"{mixer.name}_norm", NormKind.RMS_NORM)
    if not setting.training:
        return chain(Piece(forward=forward), normed) if mixer.gated_norm else Piece(forward=forward)
    back = partial(gemm, pass_=Pass.BACKWARD)
    backward: tuple[Operator, ...] = (
        gate(6 * e, 16.0, Pass.BACKWARD),
        back("scores_again", q, q, n, out=DType.FP32),
        back("states_again", wide, n, q, out=DType.FP32),
        passed(8, flops, Pass.BACKWARD, "pass_again"),
        back("dstates", wide, n, q, out=DType.FP32),
        passed(8 + 2 * e, 2 * flops, Pass.BACKWARD),
        back("dx", q, wide, n + triangle),
        back("db", q, n, wide, out=DType.FP32),
        back("dc", q, n, wide, out=DType.FP32),
        back("dscores", q, triangle, wide, out=DType.FP32),
        back("db_scores", q, n, q, accumulates=True),
        back("dc_scores", q, n, q, accumulates=True),
        back("ddecay", q, triangle, wide),
    )
    piece = Piece(forward=forward, backward=backward)
    return chain(piece, normed) if mixer.gated_norm else piece


def _product(
    setting: Setting,
    mixer: StateSpaceMixer,
    batch: Ints,
    name: str,
    m: Ints,
    n: Ints,
    k: Ints,
    *,
    out: DType | None = None,
    accumulates: bool = False,
    pass_: Pass = Pass.FORWARD,
) -> Gemm:
    return Gemm(
        name=f"{mixer.name}_scan.{name}",
        role=Role.SCAN,
        batch=batch,
        m=m,
        n=n,
        k=k,
        dtype=setting.wide,
        out_dtype=out,
        accumulates=accumulates,
        pass_=pass_,
    )


def _kernel(
    setting: Setting, mixer: StateSpaceMixer, name: str, kind: MemoryBoundKind, rows: Floats, cols: Ints
) -> Callable[..., MemoryBound]:
    """A kernel that streams ``rows`` x ``cols``, given bytes and FLOPs per element."""

    def of(bytes_each: float, flops: float, pass_: Pass = Pass.FORWARD, called: str = name) -> MemoryBound:
        elements = rows * cols
        return MemoryBound(
            name=f"{mixer.name}_{called}" + ("" if pass_ is Pass.FORWARD else ".backward"),
            role=Role.SCAN,
            kind=kind,
            rows=np.asarray(rows, dtype=np.int64) if np.ndim(rows) else int(rows),
            cols=cols,
            bytes_moved=elements * bytes_each,
            flops=elements * flops,
            dtype=setting.wide,
            pass_=pass_,
        )

    return of
