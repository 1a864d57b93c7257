"""Terminal views: they fit 100 columns, nothing is cut, nothing a file says can colour or move the terminal."""

from __future__ import annotations

import functools
import io
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console, RenderableType

from sartor import api
from sartor.answers.advice import Advice
from sartor.answers.estimate import ModelEstimate
from sartor.answers.plan import PlanAnswer
from sartor.api.shapes import findings_of
from sartor.report import advice_document, plan_document, table_estimate, table_operators
from sartor.report.fit_words import first_change, headline
from sartor.report.grid import grid_of, grid_view, wide_column
from sartor.report.points import operator_times
from sartor.report.verdict import verdict_parts
from sartor.rules.rule import Grade

HOSTILE = "evil\x1b[31m[red]name[/red]<script>alert(1)</script>"
CUT = "…"


def rendered(view: RenderableType, *, terminal: bool = False, width: int = 100) -> list[str]:
    out = io.StringIO()
    Console(width=width, file=out, force_terminal=terminal, color_system=None, highlight=False).print(view)
    return out.getvalue().splitlines()


def renamed(answer: ModelEstimate, name: str) -> ModelEstimate:
    question = answer.question
    reading = replace(question.reading, shape=replace(question.reading.shape, name=name))
    return replace(answer, question=replace(question, reading=reading))


def assert_fits(view: RenderableType) -> None:
    lines = rendered(view)
    assert max(map(len, lines)) <= 100
    assert not any(CUT in line for line in lines)


@pytest.mark.parametrize("phase", ["train", "prefill", "decode"])
@pytest.mark.parametrize("model", ["pythia-2.8b", "deepseek-v3", "mixtral-8x7b"])
def test_an_estimate_fits_100_columns_and_nothing_is_cut(model: str, phase: str) -> None:
    answer = api.estimate(f"examples/{model}/config.json", "h100", phase=phase)
    assert_fits(table_estimate.estimate_view(answer, verbose=True))


ON_A_SCREEN = {
    "llama-3.1-8b": (
        {},
        "No rule proposes a change of the same size that saves 1%; `sartor advise llama-3.1-8b` tries",
    ),
    "deepseek-v3": ({}, "No rule proposes a change of the same size that saves 1%; `sartor advise deepseek-v3`"),
    "mixtral-8x7b": ({"phase": "decode"}, "`sartor advise mixtral-8x7b --objective decode` tries other shapes"),
    "gpt2": (
        {"num_devices": 16, "tp": 1, "sequence_parallel": False},
        "`sartor advise gpt2 --num-devices 16 --tp 1 --no-sequence-parallel` tries other shapes.",
    ),
}


@pytest.mark.parametrize("model", ON_A_SCREEN)
def test_an_estimate_is_one_screen_that_says_first_what_to_change(model: str) -> None:
    options, sentence = ON_A_SCREEN[model]
    answer = api.estimate(model, "h100", **options)
    view = table_estimate.estimate_view(answer, findings_of(answer.question, answer.run))
    lines = rendered(view, width=80)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    first = " ".join(" ".join(lines).split())
    assert sentence in first
    assert 0 < first.index("fits") < first.index(" takes ") < first.index(sentence)


CLUSTERS = {"llama-3.1-8b": ("dgx-h100", 64, 512), "deepseek-v3": ("dgx-h100", 2048, 15360)}
CLUSTERS |= {"gpt3-175b": ("dgx-a100", 512, 1536), "gpt3-2.7b": ("dgx-a100", 8, 512)}


@pytest.mark.slow
@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("model", CLUSTERS)
def test_a_plan_is_one_screen_that_begins_with_whether_it_fits_how_fast_and_what_next(model: str, width: int) -> None:
    cluster, devices, batch = CLUSTERS[model]
    answer = _planned(model, cluster, devices, batch)
    lines = rendered(plan_document.plan_view(answer), width=width)
    assert len(lines) <= 40
    assert max(map(len, lines)) <= width
    first = " ".join(" ".join(lines).split())
    assert first.index(f"on {devices:,} ") < first.index(": fits") < first.index(" tokens in bf16 takes ")
    assert min(first.find("Try next: ") % 9999, first.find("No change of job or trainer") % 9999) < first.index("Where")


