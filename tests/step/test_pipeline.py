"""Closed forms of pipelines against the event simulation, which shares nothing with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.errors import InputError
from sartor.model.training import PipelineSchedule
from sartor.model.zoo import load_model
from sartor.step.orders import PipelineTimes, Work, check_schedule, simulate
from sartor.step.pipeline_laws import PipelineWork, pipeline_time
from sartor.step.rank_activations import in_flight
from sartor.step.stages import StageRows, each_device, round_of, stage_counts, stage_rows
from step.in_flight import most_in_flight

ONE_F_ONE_B, ZERO_BUBBLE, GPIPE, ZERO_BUBBLE_V, DUAL_PIPE_V = PipelineSchedule


def every_device(pp: int, virtual: int = 1) -> StageRows:
    """Rows of a pipeline whose devices all differ."""
    return each_device(np.eye(pp, dtype=np.int64), virtual)


def closed(schedule: PipelineSchedule, f: Any, b: Any, w: Any, m: int, **more: Any) -> float:
    f, b, w = (np.asarray(x, dtype=float) for x in (f, b, w))
    virtual = f.shape[1] if f.ndim == 2 else 1
    f, b, w = (x.reshape(len(f), -1).sum(axis=1)[:, None] for x in (f, b, w))
    work = PipelineWork(rows=every_device(len(f), virtual), forward_s=f, dgrad_s=b, wgrad_s=w, **more)
    return float(pipeline_time(work, m, schedule).time_s[0])


def simulated(
    schedule: PipelineSchedule, f: Any, b: Any, w: Any, m: int, transfer_s: float = 0.0, blocking: bool = True
) -> float:
    f, b, w = (np.asarray(x, dtype=float) for x in (f, b, w))
    f, b, w = (x if x.ndim == 2 else x[:, None] for x in (f, b, w))
    times = PipelineTimes(forward_s=f, dgrad_s=b, wgrad_s=w, transfer_s=transfer_s, blocking=blocking)
    return max(event.end_s for event in simulate(schedule, times, m))


SECONDS = st.floats(0.5, 2.0)


@st.composite
def uneven(draw: st.DrawFn) -> tuple[list[float], list[float], list[float], int]:
    pp, m = draw(st.integers(1, 6)), draw(st.integers(1, 14))
    f, b, w = (draw(st.lists(SECONDS, min_size=pp, max_size=pp)) for _ in range(3))
    return f, b, w, m


@given(st.integers(1, 8), st.integers(1, 20), SECONDS, SECONDS)
def test_bubble_of_equal_stages_is_p_minus_1_microbatches_exactly(pp: int, m: int, f: float, b: float) -> None:
    time = closed(ONE_F_ONE_B, [f] * pp, [b] * pp, [0.0] * pp, m)
    assert time == pytest.approx((m + pp - 1) * (f + b), rel=1e-12)
    assert simulated(ONE_F_ONE_B, [f] * pp, [b] * pp, [0.0] * pp, m) == pytest.approx(time, rel=1e-12)


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 3), SECONDS, SECONDS)
def test_interleaving_divides_the_bubble_by_the_chunks(pp: int, v: int, groups: int, f: float, b: float) -> None:
    m = pp * groups
    chunks = np.full((pp, v), f), np.full((pp, v), b), np.zeros((pp, v))
    time = closed(ONE_F_ONE_B, *chunks, m)
    assert time - m * v * (f + b) == pytest.approx((pp - 1) * (f + b), rel=1e-9)
    assert simulated(ONE_F_ONE_B, *chunks, m) == pytest.approx(time, rel=1e-12)


@given(uneven())
def test_1f1b_lies_between_its_paths_and_the_slowest_stage_times_all(case: tuple[Any, Any, Any, int]) -> None:
    f, b, w, m = case
    exact = simulated(ONE_F_ONE_B, f, b, w, m)
    busy = np.sum([f, b, w], axis=0)
    assert closed(ONE_F_ONE_B, f, b, w, m) <= exact * (1 + 1e-12)
    assert exact <= (busy.sum() + (m - 1) * busy.max()) * (1 + 1e-12)
    assert closed(ONE_F_ONE_B, f, b, w, m) >= 0.93 * exact


@given(uneven())
def test_gpipe_is_exact_for_any_stages(case: tuple[Any, Any, Any, int]) -> None:
    f, b, w, m = case
    assert closed(GPIPE, f, b, w, m) == pytest.approx(simulated(GPIPE, f, b, w, m), rel=1e-12)


@given(uneven())
def test_zero_bubble_is_never_above_the_simulation_and_near_it(case: tuple[Any, Any, Any, int]) -> None:
    f, b, w, m = case
    exact = simulated(ZERO_BUBBLE, f, b, w, m)
    assert 0.8 * exact <= closed(ZERO_BUBBLE, f, b, w, m) <= exact * (1 + 1e-12)


@given(st.integers(2, 7), st.integers(0, 10), st.floats(0.8, 1.25), st.floats(0.6, 1.0))
def test_zero_bubble_of_equal_stages_is_the_published_bubble(pp: int, more: int, b: float, w: float) -> None:
    """(p - 1) (f + b - w) of Qi et al. 2023, table 1, where weight gradients are not longer than forward."""
    m = pp + more
    time = closed(ZERO_BUBBLE, [1.0] * pp, [b] * pp, [w] * pp, m)
    assert time == pytest.approx(m * (1 + b + w) + (pp - 1) * max(1 + b - w, 1.0, b), rel=1e-12)


@pytest.mark.parametrize("head", [0.0, 0.7, 3.0])
@pytest.mark.parametrize("schedule", [ONE_F_ONE_B, ZERO_BUBBLE])
@pytest.mark.parametrize(("pp", "m"), [(2, 1), (4, 3), (4, 4), (4, 13), (8, 32)])
def test_equal_layers_with_a_heavy_head_are_exact(head: float, schedule: PipelineSchedule, pp: int, m: int) -> None:
    layers = np.full(pp, 4.0)
    layers[-1] += head
    assert closed(schedule, layers, layers, layers, m) == pytest.approx(
        simulated(schedule, layers, layers, layers, m), rel=1e-12
    )


@given(st.integers(2, 5), st.integers(2, 3), st.integers(1, 4), st.floats(0.0, 4.0))
def test_interleaving_with_a_heavy_head_is_exact(pp: int, v: int, groups: int, head: float) -> None:
    chunks = np.full((pp, v), 4.0)
    chunks[-1, -1] += head
    m = pp * groups
    exact = simulated(ONE_F_ONE_B, chunks, 2 * chunks, 0 * chunks, m)
    assert closed(ONE_F_ONE_B, chunks, 2 * chunks, 0 * chunks, m) == pytest.approx(exact, rel=1e-12)


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 5), st.integers(2, 3), st.integers(1, 3), st.data())
def test_interleaving_uneven_chunks_is_within_a_fifth(pp: int, v: int, groups: int, data: st.DataObject) -> None:
    chunks = np.array(data.draw(st.lists(st.floats(1.0, 1.5), min_size=pp * v, max_size=pp * v))).reshape(pp, v)
    exact = simulated(ONE_F_ONE_B, chunks, 2 * chunks, 0 * chunks, pp * groups)
    assert closed(ONE_F_ONE_B, chunks, 2 * chunks, 0 * chunks, pp * groups) == pytest.approx(exact, rel=0.2)


@given(st.integers(2, 6), st.integers(1, 12), st.floats(0.01, 1.0))
def test_transfers_that_keep_their_sender_are_exact_for_equal_stages(pp: int, m: int, c: float) -> None:
    ones = [1.0] * pp
    exact = simulated(ONE_F_ONE_B, ones, ones, ones, m, transfer_s=c)
    assert closed(ONE_F_ONE_B, ones, ones, ones, m, transfer_s=c) == pytest.approx(exact, rel=0.02)
    assert closed(ONE_F_ONE_B, ones, ones, ones, m, transfer_s=c) <= exact * (1 + 1e-12)


@given(st.integers(2, 5), st.integers(2, 3), st.integers(1, 3), st.floats(0.01, 1.0))
def test_hidden_transfers_cost_the_first_and_last_microbatch_only(pp: int, v: int, groups: int, c: float) -> None:
    chunks = np.ones((pp, v))
    exact = simulated(ONE_F_ONE_B, chunks, chunks, chunks, pp * groups, transfer_s=c, blocking=False)
    time = closed(ONE_F_ONE_B, chunks, chunks, chunks, pp * groups, transfer_s=c, hidden_share=1.0)
    assert time == pytest.approx(exact, rel=1e-12)


@given(st.integers(2, 4), st.integers(2, 3), st.integers(1, 3), st.floats(1.0, 4.0))
def test_transfers_longer_than_a_chunk_are_bounded_from_above(pp: int, v: int, groups: int, c: float) -> None:
    chunks = np.ones((pp, v))
    exact = simulated(ONE_F_ONE_B, chunks, chunks, chunks, pp * groups, transfer_s=c, blocking=False)
    time = closed(ONE_F_ONE_B, chunks, chunks, chunks, pp * groups, transfer_s=c, hidden_share=1.0)
    assert exact <= time * (1 + 1e-12)


@given(st.integers(1, 6), st.integers(1, 12))
def test_1f1b_holds_at_most_pp_minus_stage_microbatches(pp: int, m: int) -> None:
    ones = np.ones((pp, 1))
    events = simulate(ONE_F_ONE_B, PipelineTimes(forward_s=ones, dgrad_s=ones, wgrad_s=ones), m)
    assert [most_in_flight(events, d) for d in range(pp)] == [min(pp - d, m) for d in range(pp)]


@given(st.integers(2, 5), st.integers(2, 3), st.integers(1, 3))
def test_interleaving_holds_its_warmup_and_one_more(pp: int, v: int, groups: int) -> None:
    """Chunks in flight of device d: min(2 (p - 1 - d) + (v - 1) p + 1, m v)."""
    ones, m = np.ones((pp, v)), pp * groups
    events = simulate(ONE_F_ONE_B, PipelineTimes(forward_s=ones, dgrad_s=ones, wgrad_s=ones), m)
    held = [most_in_flight(events, d) for d in range(pp)]
    assert held == [min(2 * (pp - 1 - d) + (v - 1) * pp + 1, m * v) for d in range(pp)]


@given(st.integers(2, 5), st.integers(2, 3), st.integers(0, 15))
def test_rounds_of_any_size_from_pp_on_have_the_same_bubble_and_hold_their_warmup(pp: int, v: int, more: int) -> None:
    ones, m = np.ones((pp, v)), pp + more
    zeros, size = np.zeros((pp, v)), int(round_of(pp, m))
    assert size >= pp
    assert m % size == 0 or m % size >= pp
    assert simulated(ONE_F_ONE_B, ones, ones, zeros, m) == pytest.approx(closed(ONE_F_ONE_B, ones, ones, zeros, m))
    events = simulate(ONE_F_ONE_B, PipelineTimes(forward_s=ones, dgrad_s=ones, wgrad_s=zeros), m)
    held = [most_in_flight(events, d) for d in range(pp)]
    assert held == [int(in_flight(0, np.array(d), pp, v, m).sum()) for d in range(pp)]


def test_interleaving_wants_microbatches_in_rounds() -> None:
    ones = np.ones((4, 2))
    with pytest.raises(InputError, match=r"num_microbatches=6: must be a multiple of pp=4 to interleave; nearest: 4"):
        check_schedule(ONE_F_ONE_B, 4, 2, 6)
    with pytest.raises(InputError, match=r"num_microbatches=3: must be at least pp=4 to interleave"):
        simulate(ONE_F_ONE_B, PipelineTimes(forward_s=ones, dgrad_s=ones, wgrad_s=ones), 3)
    with pytest.raises(InputError, match="two microbatches for each of pp=4"):
        simulate(ZERO_BUBBLE_V, PipelineTimes(forward_s=ones, dgrad_s=ones, wgrad_s=ones), 7)
    with pytest.raises(InputError, match="two chunks per device"):
        simulate(DUAL_PIPE_V, PipelineTimes(forward_s=ones[:, :1], dgrad_s=ones[:, :1], wgrad_s=ones[:, :1]), 8)


@pytest.mark.parametrize("schedule", [ZERO_BUBBLE_V, DUAL_PIPE_V])
@given(st.integers(2, 6), st.integers(0, 7), st.floats(0.7, 1.8), st.floats(0.2, 1.2))
def test_a_v_of_equal_chunks_is_exact(schedule: PipelineSchedule, pp: int, more: int, b: float, w: float) -> None:
    chunks, m = np.ones((pp, 2)), 2 * pp + more
    exact = simulated(schedule, chunks, b * chunks, w * chunks, m)
    assert closed(schedule, chunks, b * chunks, w * chunks, m) == pytest.approx(exact, rel=1e-12)


@given(st.integers(2, 6), st.integers(2, 5))
def test_a_v_idles_a_third_of_interleaving_where_all_tasks_are_equal(pp: int, rounds: int) -> None:
    """Forward, backward and weight gradient of a chunk take 1 s: (p - 1) s against (p - 1) (1 + 2) s."""
    ones, m = np.ones((pp, 2)), pp * rounds
    idle = {s: simulated(s, ones, ones, ones, m) - 6 * m for s in (ONE_F_ONE_B, ZERO_BUBBLE_V, DUAL_PIPE_V)}
    assert idle == {ONE_F_ONE_B: 3 * (pp - 1), ZERO_BUBBLE_V: pp - 1, DUAL_PIPE_V: pp - 1}


@settings(max_examples=60, deadline=None)
@given(st.sampled_from([ZERO_BUBBLE_V, DUAL_PIPE_V, ZERO_BUBBLE]), st.integers(2, 5), st.integers(2, 3), st.data())
def test_uneven_chunks_of_split_schedules_are_within_a_fifth(
    schedule: PipelineSchedule, pp: int, groups: int, data: st.DataObject
) -> None:
    chunks = np.array(data.draw(st.lists(st.floats(1.0, 1.5), min_size=pp * 2, max_size=pp * 2))).reshape(pp, 2)
    exact = simulated(schedule, chunks, chunks, 0.8 * chunks, pp * groups)
    assert closed(schedule, chunks, chunks, 0.8 * chunks, pp * groups) == pytest.approx(exact, rel=0.2)


@given(st.integers(2, 5), st.integers(2, 4), st.integers(1, 4), st.floats(0.8, 1.25), st.floats(0.6, 1.0))
def test_chunks_shorten_the_zero_bubble_further(pp: int, v: int, groups: int, b: float, w: float) -> None:
    chunks, m = np.ones((pp, v)), pp * groups
    exact = simulated(ZERO_BUBBLE, chunks, b * chunks, w * chunks, m)
    assert closed(ZERO_BUBBLE, chunks, b * chunks, w * chunks, m) == pytest.approx(exact, rel=0.05)
    assert exact <= simulated(ONE_F_ONE_B, chunks, b * chunks, w * chunks, m) * (1 + 1e-12)


@pytest.mark.parametrize("schedule", [ZERO_BUBBLE_V, DUAL_PIPE_V])
@given(st.integers(2, 5), st.integers(0, 5))
def test_a_v_does_every_task_once_and_holds_what_is_said(schedule: PipelineSchedule, pp: int, more: int) -> None:
    ones, m = np.ones((pp, 2)), 2 * pp + more
    events = simulate(schedule, PipelineTimes(forward_s=ones, dgrad_s=ones, wgrad_s=ones), m)
    tasks = {(e.device, e.kind, e.chunk, e.microbatch) for e in events}
    assert len(tasks) == len(events) == pp * 2 * m * 3
    said = in_flight(int(schedule), np.arange(pp), pp, 2, m)
    held = [most_in_flight(events, d, until=Work.WGRAD) for d in range(pp)]
    assert held == np.asarray(said).sum(axis=-1).tolist()


def test_a_v_keeps_head_and_embedding_on_the_first_device() -> None:
    shape = load_model("llama3-8b")
    counts = stage_counts(shape, 4, 2, v_shaped=True)
    assert counts[0, 0, 0] == counts[0, 1, -1] == 1
    assert counts[:, :, 1:-1].sum() == 32
    assert counts[-1, :, [0, -1]].sum() == 0


def test_embedding_and_head_have_chunks_of_their_own_where_there_are_two_more_than_layers() -> None:
    shape = load_model("llama-3.1-405b")
    layers = stage_counts(shape, 16, 8)[:, :, 1:-1].sum(axis=2)
    assert layers.sum() == 126
    assert layers[0, 0] == layers[-1, -1] == 0


@pytest.mark.parametrize("model", ["llama3-8b", "deepseek-v3"])
@pytest.mark.parametrize(("pp", "v"), [(1, 1), (2, 1), (4, 2), (5, 3), (16, 1)])
def test_every_layer_is_on_one_chunk(model: str, pp: int, v: int) -> None:
    shape = load_model(model)
    counts = stage_counts(shape, pp, v)
    whole = stage_counts(shape, 1)[0, 0]
    assert counts.shape == (pp, v, len(whole))
    assert (counts.sum(axis=(0, 1)) == whole).all()
    rows = stage_rows(stage_counts(shape, pp, v))
    assert rows.times @ rows.counts == pytest.approx(whole)
    assert rows.times.sum() == pp
    assert counts[0, 0, 0] == counts[-1, -1, -1] == 1


@given(st.integers(1, 40), st.integers(1, 30), st.floats(0.1, 3.0))
def test_distinct_devices_price_as_all_devices_do(pp: int, m: int, head: float) -> None:
    shape = load_model("llama3-8b")
    pp = min(pp, 32)
    seconds = np.array([0.3, 1.0, head])
    rows = stage_rows(stage_counts(shape, pp))
    few = PipelineWork(
        rows=rows, **dict.fromkeys(("forward_s", "dgrad_s", "wgrad_s"), (rows.counts @ seconds)[:, None])
    )
    all_ = stage_counts(shape, pp).sum(axis=1) @ seconds
    for schedule in PipelineSchedule:
        time = float(pipeline_time(few, m, schedule).time_s[0])
        assert time == pytest.approx(closed(schedule, all_, all_, all_, m), rel=1e-9)


def test_stage_layers_must_add_up() -> None:
    shape = load_model("llama3-8b")
    assert stage_counts(shape, 2, 1, (15, 17))[:, 0, 1].tolist() == [15, 17]
    with pytest.raises(InputError, match=r"stage_layers=\[16, 17\]: must be 2 numbers.*32 layers; nearest: 16, 16"):
        stage_counts(shape, 2, 1, (16, 17))
