"""From a model to a graph of operators: the whole model, or one layer of it.

The parts of a model in order: before the first layer, one layer, and after the last.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sartor.model.layer import AttentionMixer, DenseFfn, Ffn, LatentAttentionMixer, Layer, Mixer, MoeFfn, Split
from sartor.model.lower.attention import attention, attention_core, latent_attention, named_inputs, output
from sartor.model.lower.ffn import dense_ffn, moe_ffn
from sartor.model.lower.linear import linear_group, local_inner, product, region
from sartor.model.lower.optimizer import adam, layer_steps, outer_params, stack_params
from sartor.model.lower.piece import (
    Flow,
    Piece,
    activation,
    around,
    beside,
    chain,
    laid_out,
    norm,
    repeat,
    residual,
    streamed,
    wired,
)
from sartor.model.lower.setting import Kernels, Setting, as_served, check, check_sizes, is_zero, usual_narrowing
from sartor.model.lower.state_space import state_space
from sartor.model.shape import Block, BlockKind, Stack, TransformerShape, blocks, text_stacks
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.operators import Collective, CollectiveKind, MemoryBoundKind, Operator, OperatorGraph, Part, Pass, Role
from sartor.units import Ints, ceil_div


def _counted(setting: Setting, part: Layer) -> Piece:
    """A residual layer as `lower` counts it: its norms are one operator with a count, and so are its residual sums."""
    inside = [block.inside for block in _blocks_of(setting, part)]
    sums = len(inside) if part.mixers or part.all_ffns else 0
    counted = [repeat(_norm(setting, part), len(part.norms))] if part.norms else []
    return chain(*counted, *inside, *([repeat(_sum(setting), sums)] if sums else []))


def _whole_layer(setting: Setting, part: Layer) -> Piece:
    """The same layer with each norm and each residual sum in its place."""
    layer = _sum(setting) if part.mixers or part.all_ffns else Piece()
    return chain(
        *(around(chain(*block.before, block.inside, *block.after), layer) for block in _blocks_of(setting, part))
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _ResidualBlock:
    """A part of a layer between two points of the residual stream, with the norms before and after it."""

    before: tuple[Piece, ...]
    inside: Piece
    after: tuple[Piece, ...]


def _blocks_of(setting: Setting, part: Layer) -> list[_ResidualBlock]:
    """A layer's residual blocks: one per mixer and feed-forward part, or a single one if they are parallel. Each block
    gets one of the layer's norms before it; if there are more norms, the others come after it."""
    if part.parallel:
        insides = [beside(*_parallel(setting, part))]
    else:
        insides = [_block(setting, x) for x in _parts(part)] or [Piece()]
    groups = (linear_group(setting, linear.name, [linear]) for linear in part.linears)
    insides[-1] = chain(insides[-1], *groups)
    count, rest = divmod(len(part.norms), len(insides))
    out = []
    for i, inside in enumerate(insides):
        mine = [_norm(setting, part) for _ in range(count + (i < rest))]
        before = len(mine) if part.parallel else 1
        out.append(_ResidualBlock(before=tuple(mine[:before]), inside=inside, after=tuple(mine[before:])))
    return out


def _norm(setting: Setting, part: Layer) -> Piece:
    return norm(setting, setting.outer_tokens, setting.hidden_size, kind=part.norms[0].kind)


def _sum(setting: Setting) -> Piece:
    return residual(setting, setting.outer_tokens, setting.hidden_size)


def _parts(part: Layer) -> tuple[Mixer | Ffn, ...]:
    return (*part.mixers, *part.all_ffns)


def _block(setting: Setting, part: Mixer | Ffn) -> Piece:
    """One part with its collectives. Latent attention and experts place theirs further inside."""
    if isinstance(part, LatentAttentionMixer):
        return latent_attention(setting, part)
    if isinstance(part, MoeFfn):
        return moe_ffn(setting, part)
    cross = "cross_" if isinstance(part, AttentionMixer) and part.cross else ""
    return region(setting, cross + part.name, _inner(setting, part))


