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
from sartor.model.parallel import ParallelDims
from sartor.model.shape import TransformerShape
from sartor.model.workload import AttentionKernel, Phase, Workload
from sartor.model.zoo import load_model
from sartor.shapes.quality import QualityGuard, allowed
from sartor.shapes.search import SMALLEST_EDIT_SHARE, Candidate, ShapeSearch, search_shapes
from sartor.shapes.space import Axis, Space, is_coupled
from strategies import shapes

A100 = load_gpu("a100")


def workload(name: str = "gpt3-2.7b", **fields: object) -> Workload:
    return replace(Workload(shape=load_model(name), microbatch_size=4), **fields)  # type: ignore[arg-type]


@cache
def gpt3(kernel: AttentionKernel = AttentionKernel.UNFUSED, freeze: tuple[str, ...] = ()) -> ShapeSearch:
    """The case study of arXiv 2401.14489: 32 layers, hidden size 2560, 32 heads, vocabulary 50257."""
    return search_shapes(workload(attention_kernel=kernel), [A100], freeze=freeze)


@cache
def llama(objective: Phase = Phase.TRAIN) -> ShapeSearch:
    gpus = [load_gpu(name) for name in ("h100", "a100", "mi300x")]
    return search_shapes(workload("llama-3.1-8b"), gpus, objective=objective)


@cache
def deepseek() -> ShapeSearch:
    """Latent attention and experts; decoding, where fewer experts or heads may pay."""
    return search_shapes(workload("deepseek-v2-lite", phase=Phase.DECODE, context_len=4096), [A100])


def all_candidates(found: ShapeSearch) -> list[Candidate]:
    extra = [found.smallest_edit, found.minimax, *found.best_per_gpu.values()]
    return [*found.candidates, *(c for c in extra if c is not None)]


# --- exact within the grid -----------------------------------------------------------------------------------------


def tiny() -> Space:
    heads = np.asarray([(16, 16, 160), (20, 20, 128), (32, 32, 80), (40, 40, 64)]).T
    return Space(
        shape=load_model("gpt3-2.7b"),
        axes=(
            Axis(values={"num_layers": np.asarray([28, 32])}),
            Axis(values={"hidden_size": np.asarray([2560])}),
            Axis(values={"num_heads": heads[0], "num_kv_heads": heads[1], "head_dim": heads[2]}),
            Axis(values={"vocab_size": np.asarray([50257, 50304])}),
            Axis(values={}),
            Axis(values={"ffn_hidden_size": np.asarray([10112, 10176, 10240, 12224, 12288, 12352])}),
        ),
    )


def one_by_one(space: Space, asked: Workload) -> list[tuple[dict[str, int], float, float, int]]:
    """(fields, training seconds, decoding seconds, parameters) of every allowed combination of the size."""
    own, total = space.baseline, count_params(space.shape).total
    names = [name for axis in space.axes for name in axis.values]
    rows = [list(zip(*axis.values.values(), strict=True)) or [()] for axis in space.axes]
    out = []
    for parts in itertools.product(*rows):
        fields = dict(zip(names, (int(v) for part in parts for v in part), strict=True))
        shape = edit(space.shape, **fields)
        params = int(count_params(shape).total)
        if abs(params - total) > 0.01 * total or not is_coupled(fields) or not allowed(QualityGuard(), fields, own):
            continue
        train = price(lower(replace(asked, shape=shape)), A100).time_s
        decoding = replace(asked, shape=shape, phase=Phase.DECODE, context_len=asked.seq_len)
        out.append((fields, train, price(lower(decoding), A100).time_s, params))
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
    best = min(known, key=lambda row: row[1])
    assert {n: found.candidates[0].fields[n] for n in best[0]} == best[0]
    points = np.asarray([(t, d, abs(p - total), edits(f, space.baseline)) for f, t, d, p in known])
    beaten = (points[:, None] >= points[None]).all(axis=2) & (points[:, None] > points[None] * (1 + 1e-9)).any(axis=2)
    expected = [row[0] for row, is_beaten in zip(known, beaten.any(axis=1), strict=True) if not is_beaten]
    front = [{n: p.fields[n] for n in space.baseline} for p in found.front]
    assert sorted(map(str, front)) == sorted(map(str, expected))


@pytest.mark.parametrize("found", [gpt3, llama, lambda: llama(Phase.DECODE)])
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
    for answer in (gpt3(), llama()):
        times = [candidate.time_s for candidate in answer.candidates]
        own = answer.workload.shape.fields()
        assert times == sorted(times)
        for candidate in all_candidates(answer):
            assert abs(candidate.params_change) <= 0.01
            shape = candidate.shape.fields()
            assert {n: (own[n], v) for n, v in shape.items() if own[n] != v} == candidate.changed
            assert candidate.speedup_low <= candidate.speedup <= candidate.speedup_high
            assert 0 <= candidate.confidence <= 1


