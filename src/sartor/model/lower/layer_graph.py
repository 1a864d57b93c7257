"""One layer as a graph: which operator waits for which, forward and backward apart.

``lower`` lists what a device runs, equal operators counted; an operator schedule wants every one of them and what it
needs. The operators are those of ``lower`` (the same pieces make them); the edges follow the data:

- forward, a block reads the norm of the stream and is added to it; projections that share their input (q, k, v; gate
  and up; a shared expert beside the routed ones) are independent of each other;
- backward, a linear layer's weight gradient hangs beside the path of the input's gradient: nothing waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sartor.model.layer import AttentionMixer, DenseFfn, Layer, MoeFfn
from sartor.model.lower.attention import named_inputs
from sartor.model.lower.ffn import named_ups
from sartor.model.lower.graph import _setting, _unique
from sartor.model.lower.kernels import Kernels
from sartor.model.lower.layer import _block, _parallel
from sartor.model.lower.linear import linear_group
from sartor.model.lower.pointwise import norm, residual
from sartor.model.lower.setting import Piece, Setting
from sartor.model.lower.split import check, check_sizes
from sartor.model.lower.traced import lower_traced_layer
from sartor.model.parallel import ParallelDims
from sartor.model.workload import Workload
from sartor.operators import Collective, Operator, OperatorGraph, Pass


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGraph:
    """Operators of one layer with the edges between them; ``backward`` is empty unless training."""

    forward: OperatorGraph
    backward: OperatorGraph


def lower_layer(workload: Workload, dims: ParallelDims | None = None, run: int = 0) -> LayerGraph:
    """The graph of one layer of the main stack's ``run``-th kind on one device of a tensor-parallel group.

    The operators add up to what ``lower`` counts for that layer. Latent attention and state-space parts are chains in
    execution order, which is valid and leaves some freedom unused.

    >>> from sartor.model.zoo import load_model
    >>> graph = lower_layer(Workload(shape=load_model("gpt3-175b"))).forward
    >>> [(graph.operators[a].name, graph.operators[b].name) for a, b in graph.edges][:2]
    [('norm', 'qkv'), ('qkv', 'attention')]
    """
    dims = ParallelDims() if dims is None else dims
    check_sizes(workload, dims)
    if workload.shape.traced is not None:
        forward_graph, backward_graph = lower_traced_layer(workload.shape.traced, workload, dims, run)
        return LayerGraph(forward=forward_graph, backward=backward_graph)
    check(workload.shape, dims)
    stack = workload.shape.main
    setting = _setting(workload, dims, stack, Kernels())
    part = stack.runs[run].layer
    forward, backward = _Wiring(), _Wiring()
    blocks = _blocks(setting, part)
    for block in blocks:
        forward.block(block, backward=False)
    for block in reversed(blocks) if setting.training else ():
        backward.block(block, backward=True)
    tokens = workload.tokens
    return LayerGraph(forward=forward.graph(tokens), backward=backward.graph(tokens))


@dataclass(frozen=True, slots=True)
class _Block:
    """A part of a layer between two points of the residual stream: norms before and after, and the sum."""

    before: tuple[Piece, ...]
    piece: Piece
    after: tuple[Piece, ...]
    sum_: Piece
    siblings: frozenset[str]
    """Names of linear layers that share the block's input."""
    side: str
    """What the names of a second branch begin with: a shared expert's, or the feed-forward part of a parallel layer's;
    empty where there is one branch."""


def _blocks(setting: Setting, part: Layer) -> list[_Block]:
    """A layer's blocks in forward order, its norms dealt over them: one each before a block, a second set after."""
    inner = _parallel(setting, part) if part.parallel else [_block(setting, x) for x in (*part.mixers, *part.all_ffns)]
    pieces = [_chained(inner)] if part.parallel and inner else inner
    own = [linear_group(setting, linear.name, [linear]) for linear in part.linears]
    if not pieces:
        pieces, own = [_chained(own)], []
    pieces[-1] = _chained([pieces[-1], *own])
    norms = [norm(setting, setting.outer_tokens, setting.hidden_size) for _ in part.norms]
    count, rest = len(pieces), len(norms) % len(pieces)
    each = len(norms) // count
    siblings = _sibling_names(setting, part)
    out = []
    for piece in pieces:
        extra = 1 if rest else 0
        rest -= extra
        mine, norms = norms[: each + extra], norms[each + extra :]
        out.append(
            _Block(
                before=tuple(mine[:1]) if not part.parallel else tuple(mine),
                piece=piece,
                after=() if part.parallel else tuple(mine[1:]),
                sum_=residual(setting, setting.outer_tokens, setting.hidden_size),
                siblings=siblings,
                side=_side(part),
            )
        )
    return out


def _side(part: Layer) -> str:
    if part.parallel:
        return next((f"{ffn.name}_" for ffn in part.all_ffns if isinstance(ffn, DenseFfn)), "")
    return "shared_" if any(isinstance(ffn, MoeFfn) and ffn.shared is not None for ffn in part.all_ffns) else ""


def _sibling_names(setting: Setting, part: Layer) -> frozenset[str]:
    names: set[str] = set()
    for mixer in part.mixers:
        if isinstance(mixer, AttentionMixer):
            names |= {name for name, _ in named_inputs(setting, mixer)}
    for ffn in part.all_ffns:
        if isinstance(ffn, MoeFfn):
            names |= {"expert_gate", "expert_up"}
        dense, prefix = (ffn, ffn.name) if isinstance(ffn, DenseFfn) else (ffn.shared, "shared")
        if dense is not None:
            *ups, _ = dense.linears(setting.hidden_size)
            names |= {name for name, _ in named_ups(ups, prefix)}
    return frozenset(names)


