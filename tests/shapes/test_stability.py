"""Ranges within which a recommendation holds, against asking at every tested value alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sartor.hardware.catalog import load_gpu
from sartor.model.editing import edit
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.shapes.evaluate import Evaluator
from sartor.shapes.result import StabilityRange, stability

GPU = load_gpu("a100")
SHOWN = [
    {"num_heads": 20, "num_kv_heads": 20, "head_dim": 128, "vocab_size": 50304},
    {"num_heads": 40, "num_kv_heads": 40, "head_dim": 64, "vocab_size": 50257},
]


def asked(phase: Phase = Phase.TRAIN) -> Workload:
    return Workload(shape=load_model("gpt3-2.7b"), phase=phase, microbatch_size=4, seq_len=1024, context_len=0)


def evaluator(**dims: int) -> Evaluator:
    return Evaluator(dims=ParallelDims(**dims), calibrations={})


def test_speedups_are_those_of_each_value_asked_alone() -> None:
    batches, lengths, *_ = stability(asked(), GPU, evaluator(), SHOWN)
    for line, field in ((batches, "microbatch_size"), (lengths, "seq_len")):
        assert isinstance(line, StabilityRange)
        assert line.axis == field
        for value, speedup in zip(line.tested, line.speedup, strict=True):
            before = replace(asked(), **{field: value})
            after = replace(before, shape=edit(before.shape, **SHOWN[0]))
            alone = [evaluator().one(w, GPU).time_s for w in (before, after)]
            assert speedup == pytest.approx(alone[0] / alone[1], rel=1e-9)


def test_the_stretch_holds_throughout_and_includes_what_was_asked() -> None:
    for line in stability(asked(), GPU, evaluator(), SHOWN):
        if isinstance(line, StabilityRange) and line.beats_baseline is not None:
            low, high = line.beats_baseline
            assert low <= line.asked <= high
            inside = [s for v, s in zip(line.tested, line.speedup, strict=True) if low <= v <= high]
            assert min(inside) > 1


def test_degrees_that_a_shape_does_not_split_over_are_said() -> None:
    base = replace(asked(), shape=edit(load_model("gpt3-2.7b"), vocab_size=50304))
    (tp,) = [line for line in stability(base, GPU, evaluator(), SHOWN[:1]) if line.axis == "tp"]
    assert isinstance(tp, StabilityRange)
    assert tp.tested == (1, 2, 4, 8)
    assert tp.speedup[-1] == 0
    assert "does not split over 8" in str(tp)


def test_decoding_is_tested_over_contexts() -> None:
    workload = replace(asked(Phase.DECODE), context_len=2048)
    lines = stability(workload, GPU, evaluator(), SHOWN)
    assert [line.axis for line in lines][:2] == ["microbatch_size", "context_len"]
    assert all(str(line) for line in lines)


def test_without_candidates_there_is_nothing_to_say() -> None:
    assert stability(asked(), GPU, evaluator(), []) == ()