def _inner(setting: Setting, part: Mixer | Ffn) -> Piece:
    if isinstance(part, AttentionMixer):
        return attention(setting, part)
    return dense_ffn(setting, part) if isinstance(part, DenseFfn) else state_space(setting, part)  # type: ignore[arg-type]


def _parallel(setting: Setting, part: Layer) -> list[Piece]:
    """Parallel parts share the tensor-parallel region and therefore need one all-reduce (Chowdhery et al. 2022, PaLM,
    sec. 2). Some families also fuse all input projections into one GEMM and all output projections into another."""
    inside = [x for x in _parts(part) if not isinstance(x, (LatentAttentionMixer, MoeFfn))]
    apart = [_block(setting, x) for x in _parts(part) if isinstance(x, (LatentAttentionMixer, MoeFfn))]
    match inside:
        case [AttentionMixer() as mixer, DenseFfn() as ffn] if part.fuses_parallel:
            return [region(setting, "parallel", _fused(setting, mixer, ffn)), *apart]
        case []:
            return apart
        case _:
            return [region(setting, "parallel", beside(*(_inner(setting, x) for x in inside))), *apart]


def _fused(setting: Setting, mixer: AttentionMixer, ffn: DenseFfn) -> Piece:
    """Q, K, V, up (and gate) as one GEMM, both output projections as another."""
    *ups, down = ffn.linears(setting.hidden_size)
    inputs = [linear for _, linear in named_inputs(setting, mixer)] + ups
    outputs = (output(setting, mixer), down)
    d_in = sum(local_inner(linear, setting.tp) for linear in outputs)
    width = ceil_div(ffn.ffn_hidden_size, setting.tp)
    return chain(
        linear_group(setting, "parallel_in", inputs, mixer.num_kv_heads, role=Role.PARALLEL_IN),
        beside(
            attention_core(setting, mixer),
            activation(setting, setting.tokens, width, ffn.gated, f"{ffn.name}_activation"),
        ),
        product(
            setting,
            "parallel_out",
            Role.PARALLEL_OUT,
            setting.tokens,
            setting.hidden_size,
            d_in,
            setting.dtype,
            Split.ROW,
        ),
    )


def _embedding(setting: Setting, shape: TransformerShape) -> Piece:
    """Lookup in the vocabulary-parallel token table: one row read and written per token, and one more read for learned
    positions. Backward reads the gradient and adds it to fp32 rows. Partial rows are summed over tensor ranks."""
    e, width = setting.element, _table_width(setting, shape)
    positions = 0 if is_zero(shape.learned_positions) else 1
    moved = (2 + positions) * e
    gather = streamed(
        setting, "embedding", MemoryBoundKind.EMBEDDING, setting.tokens, width, moved, e + 8.0 * (1 + positions)
    )
    if not setting.is_split:
        return gather
    message = setting.tokens * width * e
    kind = CollectiveKind.REDUCE_SCATTER if setting.sequence_parallel else CollectiveKind.ALL_REDUCE
    out = Collective(
        name=f"embedding.{kind.value}",
        role=Role.OUTPUT_REDUCE,
        kind=kind,
        group_size=setting.tp,
        message_bytes=message,
    )
    back = Collective(
        name="embedding.grad_all_gather",
        role=Role.GRAD_GATHER,
        kind=CollectiveKind.ALL_GATHER,
        group_size=setting.tp,
        message_bytes=message,
        pass_=Pass.BACKWARD,
    )
    return chain(gather, Piece(forward=(out,), backward=(back,) if setting.sequence_parallel else ()))


def _head(setting: Setting, shape: TransformerShape) -> Piece:
    """Final norms, the head's own linears, logits and (training) the loss."""
    groups = [linear_group(setting, linear.name, [linear]) for linear in shape.linears]
    final = [_logits(setting, shape), _cross_entropy(setting, shape)] if shape.lm_head else []
    return chain(_final_norms(setting, shape.main), *groups, *final)