@functools.cache
def _planned(model: str, cluster: str, devices: int, batch: int) -> PlanAnswer:
    return api.plan(model, cluster, num_devices=devices, global_batch_size=batch)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "deepseek-v3", "gpt3-2.7b"])
def test_advice_is_one_screen_that_says_first_what_to_change(model: str) -> None:
    lines = rendered(advice_document.advice_view(api.advise(model, "h100")))
    first = " ".join(" ".join(lines).split())
    assert len(lines) <= 40
    change = "Keep this shape: " if "Keep this shape" in first else "Change first: "
    assert first.index(": fits") < first.index(" tokens takes ") < first.index(change) < first.index("Where the time")
    assert lines[-1].endswith("More: --verbose")


def test_advice_on_a_split_with_many_collectives_is_one_screen() -> None:
    run = {"tp": 8, "num_devices": 16, "global_batch_size": 64}
    lines = rendered(advice_document.advice_view(api.advise("qwen2.5-7b", "h100", **run)))
    assert len(lines) <= 40
    assert lines[0].startswith("As stated it cannot run: tp=8 does not split num_heads=28 (24 and 32 do).")


def test_a_wide_table_folds_its_heads_and_keeps_its_names_and_numbers_whole() -> None:
    columns = ("alternative", "USD with memory", wide_column("points"), "best vs this")
    rows = [("TPUv4 with its lanes, searched placement", "663", "3", "1.81x")]
    wide, narrow = (rendered(grid_view(grid_of("", columns, rows)), width=width) for width in (90, 40))
    assert len(wide) == 2
    assert [line.strip() for line in narrow[-2:]] == ["TPUv4 with its lanes,         663 1.81x", "searched placement"]
    assert "points" in "".join(wide)
    assert "points" not in "".join(narrow)


def test_advice_fits_100_columns_and_nothing_is_cut(advice: Advice) -> None:
    assert_fits(advice_document.advice_view(advice))
    assert_fits(advice_document.advice_view(advice, verbose=True))


def test_a_gemm_fits_100_columns_and_says_which_tile_was_chosen() -> None:
    view = table_operators.gemm_view(api.gemm(131072, 131073, 131074, "a100", batch=512))
    assert_fits(view)
    assert sum("chosen" in line for line in rendered(view)) == 1


@pytest.mark.parametrize(
    ("gpu", "words"),
    [
        ("h200", "Calibration: measured on this GPU."),
        ("gh200", "Calibration: borrowed from h200_sxm."),
        ("l40s", "Calibration: joint fit of several generations, not measured on this GPU."),
    ],
)
def test_a_gemm_says_whose_coefficients_it_is_priced_with(gpu: str, words: str) -> None:
    assert words in " ".join(" ".join(rendered(table_operators.gemm_view(api.gemm(4096, 4096, 4096, gpu)))).split())


def test_a_batch_of_gemms_and_an_odd_length_are_said_in_words() -> None:
    words, fp8 = (
        " ".join(" ".join(rendered(table_operators.gemm_view(api.gemm(64, 64, 63, "h100", **more)))).split())
        for more in ({"batch": 2000}, {"dtype": "fp8"})
    )
    assert "Batch of 2,000 GEMMs of 64 x 64 x 63 (bf16" in words
    assert "k=63 (contiguous in A and B) is odd and aligns rows to 2 bytes, not 16" in words
    assert "aligns rows to 1 byte, not 16" in fp8


def test_shares_of_shown_operators_add_up_to_the_step(advice: Advice) -> None:
    lines = rendered(grid_view(table_estimate.kinds_grid(advice.base.microbatch, small=0.02)))
    rows = [line for line in lines[1:] if "%" in line]
    leaves = [line for line in rows if not _is_subtotal(line, rows)]
    shares = [float(line.split("%")[0].split()[-1]) for line in leaves]
    assert sum(shares) == pytest.approx(100, abs=0.1 * len(shares))


