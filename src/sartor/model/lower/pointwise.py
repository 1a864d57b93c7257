"""Kernels that stream: what each must read and write, in elements per row, and why.

``e`` is the width of an activation (2 bytes in 16-bit training). Caches are ignored: every tensor is larger than L2 at
the sizes that matter, and the cost model knows the device's L2.
"""

from __future__ import annotations

from sartor.model.lower.setting import Piece, Setting, chain
from sartor.operators import MemoryBound, MemoryBoundKind, Pass
from sartor.units import Floats, Ints


def streamed(
    setting: Setting,
    name: str,
    kind: MemoryBoundKind,
    rows: Ints,
    cols: Ints,
    forward_bytes: Floats,
    backward_bytes: Floats = 0.0,
    flops: Floats = 0.0,
    kernels: Ints = 1,
    kernel: str = "",
) -> Piece:
    """A memory-bound kernel and, when training, its backward; ``forward_bytes`` and ``backward_bytes`` per element of
    ``rows`` x ``cols``. ``flops`` per element too: vector work, told for completeness; the backward does twice that."""
    elements = 1.0 * rows * cols
    forward = MemoryBound(
        name=name,
        kind=kind,
        rows=rows,
        cols=cols,
        bytes_moved=elements * forward_bytes,
        flops=elements * flops,
        kernels=kernels,
        kernel=kernel,
        dtype=setting.wide,
    )
    if not setting.training:
        return Piece(forward=(forward,))
    backward = MemoryBound(
        name=f"{name}.backward",
        kind=kind,
        rows=rows,
        cols=cols,
        bytes_moved=elements * backward_bytes,
        flops=2 * elements * flops,
        kernels=kernels,
        kernel=kernel,
        dtype=setting.wide,
        pass_=Pass.BACKWARD,
    )
    return Piece(forward=(forward,), backward=(backward,))


def norm(setting: Setting, rows: Ints, cols: Ints, name: str = "norm") -> Piece:
    """Forward reads x and writes y; backward reads x and dy and writes dx (statistics and weights are negligible)."""
    e = setting.element
    return streamed(setting, name, MemoryBoundKind.NORM, rows, cols, 2 * e, 3 * e, flops=5)


def residual(setting: Setting, rows: Ints, cols: Ints, name: str = "residual") -> Piece:
    """Forward reads the branch and the stream and writes the sum; backward adds the branch's gradient to the stream's
    (read two, write one). Dropout is fused with it and adds a one-byte mask, written forward and read backward."""
    e, mask = setting.element, 1.0 if setting.dropout else 0.0
    return streamed(setting, name, MemoryBoundKind.RESIDUAL, rows, cols, 3 * e + mask, 3 * e + mask, flops=1)


def activation(setting: Setting, rows: Ints, cols: Ints, gated: bool, name: str) -> Piece:
    """Forward reads one tensor (gated: gate and up) and writes one; backward reads those and the output's gradient and
    writes a gradient for each. ``cols`` is the width of the output. The bias is added on the way."""
    e, inputs = setting.element, 2 if gated else 1
    moved, back = (inputs + 1) * e, (2 * inputs + 1) * e
    kernel = "silu_and_mul" if gated else "gelu"
    return streamed(setting, name, MemoryBoundKind.ACTIVATION, rows, cols, moved, back, flops=8, kernel=kernel)


def rotary(setting: Setting, rows: Ints, cols: Ints, name: str = "rotary") -> Piece:
    """Queries and keys are rotated in place, forward and backward: read and write of the rotated part."""
    e = setting.element
    return streamed(setting, name, MemoryBoundKind.ROTARY, rows, cols, 2 * e, 2 * e, flops=3)


def softmax(setting: Setting, rows: Ints, cols: Ints, name: str = "softmax") -> Piece:
    """Fused scale, mask and softmax: reads scores, writes probabilities; backward reads probabilities and their
    gradient and writes the scores'. Dropout is an elementwise kernel after it: read, write, and a one-byte mask each
    way."""
    e = setting.element
    probabilities = streamed(setting, name, MemoryBoundKind.SOFTMAX, rows, cols, 2 * e, 3 * e, flops=5)
    if not setting.dropout:
        return probabilities
    dropped = streamed(setting, f"{name}_dropout", MemoryBoundKind.RESIDUAL, rows, cols, 2 * e + 1, 2 * e + 1, flops=1)
    return chain(probabilities, dropped)
