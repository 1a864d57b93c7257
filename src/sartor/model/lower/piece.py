"""Operators of one part of a model, with what waits for what.

A part is a flow: steps one after another, some of which fork. Where a graph without edges is wanted, `laid_out` lists
the operators in order; `wired` adds the edges that an operator schedule needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

from sartor.operators import Operator
from sartor.units import Ints


@dataclass(frozen=True, slots=True)
class Fork:
    """Branches that start from the same results. What follows waits for all of ``branches``, an empty one being the
    results themselves (a skip connection), and for none of ``aside`` (weight gradients)."""

    branches: tuple[Flow, ...]
    aside: tuple[Flow, ...] = ()


@dataclass(frozen=True, slots=True)
class Gathered:
    """The backward of a region whose input is gathered once more, by an operator that waits for nothing. The weight
    gradients that end ``inside``, those of the region's first linear layers, read what it gathers."""

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
    """Pieces that read the same input and don't wait for each other, listed as `chain` lists them."""
    if len(pieces) == 1:
        return pieces[0]
    return Piece(
        forward=_fork(piece.forward for piece in pieces),
        backward=_fork(piece.backward for piece in reversed(pieces)),
    )


def around(inside: Piece, total: Piece) -> Piece:
    """A residual part: ``total`` adds what enters it to what leaves it, backward the gradients of both."""
    return Piece(
        forward=(Fork((inside.forward, ())), *total.forward),
        backward=(Fork((inside.backward, ())), *total.backward) if total.backward else (),
    )


def repeat(piece: Piece, count: Ints) -> Piece:
    """The piece ``count`` times over (once more for each layer that has it)."""
    return piece.mapped(lambda op: replace(op, count=op.count * count))


def laid_out(flow: Flow) -> Iterator[Operator]:
    """The operators of a flow in the order they are listed."""
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
    """Which operators of `laid_out` wait for which: pairs of positions (before, after)."""
    return _Wiring().run(flow)


class _Wiring:
    """Edges as operators are laid one by one."""

    def __init__(self) -> None:
        self.count = 0
        self.edges: list[tuple[int, int]] = []

    def run(self, flow: Flow) -> list[tuple[int, int]]:
        self._flow(flow, (), ())
        return self.edges

    def _flow(self, flow: Flow, start: tuple[int, ...], gathered: tuple[int, ...]) -> tuple[int, ...]:
        """Lays a flow that waits for ``start``, its last weight gradients also for ``gathered``; what comes after it
        waits for the positions returned."""
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
        here = self.count
        self.count += 1
        self.edges += [(before, here) for before in after]
        return (here,)


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