def _is_subtotal(line: str, rows: list[str]) -> bool:
    """A kind's own line: it is followed by indented members."""
    after = rows[rows.index(line) + 1 :]
    return not line.startswith(" ") and bool(after) and after[0].startswith(" ")


def test_a_hostile_name_neither_colours_nor_moves_the_terminal(advice: Advice) -> None:
    lines = rendered(table_estimate.estimate_view(renamed(advice.base, HOSTILE)), terminal=True)
    assert "\x1b[31m" not in "".join(lines)
    assert "[red]name[/red]" in "".join(lines)


def test_a_very_long_name_is_folded_not_cut(advice: Advice) -> None:
    long = "x" * 300
    view = advice_document.advice_view(replace(advice, base=renamed(advice.base, long)))
    assert_fits(view)
    assert sum(line.count("x") for line in rendered(view)) >= 300


def test_the_verdict_names_the_longest_operator_the_findings_and_the_first_change(advice: Advice) -> None:
    words = " ".join(verdict_parts(advice))
    assert operator_times(advice.base.microbatch).names[0] in words
    costly = [f for f in advice.findings if (f.gain_fraction or 0) >= 0.01 and not f.remark]
    assert all(f.rule in words for f in costly[:3])
    assert "as fast at equal work" in words


def test_the_verdict_keeps_the_shape_when_nothing_gains(advice: Advice) -> None:
    nothing = replace(advice.search, candidates=(), smallest_edit=None)
    assert "Keep this shape: none of " in " ".join(verdict_parts(replace(advice, search=nothing, findings=())))


def test_a_shape_with_an_error_is_not_kept_as_it_is(advice: Advice) -> None:
    nothing = replace(advice.search, candidates=(), smallest_edit=None)
    fault = replace(advice.findings[0], grade=Grade.ERROR, field="expert_ffn_hidden_size", value=700)
    fault = replace(fault, fix={"expert_ffn_hidden_size": 704})
    assert "Set expert_ffn_hidden_size=704, as" in " ".join(
        verdict_parts(replace(advice, search=nothing, findings=(fault,)))
    )


def test_the_verdict_keeps_the_shape_when_nothing_is_surely_faster(advice: Advice) -> None:
    best = replace(advice.search.candidates[0], efficiency_low=0.98)
    nothing = replace(advice.search, candidates=(), smallest_edit=None, unsure=best)
    words = " ".join(verdict_parts(replace(advice, search=nothing, findings=())))
    assert "Keep this shape: no other of the same size is surely faster." in words
    assert "its interval includes 1" in words
    assert "Change first" not in words


def test_times_add_up_to_the_step_and_lie_in_their_intervals(advice: Advice) -> None:
    times = operator_times(advice.base.microbatch)
    totals = times.time_s.sum(axis=1)
    assert totals.sum() == pytest.approx(float(advice.base.microbatch.time_s), rel=1e-9)
    assert np.all(times.low_s <= totals)
    assert np.all(totals <= times.high_s)


def test_an_estimate_says_that_an_assumed_trainer_pads_a_ragged_vocabulary() -> None:
    def third(**options: str) -> str:
        answer = api.estimate("gpt2", "h100", **options)
        return [*headline(answer, first_change(answer, findings_of(answer.question, answer.run)))][2]

    assert "The trainer was not stated: this one pads the vocabulary of 50257" in third()
    assert "was not stated" not in third(framework="megatron")


@pytest.mark.parametrize("phase", ["train", "decode"])
def test_a_length_beyond_the_model_s_is_said_before_the_time(phase: str) -> None:
    length = {"seq_len" if phase == "train" else "context_len": 16_384}
    lines = [*headline(api.estimate("llama-2-7b", "h100", phase=phase, tp=1, **length))]  # type: ignore[arg-type]
    (name,) = length
    assert lines[1] == f"{name}=16384 is beyond the model's 4096: priced as if it took them."
    assert not any("beyond" in line for line in headline(api.estimate("llama-2-7b", "h100", phase=phase, tp=1)))