def _final_norms(setting: Setting, stack: Stack) -> Piece:
    """A stack's norms outside its layers."""
    if not stack.norms:
        return Piece()
    final_norm = norm(setting, setting.outer_tokens, setting.hidden_size, "final_norm", stack.norms[0].kind)
    return repeat(final_norm, len(stack.norms))


def _logits(setting: Setting, shape: TransformerShape, name: str = "logits") -> Piece:
    """The vocabulary-parallel output projection, and the all-gather that a sampler needs when generating.

    Training and encoder-only models need logits for every token, generation only for the last one of each sequence.
    """
    rows, vocab = _logit_rows(setting, shape), ceil_div(shape.vocab_size, setting.tp)
    width = _table_width(setting, shape) if shape.tied_embeddings else setting.hidden_size
    inside = product(setting, name, Role.LOGITS, rows, vocab, width, setting.wide)
    piece = region(setting, name, inside, gathered=width, reduced=False, wide=True)
    if setting.training or not setting.is_split:
        return piece
    message = rows * shape.vocab_size * setting.element
    gather = Collective(
        name=f"{name}.all_gather",
        role=Role.OUTPUT_GATHER,
        kind=CollectiveKind.ALL_GATHER,
        group_size=setting.tp,
        message_bytes=message,
    )
    return chain(piece, Piece(forward=(gather,)))


def _logit_rows(setting: Setting, shape: TransformerShape) -> Ints:
    return setting.tokens if setting.training or shape.encoder_only else setting.batch


def _cross_entropy(setting: Setting, shape: TransformerShape, name: str = "cross_entropy") -> Piece:
    """Loss over vocabulary shards in fp32, after Megatron-LM's core/tensor_parallel/cross_entropy.py with the chain
    between its reductions fused: forward upcasts (e + 4), finds the maximum (4), subtracts, exponentiates and sums in
    place (8), and normalises in place (8); backward scales the kept probabilities in place (8) and casts them to the
    logits' type (4 + e). Three fp32 numbers per token are all-reduced: maximum, target logit, sum."""
    if not setting.training:
        return Piece()
    e, vocab = setting.element, ceil_div(shape.vocab_size, setting.tp)
    loss = streamed(
        setting,
        name,
        MemoryBoundKind.CROSS_ENTROPY,
        setting.tokens,
        vocab,
        e + 24.0,
        e + 12.0,
        flops=5,
        kernels=4,
    )
    if not setting.is_split:
        return loss
    reduce = Collective(
        name=f"{name}.all_reduce",
        role=Role.LOSS,
        kind=CollectiveKind.ALL_REDUCE,
        group_size=setting.tp,
        message_bytes=4.0 * setting.tokens,
        count=3,
    )
    return Piece(forward=(*loss.forward, reduce), backward=loss.backward)


def _table_width(setting: Setting, shape: TransformerShape) -> Ints:
    return setting.hidden_size if shape.embedding_size is None else shape.embedding_size


