"""State-space and other recurrent mixers: projections as GEMMs, convolution and scan as memory-bound kernels."""

from __future__ import annotations

from sartor.model.layer import Split, StateSpaceMixer
from sartor.model.lower.context import swapped
from sartor.model.lower.linear import linears, local_width
from sartor.model.lower.piece import Piece, chain
from sartor.model.lower.pointwise import streamed
from sartor.model.lower.setting import Setting
from sartor.operators import MemoryBoundKind, Role
from sartor.units import Ints, ceil_div


def state_space(setting: Setting, mixer: StateSpaceMixer) -> Piece:
    """Input projections, short convolution, scan, output projection on one device, without the collectives of tensor
    parallelism. Context parallelism trades sequence for channels around convolution and scan (Megatron-Core's
    context-parallel Mamba)."""
    parts = mixer.linears(setting.hidden_size)
    before = [(f"{mixer.name}_{x.fused or x.name}", x) for x in parts if x.split is not Split.ROW]
    after = [(f"{mixer.name}_{x.fused or x.name}", x) for x in parts if x.split is Split.ROW]
    inner = ceil_div(mixer.inner_size, setting.tp)
    entering: Ints = sum((local_width(x, setting.tp) for _, x in before if x.split is Split.COLUMN), 0)
    whole = swapped(setting, chain(_conv(setting, mixer), _scan(setting, mixer)), entering, inner, mixer.name)
    ins, outs = linears(setting, before, role=Role.STATE_SPACE_IN), linears(setting, after, role=Role.STATE_SPACE_OUT)
    return chain(*ins, whole, *outs)


def _conv(setting: Setting, mixer: StateSpaceMixer) -> Piece:
    """Depthwise causal convolution: reads and writes every channel once; backward reads x and dy and writes dx. A
    decoding step also reads and writes the last taps of every channel."""
    if not mixer.conv_size:
        return Piece()
    e, taps = setting.element, mixer.conv_size
    state = 2 * taps * e if setting.decoding else 0.0
    channels = ceil_div(mixer.conv_channels, setting.tp)
    name, flops = f"{mixer.name}_conv", 2.0 * taps
    return streamed(setting, name, MemoryBoundKind.CONV, setting.tokens, channels, 2 * e + state, 3 * e, flops=flops)


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
