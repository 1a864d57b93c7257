"""The search end to end: exact within its grid, honest about gains, and right where the answer is known."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.cost.price import price
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.counts import count_params
from sartor.model.editing import edit
from sartor.model.lower import lower
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.shapes.quality import QualityGuard, allowed
from sartor.shapes.result import NOISE
from sartor.shapes.search import SMALLEST_EDIT_SHARE, Candidate, ShapeSearch, search_shapes
from sartor.shapes.space import ShapeAxis, Space, is_coupled
from strategies import shapes

A100 = load_gpu("a100")


def workload(name: str = "gpt3-2.7b", **fields: object) -> Workload:
    return replace(Workload(shape=load_model(name), seq_len=2048, microbatch_size=4), **fields)  # type: ignore[arg-type]


@cache
def gpt3(
    kernel: AttentionKernel = AttentionKernel.UNFUSED, freeze: tuple[str, ...] = (), free: tuple[str, ...] = ()
) -> ShapeSearch:
    """The case study of arXiv 2401.14489: 32 layers, hidden size 2560, 32 heads, vocabulary 50257."""
    return search_shapes(workload(attention_kernel=kernel), [A100], freeze=freeze, free=free)


@cache
def llama(objective: Phase = Phase.TRAIN) -> ShapeSearch:
    gpus = [load_gpu(name) for name in ("h100", "a100", "mi300x")]
    return search_shapes(workload("llama-3.1-8b"), gpus, objective=objective)


@cache
def pythia(objective: Phase) -> ShapeSearch:
    """Small and deep; with its depth freed every phase has something to gain."""
    shape = edit(load_model("pythia-410m"), vocab_size=50300)
    return search_shapes(workload(shape=shape), [A100], objective=objective, free=["num_layers"])


@cache
def deepseek() -> ShapeSearch:
    """Latent attention and experts; decoding, where fewer experts or heads may pay."""
    return search_shapes(workload("deepseek-v2-lite", phase=Phase.DECODE, context_len=4096), [A100])


def all_candidates(found: ShapeSearch) -> list[Candidate]:
    extra = [found.smallest_edit, found.unsure, found.minimax, *found.best_per_gpu.values()]
    return [*found.candidates, *(c for c in extra if c is not None)]


# --- exact within the grid -----------------------------------------------------------------------------------------


def tiny() -> Space:
    heads = np.asarray([(16, 16, 160), (20, 20, 128), (32, 32, 80), (40, 40, 64)]).T
    return Space(
        shape=load_model("gpt3-2.7b"),
        axes=(
            ShapeAxis(values={"num_layers": np.asarray([28, 32])}),
            ShapeAxis(values={"hidden_size": np.asarray([2560])}),
            ShapeAxis(values={"num_heads": heads[0], "num_kv_heads": heads[1], "head_dim": heads[2]}),
            ShapeAxis(values={"vocab_size": np.asarray([50257, 50304])}),
            ShapeAxis(values={}),
            ShapeAxis(values={"ffn_hidden_size": np.asarray([10112, 10176, 10240, 12224, 12288, 12352])}),
        ),
    )


def one_by_one(space: Space, asked: Workload) -> list[tuple[dict[str, int], float, float, int, float]]:
    """(fields, training seconds, decoding seconds, parameters, training seconds at equal work) of every allowed
    combination of the size."""
    own, total = space.baseline, count_params(space.shape).total
    flops = lower(asked).matmul_flops
    names = [name for axis in space.axes for name in axis.values]
    rows = [list(zip(*axis.values.values(), strict=True)) or [()] for axis in space.axes]
    out = []
    for parts in itertools.product(*rows):
        fields = dict(zip(names, (int(v) for part in parts for v in part), strict=True))
        shape = edit(space.shape, **fields)
        params = int(count_params(shape).total)
        if abs(params - total) > 0.01 * total or not is_coupled(fields) or not allowed(QualityGuard(), fields, own):
            continue
        graph = lower(replace(asked, shape=shape))
        train = price(graph, A100).time_s
        decoding = replace(asked, shape=shape, phase=Phase.DECODE, context_len=asked.seq_len)
        work = min(1.0, params / total, graph.matmul_flops / flops)
        out.append((fields, train, price(lower(decoding), A100).time_s, params, train / work))
    return out


def edits(fields: dict[str, int], own: dict[str, int]) -> int:
    """Fields that differ, heads and what follows from them as one."""
    return sum(fields[n] != own[n] for n in ("num_layers", "vocab_size", "num_heads", "ffn_hidden_size"))


def test_the_best_and_the_front_are_those_found_one_by_one() -> None:
    space, asked = tiny(), workload()
    found = search_shapes(asked, [A100], space=space)
    known = one_by_one(space, asked)
    total = count_params(space.shape).total
    assert found.evaluated == len(known)
    best = min(known, key=lambda row: row[4])
    today = next(row[4] for row in known if row[0] == space.baseline)
    assert found.candidates[0].efficiency_gain >= today / best[4] - NOISE
    points = np.asarray([(t, d, abs(p - total), edits(f, space.baseline)) for f, t, d, p, _ in known])
    beaten = (points[:, None] >= points[None]).all(axis=2) & (points[:, None] > points[None] * (1 + 1e-9)).any(axis=2)
    expected = [row[0] for row, is_beaten in zip(known, beaten.any(axis=1), strict=True) if not is_beaten]
    front = [{n: p.fields[n] for n in space.baseline} for p in found.front]
    assert sorted(map(str, front)) == sorted(map(str, expected))


@pytest.mark.parametrize("found", [gpt3, lambda: gpt3(free=("num_layers",)), lambda: pythia(Phase.DECODE)])
def test_every_candidate_priced_alone_takes_exactly_the_time_told(found: object) -> None:
    answer: ShapeSearch = found()  # type: ignore[operator]
    assert answer.candidates
    for candidate in all_candidates(answer):
        asked = replace(answer.workload, shape=candidate.shape)
        alone = price(lower(asked), answer.gpus[0])
        assert candidate.time_s == alone.time_s
        assert candidate.num_params == count_params(candidate.shape).total
        assert candidate.speedup == pytest.approx(answer.baseline.time_s / alone.time_s, rel=1e-12)
        assert candidate.phase_s[asked.phase.value] == pytest.approx(alone.time_s, rel=1e-12)


def test_candidates_are_best_first_within_tolerance_and_change_what_they_say() -> None:
    for answer in (gpt3(), gpt3(free=("num_layers",)), llama()):
        own = answer.workload.shape.fields()
        for one, later in itertools.combinations(answer.candidates, 2):
            assert 1 / one.efficiency_gain <= 1 / later.efficiency_gain + NOISE + 1e-9
        for candidate in all_candidates(answer):
            assert abs(candidate.params_change) <= 0.01
            shape = candidate.shape.fields()
            assert {n: (own[n], v) for n, v in shape.items() if own[n] != v} == candidate.changed
            assert candidate.speedup_low <= candidate.speedup <= candidate.speedup_high
            assert 0 <= candidate.confidence <= 1


def test_no_shown_shape_carries_an_edit_that_gains_nothing() -> None:
    for answer in (gpt3(), gpt3(AttentionKernel.FLASH), gpt3(free=("num_layers",))):
        heads = ("num_heads", "num_kv_heads", "head_dim")
        for one, other in itertools.permutations(answer.candidates, 2):
            alike = all(one.fields[name] == other.fields[name] for name in heads)
            if alike and one.changed.keys() < other.changed.keys():
                assert other.efficiency_gain > one.efficiency_gain


def test_what_is_advised_surely_gains_at_equal_work() -> None:
    """Llama-3.1-70B on H100: all ten candidates once were smaller models, 1.021x of which 1.006x was efficiency."""
    big = search_shapes(workload("llama-3.1-70b"), [load_gpu("h100")])
    for answer in (gpt3(), gpt3(free=("num_layers",)), llama(), llama(Phase.DECODE), deepseek(), big):
        flops = lower(answer.workload).matmul_flops
        params = count_params(answer.workload.shape)
        for candidate in all_advised(answer):
            asked = replace(answer.workload, shape=candidate.shape)
            counts = count_params(candidate.shape)
            work = [counts.total / params.total, counts.active / params.active, lower(asked).matmul_flops / flops]
            assert candidate.efficiency_gain == pytest.approx(candidate.speedup * min(1.0, *work), rel=1e-9)
            assert 1 < candidate.efficiency_low < candidate.efficiency_gain < candidate.efficiency_high
            assert candidate.efficiency_gain <= candidate.speedup


def all_advised(answer: ShapeSearch) -> list[Candidate]:
    return [*answer.candidates, *([answer.smallest_edit] if answer.smallest_edit else [])]


def test_a_gain_whose_interval_holds_one_is_no_advice_but_said() -> None:
    answer = search_shapes(workload("llama-3.1-70b"), [load_gpu("h100")])
    assert answer.candidates == ()
    assert answer.smallest_edit is None
    assert answer.unsure is not None
    assert answer.unsure.efficiency_low <= 1 < answer.unsure.efficiency_gain


def test_being_smaller_is_no_gain_however_wide_the_tolerance() -> None:
    answer = search_shapes(workload(), [A100], params_tolerance=0.3, free=["num_layers"])
    assert answer.smallest_edit is not None
    for candidate in all_advised(answer):
        assert candidate.time_s / answer.baseline.time_s < min(1.0, 1 + candidate.params_change)


def test_the_depth_stays_unless_it_is_freed() -> None:
    assert all("num_layers" not in candidate.changed for candidate in all_candidates(gpt3()))
    freed = gpt3(free=("num_layers",))
    assert any("num_layers" in candidate.changed for candidate in freed.candidates)
    assert freed.evaluated > gpt3().evaluated


@pytest.mark.parametrize(
    ("name", "field", "why"),
    [
        ("deepseek-v2-lite", "head_dim", "latent attention"),
        ("deepseek-v2-lite", "num_kv_heads", "follows from num_heads"),
        ("gpt2", "num_kv_heads", "a key/value head for every head"),
        ("falcon-7b", "num_kv_heads", "one key/value head"),
        ("gpt3-2.7b", "num_experts", "not a size of this model"),
        ("gpt3-2.7b", "kv_lora_rank", "not a size of this model"),
    ],
)
def test_a_field_that_cannot_change_is_not_freed(name: str, field: str, why: str) -> None:
    with pytest.raises(InputError, match=rf"{field}.*{why}.*hidden_size|{field}.*{why}.*num_layers"):
        search_shapes(workload(name), [A100], free=[field])


def test_a_field_is_frozen_or_freed_not_both() -> None:
    with pytest.raises(InputError, match="cannot be frozen too"):
        search_shapes(workload(), [A100], free=["num_layers"], freeze=["num_layers"])


def test_a_tolerance_that_leaves_only_the_model_names_the_nearest_that_does_not() -> None:
    others = ("hidden_size", "num_heads", "head_dim", "ffn_hidden_size")
    with pytest.raises(InputError, match="params_tolerance=0: ") as refused:
        search_shapes(workload(), [A100], params_tolerance=0, freeze=others)
    nearest = float(refused.value.nearest)
    assert search_shapes(workload(), [A100], params_tolerance=nearest, freeze=others).evaluated > 1


def test_a_smallest_edit_has_no_field_that_fewer_would_do_without() -> None:
    answer = gpt3(free=("num_layers",))
    assert answer.smallest_edit is not None
    enough = SMALLEST_EDIT_SHARE * max(1 - 1 / c.efficiency_gain for c in answer.candidates)
    doing = [c for c in answer.candidates if 1 - 1 / c.efficiency_gain >= enough]
    assert answer.smallest_edit.num_fields == min(c.num_fields for c in doing) <= 2


def test_showing_none_is_refused_rather_than_read_as_nothing_faster() -> None:
    with pytest.raises(InputError, match="top=0"):
        search_shapes(workload(), [A100], top=0)


def test_latent_attention_keeps_as_many_key_value_heads_as_heads() -> None:
    others = ("num_layers", "hidden_size", "vocab_size", "num_experts", "expert_ffn_hidden_size")
    answer = search_shapes(workload("deepseek-v3"), [A100], freeze=others)
    for candidate in all_candidates(answer):
        assert candidate.fields["num_kv_heads"] == candidate.fields["num_heads"]
        assert candidate.fields == candidate.shape.fields()


def test_the_same_question_gets_the_same_answer() -> None:
    first, again = (search_shapes(workload(), [A100]) for _ in range(2))
    assert first.candidates == again.candidates
    assert first.front == again.front
    assert first.stability == again.stability


# --- known answers -------------------------------------------------------------------------------------------------


def test_gpt3_2_7b_gets_heads_of_a_better_width_by_itself() -> None:
    """Digest 4.6: head dimension 80 = 5 x 16 is the trouble; 64, 128 and 160 hold larger powers of two."""
    best = gpt3().candidates[0]
    assert best.fields["head_dim"] in (64, 128, 160, 192, 256)
    assert best.fields["vocab_size"] % 64 == 0
    assert best.speedup > 1.1
    assert best.confidence > 0.9


@pytest.mark.parametrize("kernel", list(AttentionKernel))
def test_gpt3_2_7b_with_20_heads_beats_32_at_equal_parameters_and_flops(kernel: AttentionKernel) -> None:
    frozen = ("num_layers", "hidden_size", "vocab_size", "ffn_hidden_size")
    found = {c.fields["num_heads"]: c for c in gpt3(kernel, frozen).candidates}
    assert found[20].speedup > 1.02
    assert found[20].params_change == 0
    assert found[20].flops_change == pytest.approx(0, abs=1e-12)
    assert found[20].num_fields == 1
    assert found[20].changed == {"num_heads": (32, 20), "num_kv_heads": (32, 20), "head_dim": (80, 128)}


def test_padding_50257_to_50304_gains_by_itself() -> None:
    single = {edit_.field: edit_ for edit_ in gpt3().single_edits}
    assert single["vocab_size"].new in (50304, 50432)
    assert single["vocab_size"].speedup > 1.01


def test_swiglu_width_near_eight_thirds_is_rounded_to_what_tiles_like() -> None:
    """h = 4096: 8h/3 = 10922.67; 10922 is 2 x 43 x 127 and falls off the fast path (digest 4.6)."""
    shape = edit(load_model("llama-2-7b"), ffn_hidden_size=10922)
    others = ("num_layers", "hidden_size", "vocab_size", "num_heads", "head_dim")
    found = search_shapes(replace(workload("llama-2-7b"), shape=shape), [load_gpu("h100")], freeze=others)
    best = found.candidates[0]
    assert best.fields["ffn_hidden_size"] % 64 == 0
    assert best.speedup > 1.1


def test_freezes_are_respected() -> None:
    frozen = ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_dim")
    for candidate in all_candidates(gpt3(freeze=frozen)):
        assert not set(candidate.changed) & set(frozen)


def test_with_everything_frozen_there_is_nothing_to_propose() -> None:
    found = gpt3(freeze=tuple(load_model("gpt3-2.7b").fields()))
    assert found.evaluated == 1
    assert found.candidates == ()
    assert found.smallest_edit is None
    assert found.stability == ()


# --- smallest edit, several devices, objectives --------------------------------------------------------------------


def test_each_device_has_its_own_best_and_minimax_regrets_least() -> None:
    found = llama()
    assert found.minimax is not None
    names = [gpu.name for gpu in found.gpus]
    assert list(found.best_per_gpu) == names

    def gain(candidate: Candidate, name: str) -> float:
        return candidate.per_gpu[name] * candidate.efficiency_gain / candidate.speedup

    top = {name: gain(found.best_per_gpu[name], name) for name in names}

    def regret(candidate: Candidate) -> float:
        return max(top[name] / gain(candidate, name) - 1 for name in names)

    assert found.regret == pytest.approx(regret(found.minimax), abs=1e-9)
    for candidate in all_candidates(found):
        assert regret(candidate) >= found.regret - 1e-9
        assert all(gain(candidate, name) <= top[name] * (1 + 1e-9) for name in names)
        assert candidate.per_gpu[names[0]] == pytest.approx(candidate.speedup, rel=1e-9)


def test_one_device_has_no_minimax() -> None:
    assert gpt3().minimax is None
    assert gpt3().regret == 0


@pytest.mark.parametrize("objective", [Phase.TRAIN, Phase.DECODE])
def test_the_objective_is_what_gets_faster(objective: Phase) -> None:
    found = pythia(objective)
    assert found.workload.phase is objective
    for candidate in found.candidates:
        seconds = candidate.phase_s[objective.value]
        assert candidate.speedup == pytest.approx(found.baseline.time_s / seconds, rel=1e-9)
        assert candidate.speedup > 1


def test_decoding_prefers_fewer_layers() -> None:
    """Digest 4.6, Pythia: a shallower, wider model of a size decodes faster."""
    asked = workload("pythia-410m", microbatch_size=1)
    found = search_shapes(asked, [A100], objective=Phase.DECODE, free=["num_layers"])
    assert found.candidates[0].fields["num_layers"] < 24


def test_an_encoder_cannot_be_asked_to_decode() -> None:
    with pytest.raises(InputError, match=r"decode.*train or prefill"):
        search_shapes(workload("bert-base"), [A100], objective=Phase.DECODE)


def test_no_device_is_an_answerable_error() -> None:
    with pytest.raises(InputError, match="gpu"):
        search_shapes(workload(), [])


@pytest.mark.parametrize(
    "name",
    [
        "bert-large",
        "t5-large",
        "deepseek-v3",
        "mixtral-8x7b",
        "gpt-oss-20b",
        "gemma-3-4b",
        "falcon-7b",
        "qwen3-30b-a3b",
    ],
)
def test_every_kind_of_model_is_searched(name: str) -> None:
    found = search_shapes(workload(name, seq_len=512), [load_gpu("h100")])
    assert found.evaluated >= 1
    assert found.baseline.time_s > 0
    for candidate in found.candidates:
        assert candidate.speedup > 1
        again = price(lower(replace(found.workload, shape=candidate.shape)), found.gpus[0])
        assert again.time_s == candidate.time_s


def test_tensor_parallel_candidates_split() -> None:
    dims = ParallelDims(tp=8)
    found = search_shapes(
        workload("llama-3.1-70b", shape=edit(load_model("llama-3.1-70b"), ffn_hidden_size=28000)),
        [load_gpu("h100")],
        dims,
    )
    assert found.candidates
    for candidate in found.candidates:
        lower(replace(found.workload, shape=candidate.shape), dims)


def test_a_wider_interval_adds_no_candidate() -> None:
    narrow, wide = (search_shapes(workload(), [A100], sigma_factor=f) for f in (1.0, 2.0))
    assert all(c.fields in [n.fields for n in narrow.candidates] for c in wide.candidates)
    assert wide.candidates[0].speedup_high > narrow.candidates[0].speedup_high


@settings(max_examples=25, deadline=None)
@given(shapes(), st.sampled_from(list(Phase)), st.sampled_from([1, 2, 4]))
def test_any_shape_can_be_asked_about(shape: TransformerShape, phase: Phase, tp: int) -> None:
    dims = ParallelDims(tp=tp)
    asked = Workload(shape=shape, phase=phase, microbatch_size=2, seq_len=128, context_len=64)
    found = search_shapes(asked, [A100], dims)
    assert found.evaluated >= 1
    for candidate in all_candidates(found):
        alone = price(lower(replace(found.workload, shape=candidate.shape), dims), A100)
        assert candidate.time_s == alone.time_s
        assert abs(count_params(candidate.shape).total / count_params(shape).total - 1) <= 0.01


@pytest.mark.parametrize("change", [{"hidden_size": 10**6}, {"num_layers": 10**6}, {"ffn_hidden_size": 10**9}])
def test_absurd_sizes_are_searched_without_drowning(change: dict[str, int]) -> None:
    shape = edit(load_model("mistral-7b-v0.1"), **change)
    found = search_shapes(Workload(shape=shape, microbatch_size=1, seq_len=64), [A100])
    assert found.grid_size < 10**10
