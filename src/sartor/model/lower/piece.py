"""Operators of one part of a model and their dependencies, and kernels that only move bytes.

A part is a flow: steps one after another, some of which fork. `laid_out` lists its operators in order; `wired` adds the
edges that a schedule of operators needs.

``e`` is the width of an activation (2 bytes in 16-bit training). Caches are ignored: every tensor is larger than L2 at
the sizes that matter, and the cost model knows the device's L2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from sartor.model.layer import NormKind
from sartor.model.lower.setting import Setting
from sartor.operators import MemoryBound, MemoryBoundKind, Operator, Pass, Role, kernel_role
from sartor.units import Floats, Ints


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches with the same input. The next step waits for all of ``branches`` (an empty one is a skip connection) and
    not for ``aside`` (weight gradients)."""

    branches: tuple[Flow, ...]
    aside: tuple[Flow, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """The backward of a tensor-parallel region whose input ``operator`` gathers once more. That operator waits for
    nothing; the weight gradients at the end of ``inside``, those of the region's first linear layers, wait for it."""

    operator: Operator
    inside: Flow


Step: TypeAlias = Operator | Fork | Gathered
Flow: TypeAlias = tuple[Step, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """One part of a model: ``forward``, and ``backward`` in the order gradients flow (empty unless training)."""

    forward: Flow = ()
    backward: Flow = ()

    def mapped(self, change: Callable[[Operator], Operator]) -> Piece:
        """The piece with every operator changed."""
        return Piece(forward=_mapped(self.forward, change), backward=_mapped(self.backward, change))


def chain(*pieces: Piece) -> Piece:
    """Pieces one after the other: forward in the order given, backward in the reverse."""
    return Piece(
        forward=tuple(step for piece in pieces for step in piece.forward),
        backward=tuple(step for piece in reversed(pieces) for step in piece.backward),
    )


def beside(*pieces: Piece) -> Piece:
    """Pieces with the same input that do not wait for each other; operators are in the same order as in `chain`."""
    if len(pieces) == 1:
        return pieces[0]
    return Piece(
        forward=_fork(piece.forward for piece in pieces),
        backward=_fork(piece.backward for piece in reversed(pieces)),
    )


def around(inside: Piece, total: Piece) -> Piece:
    """A residual part: ``total`` adds its input to its output, and backward the gradients of both."""
    return Piece(
        forward=(Fork((inside.forward, ())), *total.forward),
        backward=(Fork((inside.backward, ())), *total.backward) if total.backward else (),
    )


def repeat(piece: Piece, count: Ints) -> Piece:
    """The piece repeated ``count`` times."""
    if isinstance(count, int) and count == 1:
        return piece
    return piece.mapped(lambda op: replace(op, count=op.count * count))


def laid_out(flow: Flow) -> Iterator[Operator]:
    """The operators of a flow in order."""
    for step in flow:
        if isinstance(step, Fork):
            for branch in (*step.branches, *step.aside):
                yield from laid_out(branch)
        elif isinstance(step, Gathered):
            yield step.operator
            yield from laid_out(step.inside)
        else:
            yield step


def wired(flow: Flow) -> list[tuple[int, int]]:
    """Edges between the operators of `laid_out`: pairs of positions (before, after)."""
    return _Wiring().run(flow)


class _Wiring:
    """Collects edges, operator by operator."""

    def __init__(self) -> None:
        self.count = 0
        self.edges: list[tuple[int, int]] = []

    def run(self, flow: Flow) -> list[tuple[int, int]]:
        self._flow(flow, (), ())
        return self.edges

    def _flow(self, flow: Flow, start: tuple[int, ...], gathered: tuple[int, ...]) -> tuple[int, ...]:
        """Adds a flow that waits for ``start``; the weight gradients at its end wait for ``gathered`` too. Returns the
        positions that the next step waits for."""
        for i, step in enumerate(flow):
            if isinstance(step, Fork):
                start = self._fork(step, start, gathered if i == len(flow) - 1 else ())
            elif isinstance(step, Gathered):
                start = self._flow(step.inside, start, self._put(()))
            else:
                start = self._put(start)
        return start

    def _fork(self, fork: Fork, start: tuple[int, ...], gathered: tuple[int, ...]) -> tuple[int, ...]:
        ends = [self._flow(branch, start, gathered) for branch in fork.branches]
        for branch in fork.aside:
            self._flow(branch, (*start, *gathered), ())
        return tuple(dict.fromkeys(i for end in ends for i in end))

    def _put(self, after: tuple[int, ...]) -> tuple[int, ...]:
        index = self.count
        self.count += 1
        self.edges += [(before, index) for before in after]
        return (index,)


def _fork(flows: Iterator[Flow]) -> Flow:
    branches = tuple(flow for flow in flows if flow)
    return (Fork(branches),) if len(branches) > 1 else branches[0] if branches else ()


def _mapped(flow: Flow, change: Callable[[Operator], Operator]) -> Flow:
    def one(step: Step) -> Step:
        if isinstance(step, Fork):
            branches, aside = (tuple(_mapped(x, change) for x in xs) for xs in (step.branches, step.aside))
            return Fork(branches, aside)
        if isinstance(step, Gathered):
            return Gathered(change(step.operator), _mapped(step.inside, change))
        return change(step)

    return tuple(map(one, flow))


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
    role: Role | None = None,
    backward_kernels: Ints | None = None,
) -> Piece:
    """A memory-bound kernel and, when training, its backward; ``forward_bytes`` and ``backward_bytes`` per element of
    ``rows`` x ``cols``. ``flops`` is vector work per element; the backward does twice that. ``role`` defaults to that
    of the kind, ``backward_kernels`` to ``kernels``."""
    elements = 1.0 * rows * cols
    kernel_of = partial(
        MemoryBound,
        role=role or kernel_role(kind),
        kind=kind,
        rows=rows,
        cols=cols,
        kernels=kernels,
        kernel=kernel,
        dtype=setting.wide,
    )
    forward = kernel_of(name=name, bytes_moved=elements * forward_bytes, flops=elements * flops)
    if not setting.training:
        return Piece(forward=(forward,))
    backward = kernel_of(
        name=f"{name}.backward",
        bytes_moved=elements * backward_bytes,
        flops=2 * elements * flops,
        pass_=Pass.BACKWARD,
        kernels=kernels if backward_kernels is None else backward_kernels,
    )
    return Piece(forward=(forward,), backward=(backward,))


def norm(setting: Setting, rows: Ints, cols: Ints, name: str = "norm", kind: NormKind = NormKind.LAYER_NORM) -> Piece:
    """Forward reads x and writes y; backward reads x and dy and writes dx (statistics and weights are negligible).

    Unfused, PyTorch's layer norm is still one kernel, but an RMS norm is a chain: convert to fp32, square, mean, scale,
    convert back, multiply by the weight. Its backward goes through each of them and sums the branches of the weight,
    the square and the mean.
    """
    e = setting.element
    if setting.kernels.fused or kind is NormKind.LAYER_NORM:
        return streamed(setting, name, MemoryBoundKind.NORM, rows, cols, 2 * e, 3 * e, flops=5)
    widen, kernels = (2 * (e + 4), 6) if e < 4 else (0, 4)
    return streamed(
        setting,
        name,
        MemoryBoundKind.NORM,
        rows,
        cols,
        widen + 20 + 2 * e,
        widen + 44 + 5 * e,
        flops=5,
        kernels=kernels,
    )


def residual(setting: Setting, rows: Ints, cols: Ints, name: str = "residual") -> Piece:
    """Forward reads the branch and the stream and writes the sum; backward adds the branch's gradient to the stream's
    (two reads, one write). Dropout is fused with the sum and adds a one-byte mask, written forward and read backward;
    unfused, it reads and writes the branch once more."""
    e, mask = setting.element, 1.0 if setting.dropout else 0.0
    apart = 2 * e if setting.dropout and not setting.kernels.fused else 0.0
    moved = 3 * e + mask + apart
    return streamed(
        setting, name, MemoryBoundKind.RESIDUAL, rows, cols, moved, moved, flops=1, kernels=2 if apart else 1
    )


def activation(setting: Setting, rows: Ints, cols: Ints, gated: bool, name: str, function: str = "") -> Piece:
    """Forward reads one tensor (gated: gate and up) and writes one; backward reads those and the output's gradient and
    writes a gradient for each. ``cols`` is the width of the output. The bias is added on the way.

    Unfused, the activation of the gate and the multiplication with it are separate kernels (2 and 3 elements moved;
    backward 3 and 6).
    """
    e, inputs = setting.element, 2 if gated else 1
    moved, back, kernels = (inputs + 1) * e, (2 * inputs + 1) * e, 1
    if not setting.kernels.fused and (gated or function in WRITTEN_OUT):
        forward, backward, kernels = WRITTEN_OUT.get(function, (2, 3, 1))
        product = (3, 6, 1) if gated else (0, 0, 0)
        moved, back, kernels = (forward + product[0]) * e, (backward + product[1]) * e, kernels + product[2]
    kernel = "silu_and_mul" if gated else "gelu"
    return streamed(
        setting, name, MemoryBoundKind.ACTIVATION, rows, cols, moved, back, flops=8, kernels=kernels, kernel=kernel
    )


WRITTEN_OUT = {"gelu_new": (18, 28, 8), "gelu_fast": (20, 30, 9), "gelu_python": (9, 15, 4), "quick_gelu": (7, 11, 3)}
"""Activations that Hugging Face models compute with chains of elementwise kernels: (elements moved forward, backward,
kernels). ``gelu_new`` is 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))): a kernel on one tensor moves 2,
a sum or product of two tensors 3 (transformers/activations.py, recalled 2026-11-21)."""
