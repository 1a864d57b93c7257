"""Operators of one part of a model and the dependencies between them.

A part is a flow: steps one after another, some of which fork. `laid_out` lists its operators in order; `wired` adds the
edges that a schedule of operators needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from sartor.operators import Operator
from sartor.units import Ints


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
