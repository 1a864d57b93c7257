"""The operator graph of a workload on one device."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from sartor.model.lower.ends import embedding, head
from sartor.model.lower.layer import layer
from sartor.model.lower.optimizer import adam, layer_steps, outer_params, stack_params
from sartor.model.lower.setting import Piece, Setting, chain
from sartor.model.lower.split import check
from sartor.model.parallel import ParallelDims
from sartor.model.shape import AttentionMixer, Layer, MoeFfn, Run, Stack, StateSpaceMixer, TransformerShape
from sartor.model.workload import Phase, Workload
from sartor.operators import Operator, OperatorGraph, Part


def lower(workload: Workload, dims: ParallelDims | None = None) -> OperatorGraph:
    """What one device of a tensor-parallel group runs for a workload: forward, and when training backward and the
    optimizer's step, in execution order within a layer.

    Sizes are per device; ``count`` is how often an operator runs in one pass over the microbatch (the optimizer's
    rows: once per step). ``part`` tells layers from what surrounds them. Names are unique within a graph; with several
    kinds of layers they carry a prefix (``moe.router``). Vision towers are left out: the workload is text.
    ``pp`` and ``dp`` change nothing here: a plan places layers and shares gradients.

    Raises ``InputError`` when a single (not array) size does not divide by ``tp`` or ``ep``; for arrays see
    ``feasible``.

    >>> from sartor.model.zoo import load_model
    >>> graph = lower(Workload(shape=load_model("llama-3-8b"), phase=Phase.DECODE, context_len=4096))
    >>> [op.name for op in graph.operators][:3]
    ['embedding', 'norm', 'qkv']
    """
    dims = ParallelDims() if dims is None else dims
    shape = workload.shape
    check(shape, dims)
    stacks = _stacks(workload)
    main = _setting(workload, dims, shape.main)
    before = _tagged(embedding(main, shape), Part.EMBEDDING)
    after = _tagged(head(main, shape, shape.main), Part.HEAD)
    layers = [_run(_setting(workload, dims, stack), run, name) for stack, run, name in _runs(stacks)]
    whole = chain(before, *layers, after)
    operators = (*whole.forward, *whole.backward, *_optimizer(workload, dims, stacks))
    return OperatorGraph(operators=_unique(operators), tokens=workload.tokens)


def _stacks(workload: Workload) -> list[Stack]:
    """Text stacks, the encoder first; a decoding step leaves the encoder alone."""
    text = [stack for stack in workload.shape.stacks if stack.is_text]
    others = [] if workload.phase is Phase.DECODE else [stack for stack in text if stack is not workload.shape.main]
    return [*others, workload.shape.main]


def _setting(workload: Workload, dims: ParallelDims, stack: Stack) -> Setting:
    """Encoder and decoder both see ``seq_len`` tokens."""
    is_main = stack is workload.shape.main
    return Setting(
        workload=workload,
        dims=dims,
        hidden_size=stack.hidden_size,
        seq_q=workload.new_tokens if is_main else workload.seq_len,
        seq_kv=workload.kv_len if is_main else workload.seq_len,
        encoder_len=workload.seq_len,
    )


def _run(setting: Setting, run: Run, prefix: str) -> Piece:
    piece = layer(setting, run.layer)

    def placed(op: Operator) -> Operator:
        return replace(op, name=prefix + op.name, count=op.count * run.count)

    return Piece(forward=tuple(map(placed, piece.forward)), backward=tuple(map(placed, piece.backward)))


def _runs(stacks: list[Stack]) -> Iterator[tuple[Stack, Run, str]]:
    """Every run with the prefix of its operators' names: its stack's where there are several stacks, and what is
    special about its layers where a stack has several runs."""
    for stack in stacks:
        outer = f"{stack.name}." if len(stacks) > 1 else ""
        names = [_kind(run.layer) for run in stack.runs]
        for i, run in enumerate(stack.runs):
            same = [j for j, name in enumerate(names) if name == names[i]]
            number = f"{same.index(i) + 1}" if len(same) > 1 else ""
            yield stack, run, outer + (f"{names[i]}{number}." if len(stack.runs) > 1 else "")


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


def _optimizer(workload: Workload, dims: ParallelDims, stacks: list[Stack]) -> Iterator[Operator]:
    if workload.phase is not Phase.TRAIN:
        return
    shape: TransformerShape = workload.shape
    for stack, run, prefix in _runs(stacks):
        for step in layer_steps(_setting(workload, dims, stack), run.layer):
            yield replace(step, name=prefix + step.name, count=run.count)
    for stack in stacks:
        prefix = f"{stack.name}." if len(stacks) > 1 else ""
        yield adam(f"{prefix}optimizer.norms", stack_params(_setting(workload, dims, stack), stack))
    for name, params in outer_params(_setting(workload, dims, shape.main), shape):
        yield adam(f"optimizer.{name}", params)


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
