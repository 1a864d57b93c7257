"""The operator graph of a workload on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sartor.model.layer import AttentionMixer, Layer, MoeFfn, StateSpaceMixer
from sartor.model.lower.ends import cross_entropy, embedding, final_norms, head, logits
from sartor.model.lower.kernels import Kernels
from sartor.model.lower.layer import layer
from sartor.model.lower.linear import linear_group, product
from sartor.model.lower.optimizer import adam, layer_steps, outer_params, stack_params
from sartor.model.lower.pointwise import norm
from sartor.model.lower.setting import Piece, Setting, chain, repeat
from sartor.model.lower.split import check, check_sizes
from sartor.model.lower.traced import lower_traced
from sartor.model.parallel import ParallelDims
from sartor.model.shape import Run, Stack, TransformerShape
from sartor.model.workload import Phase, Workload
from sartor.operators import Operator, OperatorGraph, Part
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
    end = _setting(workload, dims, shape.main, kernels)
    pieces = [_stack(site, shape) for site in sites]
    pieces += [_modules_for_later_tokens(end, shape), _tagged(head(end, shape), Part.HEAD)]
    whole = chain(*pieces)
    steps = _optimizer(sites, end, shape) if end.training else ()
    return OperatorGraph(operators=_unique((*whole.forward, *whole.backward, *steps)), tokens=workload.tokens)


@dataclass(frozen=True, slots=True)
class _Site:
    """A stack that the workload runs, what it runs on, and the prefix of its operators' names."""

    stack: Stack
    setting: Setting
    prefix: str

    @property
    def runs(self) -> Iterator[tuple[Run, str]]:
        """Runs with the prefix of their operators' names: what is special about their layers where there are several
        kinds."""
        yield from zip(self.stack.runs, run_prefixes(self.stack, self.prefix), strict=True)


def run_prefixes(stack: Stack, prefix: str = "") -> Iterator[str]:
    """Prefix of the operators' names of every run of a stack, after the stack's own: ``moe.``, ``local.``, ``dense1.``;
    nothing where all layers are alike. Traced layers have names of their own."""
    names = [run.layer.name or _kind(run.layer) for run in stack.runs]
    for i, name in enumerate(names):
        number = f"{names[: i + 1].count(name)}" if names.count(name) > 1 else ""
        yield prefix + (f"{name}{number}." if len(names) > 1 else "")


def _sites(workload: Workload, dims: ParallelDims, kernels: Kernels) -> Iterator[_Site]:
    """Stacks that text runs, the encoder before the decoder; a decoding step leaves the encoder alone."""
    main = workload.shape.main
    running = [stack for stack in workload.shape.stacks if _tokens(workload, stack) is not None]
    others = [] if workload.phase is Phase.DECODE else [stack for stack in running if stack is not main]
    for stack in (*others, main):
        yield _Site(stack, _setting(workload, dims, stack, kernels), f"{stack.name}." if others else "")


def _tokens(workload: Workload, stack: Stack) -> Ints | None:
    """Tokens per sequence a stack works on; None if text does not run it."""
    if stack.tokens is not None:
        return stack.tokens or None
    return workload.seq_len if stack.is_text or stack is workload.shape.main else None


def _setting(workload: Workload, dims: ParallelDims, stack: Stack, kernels: Kernels) -> Setting:
    """Encoder and decoder both see ``seq_len`` tokens, unless the encoder has a length of its own."""
    shape = workload.shape
    length = workload.seq_len if stack.tokens is None else stack.tokens
    is_plain = stack is shape.main and stack.tokens is None
    encoder = next((s for s in shape.stacks if s is not stack and s.is_text), None)
    encoded = None if encoder is None else _tokens(workload, encoder)
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
    pieces = [_tagged(embedding(setting, shape), Part.EMBEDDING)] if site.stack.tokens is None else []
    around = [linear_group(setting, linear.name, [linear]) for linear in site.stack.linears]
    if site.stack is not shape.main:
        around.append(final_norms(setting, site.stack))
    pieces += [_tagged(piece, Part.EMBEDDING) for piece in around]
    outside = _placed(chain(*pieces), site.prefix, 1)
    return chain(outside, *(_placed(layer(setting, run.layer), prefix, run.count) for run, prefix in site.runs))