def test_no_shown_shape_carries_an_edit_that_gains_nothing() -> None:
    for answer in (gpt3(), gpt3(AttentionKernel.FLASH), llama()):
        heads = ("num_heads", "num_kv_heads", "head_dim")
        for one, other in itertools.permutations(answer.candidates, 2):
            alike = all(one.fields[name] == other.fields[name] for name in heads)
            if alike and one.changed.keys() < other.changed.keys():
                assert other.time_s < one.time_s


def test_a_mixture_of_experts_is_not_called_faster_for_being_used_less() -> None:
    answer = deepseek()
    assert answer.candidates
    active = count_params(answer.workload.shape).active
    for candidate in answer.candidates:
        used = min(1.0, float(count_params(candidate.shape).active / active))
        assert candidate.time_s / answer.baseline.time_s < used


def test_being_smaller_is_no_gain_however_wide_the_tolerance() -> None:
    answer = search_shapes(workload(), [A100], params_tolerance=0.3)
    assert answer.smallest_edit is not None
    for candidate in (*answer.candidates, answer.smallest_edit):
        assert candidate.time_s / answer.baseline.time_s < min(1.0, 1 + candidate.params_change)


def test_showing_none_is_refused_rather_than_read_as_nothing_faster() -> None:
    with pytest.raises(InputError, match="top=0"):
        search_shapes(workload(), [A100], top=0)


def test_latent_attention_keeps_as_many_key_value_heads_as_heads() -> None:
    others = ("num_layers", "hidden_size", "vocab_size", "num_experts", "expert_ffn_hidden_size")
    answer = search_shapes(workload("deepseek-v3"), [A100], freeze=others)
    assert any("num_heads" in candidate.changed for candidate in all_candidates(answer))
    for candidate in all_candidates(answer):
        assert candidate.fields["num_kv_heads"] == candidate.fields["num_heads"]
        assert candidate.fields == candidate.shape.fields()


def test_the_same_question_gets_the_same_answer() -> None:
    first, again = (search_shapes(workload(), [A100]) for _ in range(2))
    assert first.candidates == again.candidates
    assert first.front == again.front
    assert first.stability == again.stability


def test_no_shown_gain_is_only_a_smaller_model() -> None:
    for candidate in (*gpt3().candidates, *llama().candidates):
        assert 1 / candidate.speedup < min(1, 1 + candidate.params_change)


def test_no_shown_candidate_does_more_for_no_gain() -> None:
    """One whose edits include another's must be faster."""
    shown = gpt3().candidates
    for one, other in itertools.permutations(shown, 2):
        if set(one.changed) < set(other.changed):
            assert other.time_s <= one.time_s * (1 + 1e-9)


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
    assert found[20].num_changes == 1
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


def test_the_smallest_edit_is_the_front_s_one_with_fewest_changes_for_most_of_the_gain() -> None:
    found = gpt3()
    least, best = found.smallest_edit, found.candidates[0]
    assert least is not None
    needed = SMALLEST_EDIT_SHARE * (1 - 1 / best.speedup)
    assert 1 - 1 / least.speedup >= needed
    enough = [p for p in found.front if 1 - 1 / p.speedup >= needed]
    assert least.num_changes == min(p.num_changes for p in enough)


def test_each_device_has_its_own_best_and_minimax_regrets_least() -> None:
    found = llama()
    assert found.minimax is not None
    names = [gpu.name for gpu in found.gpus]
    assert list(found.best_per_gpu) == names
    top = {name: found.best_per_gpu[name].per_gpu[name] for name in names}

    def regret(candidate: Candidate) -> float:
        return max(top[name] / candidate.per_gpu[name] - 1 for name in names)

    assert found.regret == pytest.approx(regret(found.minimax), abs=1e-9)
    for candidate in all_candidates(found):
        assert regret(candidate) >= found.regret - 1e-9
        assert all(candidate.per_gpu[name] <= top[name] * (1 + 1e-9) for name in names)
        assert candidate.per_gpu[names[0]] == pytest.approx(candidate.speedup, rel=1e-9)


def test_one_device_has_no_minimax() -> None:
    assert gpt3().minimax is None
    assert gpt3().regret == 0


@pytest.mark.parametrize("objective", list(Phase))
def test_the_objective_is_what_gets_faster(objective: Phase) -> None:
    found = llama(objective)
    assert found.workload.phase is objective
    best = found.candidates[0]
    assert best.speedup > 1
    for other in Phase:
        rival = llama(other).candidates[0]
        assert best.phase_s[objective.value] <= rival.phase_s[objective.value] * (1 + 1e-9)


def test_decoding_prefers_fewer_layers() -> None:
    """Digest 4.6, Pythia: a shallower, wider model of a size decodes faster."""
    found = search_shapes(workload("pythia-410m", microbatch_size=1), [A100], objective=Phase.DECODE)
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
    found = search_shapes(workload("llama-3.1-70b"), [load_gpu("h100")], dims)
    assert found.candidates
    for candidate in found.candidates:
        lower(replace(found.workload, shape=candidate.shape), dims)


def test_a_wider_interval_moves_no_candidate() -> None:
    narrow, wide = (search_shapes(workload(), [A100], sigma_factor=f) for f in (1.0, 2.0))
    assert [c.fields for c in narrow.candidates] == [c.fields for c in wide.candidates]
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
