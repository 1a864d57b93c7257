"""Case studies of arXiv 2401.14489 and its successors, to be measured, and what they show.

A study has arms, one of them the baseline; an arm is a list of cases with counts, and its time is their sum.
``Size.TOY`` keeps head dimensions and the alignment of every size and shrinks the rest, so that a host takes minutes.

Arms that do different amounts of work are compared by rate (``Arm.work``), others by time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np

from sartor.bench.cases import BenchCase, StackRun, StepPart
from sartor.bench.machine import Scale
from sartor.bench.records_file import Pair, pairs
from sartor.cost.correction.calibration import Calibration
from sartor.errors import InputError
from sartor.hardware.gpu import Gpu
from sartor.json_types import JsonDict, JsonMap, picked, plain
from sartor.model.shape import TransformerShape
from sartor.model.zoo import load_model
from sartor.operators import Attention, DType, Gemm, Layout, Pass

Propose = Callable[[str], TransformerShape | None]
"""Returns the same-size shape that the search proposes for a zoo model; None if it finds nothing faster."""


class Size(StrEnum):
    """``FULL``: the sizes as published. ``TOY``: minutes on a host."""

    FULL = "full"
    TOY = "toy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One of the alternatives that a study compares."""

    name: str
    x: float
    """Position on the figure's axis."""
    parts: tuple[tuple[BenchCase, int], ...]
    work: float = 1.0
    """Amount of work that speedups are normalized by; 1 compares times."""
    group: str = ""
    """Arms are compared with the baseline of their group."""
    is_baseline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """A question and the arms that answer it."""

    name: str
    question: str
    axis: str
    arms: tuple[Arm, ...]

    @property
    def cases(self) -> list[BenchCase]:
        """All distinct cases."""
        return list({case.key: case for arm in self.arms for case, _ in arm.parts}.values())


def study(name: str, scale: Scale, size: Size, propose: Propose) -> Study:
    """A study by its name or letter. Raises ``InputError`` for an unknown one."""
    letters = dict(zip("abcdefg", STUDIES, strict=True))
    word = letters.get(name, name)
    if word not in STUDIES:
        choices = ", ".join(f"{title} ({letter})" for letter, title in letters.items())
        raise InputError("study", name, f"must be one of {choices}", "vocabulary")
    return STUDIES[word](scale, size, propose)


def _stack_of(shape: TransformerShape, *, name: str = "", **changes: object) -> StackRun:
    """A stack for a decoder with one kind of dense layer. Raises ``InputError`` for any other model."""
    mixer, ffn = shape.attention, shape.dense_ffn
    if mixer is None or ffn is None or not hasattr(mixer, "num_kv_heads") or shape.moe_ffn is not None:
        raise InputError("model", shape.name, "must have attention and dense feed-forward layers alone")
    run = StackRun(
        name=name or shape.name,
        hidden_size=int(shape.hidden_size),
        num_heads=int(shape.num_heads),
        num_kv_heads=int(shape.num_kv_heads),
        head_dim=int(shape.head_dim),
        ffn_hidden_size=int(ffn.ffn_hidden_size),
        gated=ffn.gated,
        num_layers=int(shape.num_layers),
        vocab_size=int(shape.vocab_size),
    )
    return replace(run, **changes)  # type: ignore[arg-type]


def _heads(scale: Scale, size: Size, propose: Propose) -> Study:
    """(a) GPT-3 2.7B: a layer and a training step with other head counts, and with the shape the search proposes."""
    toy = size is Size.TOY
    base = _stack_of(load_model("gpt3-2.7b"), name="gpt3-2.7b", dtype=scale.dtype)
    if toy:
        base = replace(base, hidden_size=640, num_heads=8, num_kv_heads=8, ffn_hidden_size=2560, vocab_size=4096)
    tokens: JsonDict = {"batch": 1 if toy else 4, "seq_len": 256 if toy else 2048}
    step_layers = 2 if toy else base.num_layers
    counts = (4, 5, 8, 10, 16) if toy else (16, 20, 32, 40, 64)
    named = {f"a={a}": _with_heads(base, a) for a in counts}
    if not toy and (proposal := propose("gpt3-2.7b")) is not None:
        named["proposed"] = _stack_of(proposal, name="gpt3-2.7b-proposed", dtype=scale.dtype)
    arms = []
    for name, run in named.items():
        layer = replace(run, num_layers=1, vocab_size=0, part=StepPart.TRAIN, **tokens)
        depth = step_layers if name != "proposed" else run.num_layers
        step = replace(run, num_layers=depth, part=StepPart.STEP, **{**tokens, "batch": 1})
        for group, work in (("layer", layer), ("step", step)):
            arm = Arm(name=name, x=run.head_dim, parts=((BenchCase(work=work), 1),), group=group)
            arms.append(replace(arm, is_baseline=run.num_heads == base.num_heads and name != "proposed"))
    question = "GPT-3 2.7B has 32 heads of 80: what do other head counts of the same size gain?"
    return Study(name="heads", question=question, axis="head dimension", arms=tuple(arms))