def _modules_for_later_tokens(setting: Setting, shape: TransformerShape) -> Piece:
    """Multi-token-prediction modules, which only training runs: two norms, a projection 2h -> h, a layer like the last,
    and logits and loss of their own from the shared head (DeepSeek-V3, arXiv 2412.19437, sec. 2.2)."""
    if not (shape.mtp_layers and setting.training):
        return Piece()
    h = setting.hidden_size
    joined = product(setting, "proj", setting.tokens, h, 2 * h, setting.dtype)
    norms = repeat(norm(setting, setting.outer_tokens, h, "input_norm"), 2)
    inner = chain(norms, joined, layer(setting, shape.main.runs[-1].layer))
    outer = chain(final_norms(setting, shape.main), logits(setting, shape), cross_entropy(setting, shape))
    return _placed(chain(inner, _tagged(outer, Part.HEAD)), "mtp.", shape.mtp_layers)


def _optimizer(sites: list[_Site], end: Setting, shape: TransformerShape) -> Iterator[Operator]:
    """Steps of every part, as often as it has weights of its own."""
    for site in sites:
        for run, prefix in site.runs:
            sets = run.count if run.weight_sets is None else run.weight_sets
            for step in layer_steps(site.setting, run.layer):
                yield replace(step, name=prefix + step.name, count=sets)
        yield adam(site.setting, f"{site.prefix}optimizer.norms", stack_params(site.setting, site.stack))
    for step in layer_steps(end, shape.main.runs[-1].layer) if shape.mtp_layers else ():
        yield replace(step, name=f"mtp.{step.name}", count=shape.mtp_layers)
    if shape.mtp_layers:
        yield adam(end, "mtp.optimizer.proj", shape.mtp_layers * (2 * end.hidden_size**2 + 2 * end.hidden_size))
    for name, params in outer_params(end, shape):
        yield adam(end, f"optimizer.{name}", params)


def _placed(piece: Piece, prefix: str, count: Ints) -> Piece:
    def placed(op: Operator) -> Operator:
        return replace(op, name=prefix + op.name, count=op.count * count)

    return Piece(forward=tuple(map(placed, piece.forward)), backward=tuple(map(placed, piece.backward)))


def _kind(part: Layer) -> str:
    """What a layer is, in a word or two: dense, moe, local, ssm, local_moe, ..."""
    if not part.mixers:
        return "moe" if any(isinstance(f, MoeFfn) for f in part.all_ffns) else "mlp"
    words = []
    if any(isinstance(mixer, StateSpaceMixer) for mixer in part.mixers):
        words.append("ssm")
    elif any(isinstance(mixer, AttentionMixer) and mixer.window for mixer in part.mixers):
        words.append("local")
    if any(isinstance(f, MoeFfn) for f in part.all_ffns):
        words.append("moe")
    return "_".join(words) or ("dense" if part.all_ffns else "attention")


def _tagged(piece: Piece, part: Part) -> Piece:
    return Piece(
        forward=tuple(replace(op, part=part) for op in piece.forward),
        backward=tuple(replace(op, part=part) for op in piece.backward),
    )


def _unique(operators: tuple[Operator, ...]) -> tuple[Operator, ...]:
    """Names made unique: a second part of the same name in a layer gets a number."""
    seen: dict[str, int] = {}
    out = []
    for op in operators:
        seen[op.name] = seen.get(op.name, 0) + 1
        out.append(op if seen[op.name] == 1 else replace(op, name=f"{op.name}#{seen[op.name]}"))
    return tuple(out)