def lower(
    workload: Workload, dims: ParallelDims | None = None, kernels: Kernels | None = None, *, optimizer: bool = False
) -> OperatorGraph:
    """Everything that one device of a tensor-parallel group runs for a microbatch: forward and, in training, backward,
    in execution order within a layer.

    Sizes are per device; ``count`` is how often an operator runs in one pass over the microbatch. ``role`` and
    ``block`` say what it does and which of `blocks` it belongs to. Names are unique within a graph and, if there are
    several kinds of layers, have a prefix (``moe.router``). Vision towers are left out: the workload is text. ``pp``
    and ``dp`` change nothing here. ``kernels`` describes the trainer's kernels. With ``optimizer``, Adam's step on
    every parameter of the device follows, as for one microbatch on one device; the optimizer steps of a plan are
    computed in ``step``.

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
        from sartor.model.lower.traced import lower_traced  # a traced model is rare

        return lower_traced(shape.traced, workload, dims, optimizer=optimizer)
    check(shape, dims)
    sites = list(_sites(workload, dims, kernels))
    main = sites[-1]
    whole = chain(*(_stack(site, shape) for site in sites), *_after_layers(main, shape))
    steps = _optimizer(sites, shape) if optimizer and main.setting.training else ()
    graph = OperatorGraph(
        operators=unique((*laid_out(whole.forward), *laid_out(whole.backward), *steps)), tokens=workload.tokens
    )
    inferring = workload.phase is not Phase.TRAIN
    return as_served(graph, workload, kernels.engine) if kernels.engine and inferring else graph


@dataclass(frozen=True, slots=True)
class _Site:
    """A stack that the workload passes, with its setting and its blocks by index."""

    stack: Stack
    setting: Setting
    prefix: str
    """Prefix of the names of operators outside the layers."""
    blocks: dict[int, Block]

    def of(self, *kinds: BlockKind) -> list[tuple[int, Block]]:
        """The stack's blocks of these kinds."""
        return [(i, block) for i, block in self.blocks.items() if block.kind in kinds]


def _sites(workload: Workload, dims: ParallelDims, kernels: Kernels) -> Iterator[_Site]:
    """Stacks that text passes, the main one last; a decoding step does not run the encoder."""
    numbered = list(enumerate(blocks(workload.shape)))
    for stack, prefix in text_stacks(workload.shape):
        if workload.phase is not Phase.DECODE or stack is workload.shape.main:
            mine = {i: block for i, block in numbered if block.stack is stack}
            yield _Site(stack, _setting_of(workload, dims, stack, kernels), prefix, mine)


def _tokens(workload: Workload, stack: Stack) -> Ints | None:
    """Tokens per sequence that a stack works on; None if text does not pass it."""
    if stack.tokens is not None:
        return stack.tokens or None
    return workload.seq_len if stack.is_text or stack is workload.shape.main else None


def _setting_of(workload: Workload, dims: ParallelDims, stack: Stack, kernels: Kernels) -> Setting:
    """The setting of a stack. Encoder and decoder both see ``seq_len`` tokens, unless the encoder has its own
    length."""
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
    """Token table, projections, layers and final norms; the main stack's norms are part of the head."""
    setting = site.setting
    pieces = [_embedding(setting, shape)] if site.stack.tokens is None else []
    pieces += [linear_group(setting, linear.name, [linear]) for linear in site.stack.linears]
    if site.stack is not shape.main:
        pieces.append(_final_norms(setting, site.stack))
    outside = _placed(chain(*pieces), site.prefix, part=Part.EMBEDDING)
    layers = site.of(BlockKind.LAYER)
    return chain(outside, *(_placed(_counted(setting, b.layer), b.prefix, b.count, i) for i, b in layers if b.layer))


def _after_layers(end: _Site, shape: TransformerShape) -> Iterator[Piece]:
    """The multi-token-prediction modules (only in training), then the head."""
    for i, block in end.of(BlockKind.MTP, BlockKind.HEAD):
        if block.layer is None:
            yield _placed(_head(end.setting, shape), block=i, part=Part.HEAD)
        elif end.setting.training:
            inner, outer = _module_for_later_tokens(end.setting, shape, block.layer)
            yield _placed(inner, block.prefix, block.count, i)
            yield _placed(outer, block.prefix, block.count, i, Part.HEAD)


def _module_for_later_tokens(setting: Setting, shape: TransformerShape, like: Layer) -> tuple[Piece, Piece]:
    """A multi-token-prediction module: two norms, a projection 2h -> h and a layer; then its own logits and loss, from
    the shared head (DeepSeek-V3, arXiv 2412.19437, sec. 2.2)."""
    h = setting.hidden_size
    joined = product(setting, "proj", Role.PROJECTION, setting.tokens, h, 2 * h, setting.dtype)
    norms = repeat(norm(setting, setting.outer_tokens, h, "input_norm"), 2)
    inner = chain(norms, joined, _counted(setting, like))
    return inner, chain(_final_norms(setting, shape.main), _logits(setting, shape), _cross_entropy(setting, shape))


