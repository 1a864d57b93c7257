"""Read and write pipeline stages as Megatron-LM's arguments: chunks, uneven first and last stages, layouts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sartor.errors import InputError
from sartor.launch.fields import Argument
from sartor.launch.plan import stages_of
from sartor.launch.stated import Flags
from sartor.model.training import TrainingPlan
from sartor.units import nearest_divisors


def stage_arguments(plan: TrainingPlan, layers: int, mtp: int) -> Iterator[Argument]:
    """Arguments for the stages: a number if even, two if only first and last differ, else a layout."""
    pp, v = plan.dims.pp, plan.virtual_stages
    stages = stages_of(plan, layers)
    if plan.stage_layers is None and layers % (pp * v) == 0:
        if v > 1:
            yield ("--num-virtual-stages-per-pipeline-rank", str(v))
    elif v == 1 and pp > 1 and len(set(stages[1:-1])) <= 1 and _ends_say(stages):
        yield ("--decoder-first-pipeline-num-layers", str(stages[0]))
        yield ("--decoder-last-pipeline-num-layers", str(stages[-1]))
    elif pp > 1:
        yield ("--pipeline-model-parallel-layout", _layout_text(stages, mtp))


def _ends_say(stages: tuple[int, ...]) -> bool:
    """Whether Megatron's own division (all but first and last stage even) gives these stages."""
    middle = stages[1:-1]
    return len(stages) > 2 and len(set(middle)) == 1 and all(stages)


def _layout_text(stages: tuple[int, ...], mtp: int = 0) -> str:
    """A pipeline layout: E embedding, t layer, m MTP module, L loss, stages separated by bars.

    >>> _layout_text((2, 3, 1))
    'Et*2|t*3|tL'
    """
    parts = ["" if n == 0 else "t" if n == 1 else f"t*{n}" for n in stages]
    parts[0] = "E" + parts[0]
    parts[-1] += ("" if not mtp else "m" if mtp == 1 else f"m*{mtp}") + "L"
    return "|".join(parts)


def read_stages(flags: Flags, pp: int, layers: int | None) -> tuple[tuple[int, ...] | None, int]:
    """Layers of every chunk (None: even) and chunks per device."""
    layout = flags.word("--pipeline-model-parallel-layout")
    if layout is not None:
        stages = read_layout(layout)
        if len(stages) % pp:
            must = f"must have a multiple of --pipeline-model-parallel-size {pp} stages; it has {len(stages)}"
            raise InputError("--pipeline-model-parallel-layout", layout, must)
        if layers is not None and sum(stages) != layers:
            must = f"must hold the model's {layers} layers; it holds {sum(stages)}"
            raise InputError("--pipeline-model-parallel-layout", layout, must)
        return stages, len(stages) // pp
    virtual = flags.size("--num-virtual-stages-per-pipeline-rank", 1) or 1
    chunk_layers = flags.size("--num-layers-per-virtual-pipeline-stage")
    if chunk_layers is not None and layers is not None and pp > 1:
        counted = layers + sum(flags.on(f"--account-for-{end}-in-pipeline-split") for end in ("embedding", "loss"))
        if counted % (pp * chunk_layers):
            near = nearest_divisors(counted // pp, chunk_layers) if counted % pp == 0 else ""
            must = f"must divide the {counted} layers over --pipeline-model-parallel-size {pp}"
            raise InputError("--num-layers-per-virtual-pipeline-stage", chunk_layers, must, near)
        virtual = counted // (pp * chunk_layers)
    return _read_ends(flags, pp, layers, virtual), virtual


def _read_ends(flags: Flags, pp: int, layers: int | None, virtual: int) -> tuple[int, ...] | None:
    """Stages where first and last stage differ, or where embedding and loss count as a layer."""
    first = flags.size("--decoder-first-pipeline-num-layers")
    last = flags.size("--decoder-last-pipeline-num-layers")
    embedding = flags.on("--account-for-embedding-in-pipeline-split")
    loss = flags.on("--account-for-loss-in-pipeline-split")
    if layers is None or pp == 1 or not (first or last or embedding or loss):
        return None
    if embedding or loss:
        chunk_layers = (layers + embedding + loss) // (pp * virtual)
        stages = [chunk_layers] * (pp * virtual)
        stages[0] -= embedding
        stages[-1] -= loss
    else:
        ends = [n for n in (first, last) if n]
        middle, rest = pp - len(ends), layers - sum(ends)
        if rest < 0 or (middle == 0 and rest) or (middle and rest % middle):
            must = f"must leave layers that {middle} stages share evenly, of {layers}"
            raise InputError("--decoder-first-pipeline-num-layers", first or last, must)
        per_rank = [
            *([first] if first else []),
            *([rest // middle] * middle if middle else []),
            *([last] if last else []),
        ]
        if any(n % virtual for n in per_rank):
            shown = ",".join(map(str, per_rank))
            raise InputError("virtual stages", virtual, f"must divide the layers of every rank: {shown}")
        stages = [n // virtual for _ in range(virtual) for n in per_rank]
    if sum(stages) != layers or min(stages) < 0:
        raise InputError("--num-layers", layers, f"does not split over {pp * virtual} stages as asked")
    return tuple(stages)


def read_layout(text: str) -> tuple[int, ...]:
    """Layers of every stage of a layout: ``Et*3|(tt|)*2|L`` -> (3, 2, 2, 0). Raises `InputError`.

    >>> read_layout("Et*3|(tt|)*2L")
    (3, 2, 2, 0)
    """
    bare = text.replace(",", "").replace(" ", "")
    for _ in range(64):
        match = re.search(r"\(([^()]{0,2000})\)\*(\d{1,4})", bare) or re.search(r"([EtmL])\*(\d{1,4})", bare)
        if not match or len(bare) > 100_000:
            break
        bare = bare[: match.start()] + match[1] * int(match[2]) + bare[match.end() :]
        if "(" not in bare and "*" not in bare:
            break
    if not re.fullmatch(r"E?[tm|]*L?[m|]*", bare) or len(bare) > 100_000:
        must = "must be stages of E, t, m and L between |, with (...)*n and t*n"
        raise InputError("--pipeline-model-parallel-layout", text, must, "Et*2|t*3|t*2L")
    return tuple(stage.count("t") for stage in bare.split("|"))