class _Wiring:
    """Operators and edges as they are laid: ``frontier`` is what the next operator waits for."""

    def __init__(self) -> None:
        self.operators: list[Operator] = []
        self.edges: list[tuple[int, int]] = []
        self.frontier: tuple[int, ...] = ()
        self.regathered: tuple[int, ...] = ()

    def block(self, block: _Block, *, backward: bool) -> None:
        """A block from the stream to the stream. Backward it is walked from its end: norms after it come first."""
        stream = self.frontier
        inside = _side_of(block.piece, backward)
        first, last = (block.after, block.before) if backward else (block.before, block.after)
        for piece in first:
            self.chain(_side_of(piece, backward))
        self.inside(inside, block, backward)
        for piece in last:
            self.chain(_side_of(piece, backward))
        for op in _side_of(block.sum_, backward) if inside else ():
            self.put(op, (*self.frontier, *stream))

    def chain(self, operators: Sequence[Operator]) -> None:
        for op in operators:
            self.put(op, self.frontier)

    def put(self, op: Operator, after: tuple[int, ...], *, advance: bool = True) -> int:
        """One operator after others; if it does not ``advance``, what follows does not wait for it."""
        here = len(self.operators)
        self.operators.append(op)
        self.edges += [(before, here) for before in dict.fromkeys(after)]
        if advance:
            self.frontier = (here,)
        return here

    def inside(self, operators: Sequence[Operator], block: _Block, backward: bool) -> None:
        """A block's operators: what all share first and last, and in between its branches side by side."""
        self.regathered = ()
        side = [op for op in operators if op.name.startswith(block.side)] if block.side else []
        rest = [op for op in operators if op not in side]
        lead, rest, tail = _ends(rest) if side else ([], rest, [])
        joins = [op for op in side if op.name.startswith("shared_add")]
        if backward:
            self.chain(joins)
        self._branch(lead, block.siblings)
        fork = self.frontier
        self._branch([op for op in side if op not in joins], block.siblings)
        beside = self.frontier if side else ()
        self.frontier = fork
        self._branch(rest, block.siblings)
        self.frontier = tuple(dict.fromkeys((*self.frontier, *beside)))
        self._branch(tail, block.siblings)
        if not backward:
            self.chain(joins)

    def _branch(self, operators: Sequence[Operator], siblings: frozenset[str]) -> None:
        fork: tuple[int, ...] = ()
        open_ends: dict[str, tuple[int, ...]] = {}
        waiting: tuple[int, ...] = ()
        for op in operators:
            stem = _stem(op)
            if op.name.endswith(".input_all_gather"):
                self.regathered = (self.put(op, (), advance=False),)
                continue
            if stem in siblings:
                if not open_ends:
                    fork = self.frontier
                self.frontier = open_ends.get(stem, fork)
                self._linear(op, self.regathered)
                open_ends[stem] = self.frontier
                continue
            if open_ends:
                self.frontier = _joined(open_ends, fork)
                open_ends = {}
            if op.name.endswith("attn_over_value.dv"):
                waiting = (self.put(op, self.frontier, advance=False),)
            elif op.name.endswith("attn_score.dq"):
                fork = self.frontier
                waiting = (*waiting, self.put(op, fork, advance=False))
            elif op.name.endswith("attn_score.dk"):
                here = self.put(op, self.frontier)
                self.frontier, waiting = (here, *waiting), ()
            else:
                self._linear(op, ())
        if open_ends:
            self.frontier = _joined(open_ends, fork)

    def _linear(self, op: Operator, regathered: tuple[int, ...]) -> None:
        """A weight gradient waits for the gradient that its layer's input gradient read (and the gathered input); any
        other operator is next in line."""
        if op.pass_ is not Pass.WGRAD:
            self.put(op, self.frontier)
            return
        twin = op.name.removesuffix(".wgrad") + ".dgrad"
        beside = [i for i, other in enumerate(self.operators) if other.name == twin]
        reads = tuple(a for a, b in self.edges if b == beside[-1]) if beside else self.frontier
        self.put(op, (*reads, *regathered), advance=False)

    def graph(self, tokens: object) -> OperatorGraph:
        return OperatorGraph(
            operators=_unique(tuple(self.operators)),
            edges=tuple(self.edges),
            tokens=tokens,  # type: ignore[arg-type]
        )


def _side_of(piece: Piece, backward: bool) -> tuple[Operator, ...]:
    return piece.backward if backward else piece.forward


def _joined(open_ends: dict[str, tuple[int, ...]], fork: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(i for ends in open_ends.values() for i in ends)) or fork


def _stem(op: Operator) -> str:
    """The linear layer an operator belongs to: without its gradient's or cast's suffix."""
    for suffix in (".dgrad", ".wgrad", ".grad_cast", ".cast"):
        if op.name.endswith(suffix):
            return op.name.removesuffix(suffix)
    return op.name


def _ends(operators: list[Operator]) -> tuple[list[Operator], list[Operator], list[Operator]]:
    """Collectives before and after everything else, and what lies between."""
    inner = [i for i, op in enumerate(operators) if not isinstance(op, Collective)]
    if not inner:
        return operators, [], []
    return operators[: inner[0]], operators[inner[0] : inner[-1] + 1], operators[inner[-1] + 1 :]


def _chained(pieces: Sequence[Piece]) -> Piece:
    return Piece(
        forward=tuple(op for piece in pieces for op in piece.forward),
        backward=tuple(op for piece in reversed(pieces) for op in piece.backward),
    )