def _with_heads(run: StackRun, count: int) -> StackRun:
    return replace(run, num_heads=count, num_kv_heads=count, head_dim=run.hidden_size // count)


def _swiglu(scale: Scale, size: Size, propose: Propose) -> Study:
    """(b) A SwiGLU feed-forward's width near 8h/3: both GEMMs, forward and backward."""
    h, tokens = (512, 256) if size is Size.TOY else (4096, 8192)
    middle = 8 * h // 3
    steps = (-58, -42, -26, -10, -2, -1, 0, 1, 2, 6, 22, 54, 86)
    widths = sorted({middle + step for step in steps} | {-(-middle // m) * m for m in (8, 64, 128, 256)})
    arms = tuple(
        Arm(name=str(f), x=f, work=f, parts=_both(scale, tokens, f, h), is_baseline=f == middle) for f in widths
    )
    question = f"Which feed-forward widths near 8h/3 = {middle} have a good rate at h={h}?"
    return Study(name="swiglu", question=question, axis="feed-forward width", arms=arms)


def _both(scale: Scale, tokens: int, f: int, h: int) -> tuple[tuple[BenchCase, int], ...]:
    products = [*_linear(scale.dtype, tokens, 2 * f, h), *_linear(scale.dtype, tokens, h, f)]
    return tuple((BenchCase(work=op), 1) for op in products)


def _linear(dtype: DType, tokens: int, d_out: int, d_in: int) -> list[Gemm]:
    """A linear layer's forward, dgrad and wgrad."""
    return [
        Gemm(name="forward", m=tokens, n=d_out, k=d_in, dtype=dtype),
        Gemm(name="dgrad", m=tokens, n=d_in, k=d_out, dtype=dtype, layout=Layout.NN),
        Gemm(name="wgrad", m=d_out, n=d_in, k=tokens, dtype=dtype, layout=Layout.NT),
    ]


def _vocabulary(scale: Scale, size: Size, propose: Propose) -> Study:
    """(c) Vocabulary 50257 against nearby sizes: the logits' forward, dgrad and wgrad, separately and together."""
    toy = size is Size.TOY
    h, tokens = (256, 256) if toy else (2560, 8192)
    values = (8185, 8188, 8191, 8192, 8200, 8224, 8256) if toy else (50257, 50264, 50272, 50288, 50304, 50432, 51200)
    arms = []
    for v in values:
        products = _linear(scale.dtype, tokens, v, h)
        groups = {op.name: [op] for op in products} | {"together": products}
        for group, ops in groups.items():
            parts = tuple((BenchCase(work=op), 1) for op in ops)
            arms.append(Arm(name=str(v), x=v, parts=parts, group=group, is_baseline=v == values[0]))
    question = f"What does padding a vocabulary of {values[0]} gain in logits, forward and backward?"
    return Study(name="vocabulary", question=question, axis="vocabulary", arms=tuple(arms))


def _head_dim(scale: Scale, size: Size, propose: Propose) -> Study:
    """(d) Head dimensions 32 to 256 at one hidden size, flash attention forward and backward."""
    h, s, b = (640, 256, 1) if size is Size.TOY else (5120, 4096, 2)
    arms = []
    for d in (32, 40, 64, 80, 128, 160, 256):
        for pass_ in (Pass.FORWARD, Pass.BACKWARD):
            a = max(1, h // d)
            work = Attention(
                name="attention", batch=b, num_heads=a, num_kv_heads=a, seq_q=s, seq_kv=s, head_dim=d, v_head_dim=d,
                dtype=scale.dtype, pass_=pass_,
            )  # fmt: skip
            arms.append(
                Arm(name=str(d), x=d, parts=((BenchCase(work=work), 1),), group=pass_.value, is_baseline=d == 80)
            )
    question = f"How fast is flash attention at each head dimension of a hidden size of {h}?"
    return Study(name="head_dim", question=question, axis="head dimension", arms=tuple(arms))


def _waves(scale: Scale, size: Size, propose: Propose) -> Study:
    """(e) The wave staircase: columns in steps of 64 at fixed rows."""
    m, k, longest = (256, 512, 1024) if size is Size.TOY else (2304, 4096, 6144)
    columns = range(64, longest + 1, 64)
    arms = tuple(
        Arm(
            name=str(n),
            x=n,
            work=n,
            parts=((BenchCase(work=Gemm(name="wave", m=m, n=n, k=k, dtype=scale.dtype)), 1),),
            is_baseline=n == columns[-1],
        )
        for n in columns
    )
    question = f"At which columns does the rate of a product of {m} rows fall on {scale.facts.num_sms} units?"
    return Study(name="waves", question=question, axis="columns", arms=arms)


def _decode(scale: Scale, size: Size, propose: Propose) -> Study:
    """(f) Pythia 410M against 1B in decoding: depth costs launches and small GEMMs, width costs bytes."""
    toy = size is Size.TOY
    names = ("pythia-70m", "pythia-160m", "pythia-410m", "pythia-1b", "pythia-1.4b")
    arms = []
    for name in names:
        run = _stack_of(load_model(name), name=name, dtype=scale.dtype)
        if toy:
            run = replace(run, hidden_size=run.hidden_size // 4, num_heads=max(1, run.num_heads // 4),
                          num_kv_heads=max(1, run.num_kv_heads // 4), ffn_hidden_size=run.ffn_hidden_size // 4,
                          vocab_size=run.vocab_size // 16)  # fmt: skip
        run = replace(run, part=StepPart.DECODE, batch=1, seq_len=1, context_len=128 if toy else 2048)
        arms.append(
            Arm(name=name, x=run.num_params, parts=((BenchCase(work=run), 1),), is_baseline=name == "pythia-410m")
        )
    question = "Why is Pythia 1B hardly slower than 410M per token? (layers run one part after the other here)"
    return Study(name="decode", question=question, axis="parameters", arms=tuple(arms))


def _models(scale: Scale, size: Size, propose: Propose) -> Study:
    """(g) Five models against the same-size shapes proposed for them: layers and logits of a training step."""
    toy = size is Size.TOY
    names = TOY_MODELS if toy else MODELS
    tokens: JsonDict = {"batch": 1, "seq_len": 128} if toy else {"batch": 4, "seq_len": 2048}
    arms = []
    for i, name in enumerate(names):
        shapes = {"published": load_model(name), "proposed": propose(name)}
        for which, shape in shapes.items():
            if shape is not None:
                run = _stack_of(shape, name=f"{name}-{which}", dtype=scale.dtype, part=StepPart.TRAIN)
                parts = _model_parts(replace(run, **tokens), scale)
                arms.append(Arm(name=which, x=i, parts=parts, group=name, is_baseline=which == "published"))
    question = "How much faster are the same-size shapes that sartor advise proposes for five models?"
    return Study(name="models", question=question, axis="model", arms=tuple(arms))


MODELS: Sequence[str] = ("phi-2", "openllama-3b", "qwen2.5-1.5b", "llama-3.2-3b", "qwen3-0.6b")
TOY_MODELS: Sequence[str] = ("pythia-70m", "opt-125m", "smollm2-135m", "qwen2.5-0.5b", "qwen3-0.6b")


def _model_parts(run: StackRun, scale: Scale) -> tuple[tuple[BenchCase, int], ...]:
    """A layer (counted for every layer) and the logits' three GEMMs: a step without the memory of the whole model."""
    layer = BenchCase(work=replace(run, num_layers=1, vocab_size=0))
    logits = _linear(scale.dtype, run.batch * run.seq_len, run.vocab_size, run.hidden_size)
    return ((layer, run.num_layers), *((BenchCase(work=op), 1) for op in logits))


STUDIES: Mapping[str, Callable[[Scale, Size, Propose], Study]] = {
    "heads": _heads,
    "swiglu": _swiglu,
    "vocabulary": _vocabulary,
    "head_dim": _head_dim,
    "waves": _waves,
    "decode": _decode,
    "models": _models,
}
"""Studies by name, in the order of their letters (a) to (g)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """One arm. Times are sums over its parts, NaN if a part was not timed."""

    arm: Arm
    predicted_s: float
    low_s: float
    high_s: float
    measured_s: float
    source: str
    predicted_speedup: float = float("nan")
    measured_speedup: float = float("nan")

    @property
    def points(self) -> float:
        """Predicted minus measured speedup, in percentage points."""
        return 100 * (self.predicted_speedup - self.measured_speedup)


def study_results(study: Study, rows: Sequence[JsonMap], gpu: Gpu, calibration: Calibration | None) -> list[ArmResult]:
    """Every arm of a study, in its order."""
    by_key = {pair.case.key: pair for pair in pairs(study.cases, rows, gpu, calibration)}
    results = [_arm(arm, by_key) for arm in study.arms]
    base = {result.arm.group: result for result in results if result.arm.is_baseline}
    return [_against(result, base.get(result.arm.group)) for result in results]


def _arm(arm: Arm, by_key: Mapping[tuple[str, ...], Pair]) -> ArmResult:
    parts = [(by_key.get(case.key), count) for case, count in arm.parts]

    def total(name: str) -> float:
        return sum(count * (getattr(pair, name) if pair else float("nan")) for pair, count in parts)

    sources = {pair.source for pair, _ in parts if pair}
    return ArmResult(
        arm=arm,
        predicted_s=total("predicted_s"),
        low_s=total("low_s"),
        high_s=total("high_s"),
        measured_s=total("measured_s"),
        source="calibrated" if sources == {"calibrated"} else "analytic",
    )


def _against(result: ArmResult, base: ArmResult | None) -> ArmResult:
    if base is None:
        return result
    return replace(
        result,
        predicted_speedup=base.predicted_s / result.predicted_s * (result.arm.work / base.arm.work),
        measured_speedup=base.measured_s / result.measured_s * (result.arm.work / base.arm.work),
    )


def study_body(study: Study, results: Sequence[ArmResult], size: str) -> JsonDict:
    """The ``study`` object of the JSON: all arms, and how far predicted and measured speedups differ."""
    apart = np.asarray([abs(result.points) for result in results if not result.arm.is_baseline])
    apart = apart[np.isfinite(apart)]
    return {
        "name": study.name,
        "question": study.question,
        "axis": study.axis,
        "size": size,
        "arms": [_arm_body(result) for result in results],
        "not_timed": sum(not np.isfinite(result.measured_s) for result in results),
        "median_points_apart": float(np.median(apart)) if apart.size else None,
        "most_points_apart": float(apart.max()) if apart.size else None,
        "within_5_points": int((apart <= 5).sum()),
        "compared": int(apart.size),
        "direction_agrees": _same_direction(results),
    }


def _same_direction(results: Sequence[ArmResult]) -> float | None:
    """Share of arms measured more than 2% off the baseline for which the prediction has the same direction."""
    agreements = [
        (result.predicted_speedup, result.measured_speedup)
        for result in results
        if not result.arm.is_baseline
        and np.isfinite(result.measured_speedup)
        and abs(result.measured_speedup - 1) > 0.02
    ]
    return sum((p > 1) == (m > 1) for p, m in agreements) / len(agreements) if agreements else None


def _arm_body(result: ArmResult) -> JsonDict:
    times = ("predicted_s", "low_s", "high_s", "measured_s", "predicted_speedup", "measured_speedup")
    return {
        "arm": result.arm.name,
        **picked(result.arm, "group", "x", "is_baseline"),
        **picked(result, *times),
        "points_apart": plain(result.points),
        "source": result.source,
        "work": result.arm.work,
        "parts": [{"table": case.table, **case.columns, "count": count} for case, count in result.arm.parts],
    }
