"""The operator graph of a workload on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count as numbers

from sartor.model.blocks import blocks, run_prefixes, text_stacks
from sartor.model.lower.ends import cross_entropy, embedding, final_norms, head, logits
from sartor.model.lower.kernels import Kernels, usual_narrowing
from sartor.model.lower.layer import layer
from sartor.model.lower.linear import linear_group, product
from sartor.model.lower.optimizer import adam, layer_steps, outer_params, stack_params
from sartor.model.lower.piece import Piece, chain, laid_out, repeat
from sartor.model.lower.pointwise import norm
from sartor.model.lower.setting import Setting
from sartor.model.lower.split import check, check_sizes
from sartor.model.lower.traced import lower_traced
from sartor.model.parallel import ParallelDims
from sartor.model.shape import Run, Stack, TransformerShape
from sartor.model.workload import Phase, Workload
from sartor.operators import Operator, OperatorGraph, Part, Role
from sartor.units import Ints


def lower(workload: Workload, dims: ParallelDims | None = None, kernels: Kernels | None = None) -> OperatorGraph:
    """What one device of a tensor-parallel group runs for a workload: forward, and when training backward and the
    optimizer's step, in execution order within a layer.

    Sizes are per device; ``count`` is how often an operator runs in one pass over the microbatch (the optimizer's
    rows: once per step). ``part`` tells layers from what surrounds them. Names are unique within a graph; with several
    kinds of layers they carry a prefix (``moe.router``). Vision towers are left out: the workload is text.
    ``pp`` and ``dp`` change nothing here: a plan places layers and shares gradients. ``kernels``: a trainer's habits.

    Raises ``InputError`` when a single (not array) size does not divide by ``tp`` or ``ep``; for arrays see
    ``feasible``.

    >>> from sartor.model.zoo import load_model
    >>> graph = lower(Workload(shape=load_model("llama-3-8b"), phase=Phase.DECODE, context_len=4096))
    >>> [op.name for op in graph.operators][:3]
    ['embedding', 'norm', 'qkv']
    """
    dims = ParallelDims() if dims is None else dims
    kernels = Kernels() if kernels is None else kernels
    shape = workload.shape
    check_sizes(workload, dims)
    if shape.traced is not None:
        return lower_traced(shape.traced, workload, dims)
    check(shape, dims)
    sites = list(_sites(workload, dims, kernels))
    end = setting_of(workload, dims, shape.main, kernels)
    pieces = [_stack(site, shape) for site in sites]
    last = len(blocks(shape)) - 1
    pieces += [
        _modules_for_later_tokens(end, shape, last - 1),
        _placed(head(end, shape), block=last, part=Part.HEAD),
    ]
    whole = chain(*pieces)
    steps = _optimizer(sites, end, shape) if end.training else ()
    return OperatorGraph(
        operators=unique((*laid_out(whole.forward), *laid_out(whole.backward), *steps)), tokens=workload.tokens
    )


@dataclass(frozen=True, slots=True)
class _Site:
    """A stack that the workload runs, what it runs on, the prefix of its operators' names, and the index of the block
    that its first run is."""

    stack: Stack
    setting: Setting
    prefix: str
    first: int

    @property
    def runs(self) -> Iterator[tuple[Run, str, int]]:
        """Runs with the prefix of their operators' names (what is special about their layers where there are several
        kinds) and their blocks."""
        yield from zip(self.stack.runs, run_prefixes(self.stack, self.prefix), numbers(self.first), strict=False)


def _sites(workload: Workload, dims: ParallelDims, kernels: Kernels) -> Iterator[_Site]:
    """Stacks that text runs, the encoder before the decoder; a decoding step leaves the encoder alone."""
    first, decoding = 1, workload.phase is Phase.DECODE
    for stack, prefix in text_stacks(workload.shape):
        if not decoding or stack is workload.shape.main:
            yield _Site(stack, setting_of(workload, dims, stack, kernels), "" if decoding else prefix, first)
        first += len(stack.runs)


def _tokens(workload: Workload, stack: Stack) -> Ints | None:
    """Tokens per sequence a stack works on; None if text does not run it."""
    if stack.tokens is not None:
        return stack.tokens or None
    return workload.seq_len if stack.is_text or stack is workload.shape.main else None


def setting_of(workload: Workload, dims: ParallelDims, stack: Stack, kernels: Kernels) -> Setting:
    """Encoder and decoder both see ``seq_len`` tokens, unless the encoder has a length of its own."""
    shape = workload.shape
    length = workload.seq_len if stack.tokens is None else stack.tokens
    is_plain = stack is shape.main and stack.tokens is None
    encoder = next((s for s in shape.stacks if s is not stack and s.is_text), None)
    encoded = None if encoder is None else _tokens(workload, encoder)
    if workload.phase is Phase.TRAIN and kernels.narrowing is None:
        kernels = replace(kernels, narrowing=usual_narrowing(workload.dtype))
    return Setting(
        workload=workload,
        dims=dims,
        hidden_size=stack.hidden_size,
        seq_q=workload.new_tokens if is_plain else length,
        seq_kv=workload.kv_len if is_plain else length,
        encoder_len=0 if encoded is None else encoded,
        kernels=kernels,
    )


def _stack(site: _Site, shape: TransformerShape) -> Piece:
    """Token table, projections, layers and (but for the main stack, whose head follows) final norms."""
    setting = site.setting
    pieces = [embedding(setting, shape)] if site.stack.tokens is None else []
    pieces += [linear_group(setting, linear.name, [linear]) for linear in site.stack.linears]
    if site.stack is not shape.main:
        pieces.append(final_norms(setting, site.stack))
    outside = _placed(chain(*pieces), site.prefix, part=Part.EMBEDDING)
    layers = (_placed(layer(setting, run.layer), prefix, run.count, block) for run, prefix, block in site.runs)
    return chain(outside, *layers)


def _modules_for_later_tokens(setting: Setting, shape: TransformerShape, block: int) -> Piece:
    """Multi-token-prediction modules, which only training runs: two norms, a projection 2h -> h, a layer like the last,
    and logits and loss of their own from the shared head (DeepSeek-V3, arXiv 2412.19437, sec. 2.2)."""
    if not (shape.mtp_layers and setting.training):
        return Piece()
    h = setting.hidden_size
    joined = product(setting, "proj", Role.PROJECTION, setting.tokens, h, 2 * h, setting.dtype)
    norms = repeat(norm(setting, setting.outer_tokens, h, "input_norm"), 2)
    inner = chain(norms, joined, layer(setting, shape.main.runs[-1].layer))
    outer = chain(final_norms(setting, shape.main), logits(setting, shape), cross_entropy(setting, shape))
    return chain(
        _placed(inner, "mtp.", shape.mtp_layers, block),
        _placed(outer, "mtp.", shape.mtp_layers, block, Part.HEAD),
    )


def _optimizer(sites: list[_Site], end: Setting, shape: TransformerShape) -> Iterator[Operator]:
    """Steps of every part, as often as it has weights of its own."""
    last = len(blocks(shape)) - 1
    for site in sites:
        for run, prefix, block in site.runs:
            sets = run.count if run.weight_sets is None else run.weight_sets
            for step in layer_steps(site.setting, run.layer):
                yield replace(step, name=prefix + step.name, count=sets, block=block)
        norms = adam(site.setting, f"{site.prefix}optimizer.norms", stack_params(site.setting, site.stack))
        yield replace(norms, block=last if site.stack is shape.main else 0)
    for step in layer_steps(end, shape.main.runs[-1].layer) if shape.mtp_layers else ():
        yield replace(step, name=f"mtp.{step.name}", count=shape.mtp_layers, block=last - 1)
    if shape.mtp_layers:
        params = shape.mtp_layers * (2 * end.hidden_size**2 + 2 * end.hidden_size)
        yield replace(adam(end, "mtp.optimizer.proj", params), block=last - 1)
    for (name, params), block in zip(outer_params(end, shape), (0, last), strict=True):
        yield replace(adam(end, f"optimizer.{name}", params), block=block)


def _placed(piece: Piece, prefix: str = "", count: Ints = 1, block: int = 0, part: Part = Part.LAYER) -> Piece:
    """The piece as part of a model: ``count`` times over, in a block, its names begun with ``prefix``."""

    def placed(op: Operator) -> Operator:
        return replace(op, name=prefix + op.name, count=op.count * count, block=block, part=part)

    return piece.mapped(placed)


def unique(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Names made unique: a second part of the same name in a layer gets a number."""
    seen: dict[str, int] = {}
    out = []
    for op in operators:
        seen[op.name] = seen.get(op.name, 0) + 1
        out.append(op if seen[op.name] == 1 else replace(op, name=f"{op.name}#{seen[op.name]}"))
    return tuple(out)