def _optimizer(sites: list[_Site], shape: TransformerShape) -> Iterator[Operator]:
    """Optimizer steps of every layer, once per set of weights, and of the parameters around the layers."""
    main = sites[-1]
    [(last, _)] = main.of(BlockKind.HEAD)
    for site in sites:
        yield from _layer_steps(site, BlockKind.LAYER)
        norms = adam(site.setting, f"{site.prefix}optimizer.norms", stack_params(site.setting, site.stack))
        yield replace(norms, block=last if site is main else 0)
    yield from _layer_steps(main, BlockKind.MTP)
    for i, block in main.of(BlockKind.MTP):
        params = block.count * (2 * main.setting.hidden_size**2 + 2 * main.setting.hidden_size)
        yield replace(adam(main.setting, f"{block.prefix}optimizer.proj", params), block=i)
    for (name, params), i in zip(outer_params(main.setting, shape), (0, last), strict=True):
        yield replace(adam(main.setting, f"optimizer.{name}", params), block=i)


def _layer_steps(site: _Site, kind: BlockKind) -> Iterator[Operator]:
    for i, block in site.of(kind):
        assert block.layer is not None
        for step in layer_steps(site.setting, block.layer):
            yield replace(step, name=block.prefix + step.name, count=block.weight_sets, block=i)


def _placed(piece: Piece, prefix: str = "", count: Ints = 1, block: int = 0, part: Part = Part.LAYER) -> Piece:
    """The piece placed in a model: repeated ``count`` times, in a block, with ``prefix`` before its names."""

    def placed(op: Operator) -> Operator:
        return replace(op, name=prefix + op.name, count=op.count * count, block=block, part=part)

    return piece.mapped(placed)


def unique(operators: Iterable[Operator]) -> tuple[Operator, ...]:
    """Makes names unique: the second operator of a name gets ``#2``."""
    seen: dict[str, int] = {}
    out = []
    for op in operators:
        seen[op.name] = seen.get(op.name, 0) + 1
        out.append(op if seen[op.name] == 1 else replace(op, name=f"{op.name}#{seen[op.name]}"))
    return tuple(out)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LayerGraph:
    """Operators of one layer with the edges between them; ``backward`` is empty unless training."""

    forward: OperatorGraph
    backward: OperatorGraph


def lower_layer(workload: Workload, dims: ParallelDims | None = None, run: int = 0) -> _LayerGraph:
    """The graph of one layer of the main stack's ``run``-th kind on one device of a tensor-parallel group.

    The operators add up to what ``lower`` counts for that layer. Latent attention and state-space parts are chains in
    execution order: valid, but a schedule could overlap more of them.

    >>> from sartor.model.zoo import load_model
    >>> graph = lower_layer(Workload(shape=load_model("gpt3-175b"), seq_len=2048)).forward
    >>> [(graph.operators[a].name, graph.operators[b].name) for a, b in graph.edges][:2]
    [('norm', 'qkv'), ('qkv', 'attention')]
    """
    dims = ParallelDims() if dims is None else dims
    check_sizes(workload, dims)
    if workload.shape.traced is not None:
        from sartor.model.lower.traced import lower_traced_layer

        forward, backward = lower_traced_layer(workload.shape.traced, workload, dims, run)
        return _LayerGraph(forward=forward, backward=backward)
    check(workload.shape, dims)
    stack = workload.shape.main
    setting = _setting_of(workload, dims, stack, Kernels())
    piece = _whole_layer(setting, stack.runs[run].layer)
    return _LayerGraph(forward=_graph(piece.forward, workload.tokens), backward=_graph(piece.backward, workload.tokens))


def _graph(flow: Flow, tokens: Ints) -> OperatorGraph:
    return OperatorGraph(operators=unique(tuple(laid_out(flow))), edges=tuple(wired(flow)), tokens=tokens)
