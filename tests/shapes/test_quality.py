"""The guard's bounds, and what is said of a candidate that moves within them."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

import sartor
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.editing import edit
from sartor.model.workload import Workload
from sartor.model.zoo import load_model, model_names
from sartor.report.verdict import advice_lines
from sartor.shapes.quality import (
    Evidence,
    QualityGuard,
    allowed,
    bounds,
    criteria,
    doubt,
    judged,
    levine_depth,
    loss_change,
    nats_per_efold,
    quality_of,
)
from sartor.shapes.search import search_shapes

BASE = load_model("llama-3.1-8b").fields()


def test_every_criterion_has_a_source() -> None:
    assert all(len(criterion.source) > 20 for criterion in criteria())


@pytest.mark.parametrize("width", [0.0, 0.5, 1.0, 2.0])
def test_the_baseline_always_passes(width: float) -> None:
    for name in model_names():
        fields = load_model(name).fields()
        assert allowed(QualityGuard(width=width), fields, fields), name


@pytest.mark.parametrize(
    "change",
    [
        {"num_layers": 23},
        {"num_layers": 41},
        {"head_dim": 32, "num_heads": 128},
        {"num_kv_heads": 2},
        {"num_kv_heads": 32},
        {"num_heads": 8},
        {"ffn_hidden_size": 8192},
        {"ffn_hidden_size": 20480},
        {"hidden_size": 8192},
    ],
)
def test_what_is_too_far_is_refused(change: dict[str, int]) -> None:
    assert not allowed(QualityGuard(), {**BASE, **change}, BASE)


def test_many_are_judged_as_each() -> None:
    layers, widths = np.asarray([20, 26, 32, 40, 44]), np.asarray([9000, 14336, 19000])
    grid = {**BASE, "num_layers": layers[:, None], "ffn_hidden_size": widths}
    many = allowed(QualityGuard(), grid, BASE)
    for (i, n), (j, f) in itertools.product(enumerate(layers), enumerate(widths)):
        assert many[i, j] == allowed(QualityGuard(), {**BASE, "num_layers": n, "ffn_hidden_size": f}, BASE)


def test_a_tighter_guard_allows_no_more() -> None:
    criteria = judged(BASE, BASE)
    assert criteria
    for criterion in criteria:
        edges = [bounds(criterion, QualityGuard(width=width), BASE) for width in (0.25, 0.5, 1.0)]
        lows, highs = zip(*edges, strict=True)
        assert list(lows) == sorted(lows, reverse=True)
        assert list(highs) == sorted(highs)


def test_a_tighter_guard_finds_no_faster_shape() -> None:
    gpu, workload = load_gpu("h100"), Workload(shape=load_model("llama-3.1-8b"), seq_len=2048, microbatch_size=4)
    wide, narrow = (search_shapes(workload, [gpu], guard=QualityGuard(width=w)) for w in (1.0, 0.4))
    best = [max((c.efficiency_gain for c in found.candidates), default=1.0) for found in (wide, narrow)]
    assert best[0] >= best[1]


def test_a_closed_guard_lets_only_the_vocabulary_grow() -> None:
    workload = Workload(shape=load_model("gpt3-2.7b"), seq_len=2048, microbatch_size=4)
    found = search_shapes(workload, [load_gpu("a100")], guard=QualityGuard(width=0))
    assert found.candidates
    assert all(set(candidate.changed) == {"vocab_size"} for candidate in found.candidates)


def test_beyond_the_default_guard_is_said_to_be_outside_the_evidence() -> None:
    inside = quality_of(QualityGuard(), {**BASE, "num_layers": 28}, BASE, 8e9)
    outside = quality_of(QualityGuard(width=2), {**BASE, "num_layers": 20}, BASE, 8e9)
    assert inside.within_evidence
    assert not outside.within_evidence
    assert {check.name for check in outside.checks if not check.within_evidence} == {
        "num_layers",
        "hidden_size_per_layer",
        "kv_elements_per_token",
    }


def test_where_controlled_studies_end_is_said() -> None:
    notes = quality_of(QualityGuard(), {**BASE, "num_layers": 28}, BASE, 8e9).notes
    assert any("num_layers: controlled studies end at 1.5B" in note and "5.3 times" in note for note in notes)
    assert not any("1.5B" in n for n in quality_of(QualityGuard(), {**BASE, "num_layers": 28}, BASE, 1.2e9).notes)


def test_shallower_small_models_are_outside_the_evidence() -> None:
    base = load_model("pythia-410m").fields()
    quality = quality_of(QualityGuard(), {**base, "num_layers": 22}, base, 4.1e8)
    assert not quality.within_evidence
    assert any("MobileLLM" in note for note in quality.notes)


def test_padding_alone_costs_no_quality() -> None:
    base = load_model("gpt3-2.7b").fields()
    quality = quality_of(QualityGuard(), {**base, "vocab_size": 50304}, base, 2.7e9)
    assert quality.evidence is Evidence.KNOWN
    assert quality.moved == ()
    assert "padded" in quality.notes[0]


@pytest.mark.parametrize(
    ("change", "num_params", "evidence"),
    [
        ({"num_heads": 16, "num_kv_heads": 4, "head_dim": 256}, 3e8, Evidence.KNOWN),
        ({"num_heads": 16, "num_kv_heads": 4, "head_dim": 256}, 4e8, Evidence.EXTRAPOLATED),
        ({"num_kv_heads": 16}, 1e8, Evidence.EXTRAPOLATED),
        ({"ffn_hidden_size": 14848}, 4e7, Evidence.KNOWN),
        ({"ffn_hidden_size": 20480}, 4e7, Evidence.OUTSIDE),
    ],
)
def test_known_ends_where_controlled_studies_of_what_moves_end(
    change: dict[str, int], num_params: float, evidence: Evidence
) -> None:
    assert quality_of(QualityGuard(), {**BASE, **change}, BASE, num_params).evidence is evidence


def test_nothing_above_the_largest_study_is_known() -> None:
    of_dense = [criterion for criterion in criteria() if set(criterion.needs) <= set(BASE)]
    largest = max(criterion.studied_params for criterion in of_dense)
    assert largest == 1.5e9
    for criterion in of_dense:
        for name in criterion.needs:
            moved = {**BASE, name: BASE[name] * 1.02} if name in BASE else BASE
            quality = quality_of(QualityGuard(), moved, BASE, 1.01 * largest)
            assert not quality.moved or quality.evidence is not Evidence.KNOWN


def test_every_quantity_is_stated_with_its_range_and_source_moved_or_not() -> None:
    quality = quality_of(QualityGuard(), {**BASE, "ffn_hidden_size": 14848}, BASE, 8e9)
    stated = {check.name: check for check in quality.checks}
    assert {"hidden_size_per_layer", "head_dim", "heads_per_kv_head", "ffn_over_hidden"} <= stated.keys()
    assert all(check.source and check.low <= check.value <= check.high for check in quality.checks)
    assert [check.name for check in quality.moved] == ["ffn_over_hidden"]


def test_levine_s_depth_for_gpt3_is_80_layers() -> None:
    """Levine et al. 2020: a 175B model should have about 80 layers where GPT-3 has 96."""
    assert levine_depth(12288) == pytest.approx(80, abs=2)


@pytest.mark.parametrize("width", [-1.0, float("nan"), float("inf"), 5.0])
def test_a_width_that_is_none_is_refused(width: float) -> None:
    with pytest.raises(InputError, match="evidence"):
        QualityGuard(width=width)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"num_heads": 4, "num_kv_heads": 4, "head_dim": 128},
            "published models of its size have num_heads of 8 to 16, not 4",
        ),
        ({"ffn_hidden_size": 2048}, ""),
    ],
)
def test_a_change_beyond_the_evidence_is_doubted(change: dict[str, int], words: str) -> None:
    before = load_model("pythia-70m")
    assert doubt(edit(before, **change), before, 70e6, 0.05).removesuffix(" as evidence goes") == words


def test_a_change_that_costs_more_loss_than_its_speed_buys_is_doubted() -> None:
    before = load_model("pythia-2.8b")
    fewer = edit(before, num_layers=28)
    loss = float(loss_change(fewer, before).low_nats)
    worth = loss / nats_per_efold(20 * 2.8e9)  # the logarithm of the speedup that buys as much
    assert loss > 0
    assert doubt(fewer, before, 2.8e9, 1 - math.exp(-0.99 * worth)).startswith(f"the loss rises by {loss:.3f} nats")
    assert not doubt(fewer, before, 2.8e9, 1 - math.exp(-1.01 * worth))


@pytest.mark.parametrize(("model", "gpu"), [("pythia-70m", "b200"), ("gpt2", "b200"), ("pythia-2.8b", "h100")])
def test_advice_and_findings_judge_a_change_alike(model: str, gpu: str) -> None:
    found = sartor.advise(model, gpu)
    costly = [finding for finding in found.findings if finding.fix and (finding.gain_fraction or 0) >= 0.01]
    assert found.search.candidates or all(finding.doubt for finding in costly)
    brief = " ".join(advice_lines(found))
    assert found.search.candidates or all(finding.doubt in brief for finding in costly[:1])
