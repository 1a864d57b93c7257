"""Figures: every record draws, in every frame; axes have units; the same numbers give the same bytes."""

from __future__ import annotations

import builtins
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sartor import api
from sartor.answers.advice import Advice
from sartor.answers.design import STEP_TIME
from sartor.errors import InputError, MissingExtraError
from sartor.report.charts import FIGURES, FILE, FILE_DARK, PAGE, Frame, draw, to_png, to_svg
from sartor.report.design_words import AREA_WORDS
from sartor.report.figures import advice_points, export_pngs, gains_points, pareto_points, sweep_field
from sartor.report.palette import DARK, LIGHT, MEANS, css_meanings, painted, slug
from sartor.report.plan_points import plan_points
from sartor.report.plan_words import PART_WORDS
from sartor.report.points import Published, roofline_points
from sartor.report.table_serving import front_points

PNG = b"\x89PNG\r\n\x1a\n"
DRAWN_ELSEWHERE = {f"sartor.report.{name}" for name in ("chip_points", "design_points", "design_shapes", "run_points")}
PUBLISHED = Published(
    title="Prediction and paper",
    unit="TFLOP/s",
    cases=("n = 1536", "n = 1600"),
    predicted=np.array([215.0, 178.0]),
    low=np.array([190.0, 160.0]),
    high=np.array([240.0, 200.0]),
    published=np.array([217.6, np.nan]),
)


@pytest.fixture(scope="module")
def records(advice: Advice) -> dict[str, Any]:
    answer = api.plan(
        "llama-3.1-8b", "dgx-h100", num_devices=[8], global_batch_size=16, fix={"tp": 2, "pp": 2, "virtual_stages": 1}
    )
    served = front_points(api.deploy("llama-3.1-8b", ["h100", "a100"], users=16, pools=False))
    return advice_points(advice) | {"published": PUBLISHED} | plan_points(answer) | {"front": served}


def test_an_answer_has_every_figure_the_issue_names(records: dict[str, Any]) -> None:
    assert {"time_by_operator", "roofline", "findings", "candidates", "sawtooth"} <= set(records)
    elsewhere = {kind for kind in FIGURES if kind.__module__ in DRAWN_ELSEWHERE}
    assert {type(points) for points in records.values()} == set(FIGURES) - elsewhere


@pytest.mark.parametrize("frame", [PAGE, FILE, FILE_DARK], ids=["page", "file", "dark"])
def test_every_record_draws_with_titles_on_its_axes(records: dict[str, Any], frame: Frame) -> None:
    for points in records.values():
        spec = json.dumps(draw(points, frame).to_dict())
        assert '"tooltip"' in spec
        assert '"title"' in spec
        assert points.title


def test_the_same_numbers_give_the_same_specification(records: dict[str, Any]) -> None:
    for points in records.values():
        assert draw(points, PAGE).to_dict() == draw(points, PAGE).to_dict()


def test_every_png_and_svg_is_made_without_a_browser(records: dict[str, Any]) -> None:
    for points in records.values():
        assert to_png(draw(points), scale=1).startswith(PNG)
    assert to_svg(draw(PUBLISHED)).startswith("<svg")


def test_export_writes_one_whole_png_for_each_figure(advice: Advice, tmp_path: Path) -> None:
    paths = export_pngs(advice_points(advice), tmp_path / "figures")
    assert {p.stem for p in paths} == set(advice_points(advice))
    assert all(p.read_bytes().startswith(PNG) for p in paths)
    assert len(list((tmp_path / "figures").iterdir())) == len(paths)


def test_export_into_a_file_is_refused_with_a_sentence(advice: Advice, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("x")
    with pytest.raises(InputError, match="must be writable"):
        export_pngs(advice_points(advice), tmp_path / "taken")


def test_no_product_lies_above_the_roofline(advice: Advice) -> None:
    points = roofline_points(advice.base.microbatch)
    roof = np.minimum(points.peak_flops_per_s, points.intensity_flops_per_byte * points.hbm_bytes_per_s)
    assert np.all(points.achieved_flops_per_s <= roof * (1 + 1e-9))


def test_the_sweep_agrees_with_the_step_at_the_models_own_value(advice: Advice) -> None:
    question = advice.base.question
    ask = (question.workload, question.dims, question.gpu)
    swept = sweep_field(*ask, "vocab_size", run=advice.base.run, trained=question.trained)
    assert swept is not None
    at = swept.values == swept.now
    assert swept.time_s[at] == pytest.approx(float(advice.base.microbatch.time_s), rel=1e-9)


def test_a_field_that_cannot_be_swept_is_refused(advice: Advice) -> None:
    question = advice.base.question
    with pytest.raises(InputError, match="not a size of this model"):
        sweep_field(question.workload, question.dims, question.gpu, "name")


def test_nothing_found_means_no_figure_rather_than_an_empty_one(advice: Advice) -> None:
    assert gains_points(()) is None
    assert pareto_points(replace(advice.search, candidates=(), smallest_edit=None)) is None


def test_the_pareto_record_marks_best_and_smallest_edit(advice: Advice) -> None:
    points = pareto_points(advice.search)
    assert points is not None
    assert points.gain[points.best] == advice.search.candidates[0].efficiency_gain
    edit = advice.search.smallest_edit
    assert edit is not None
    assert points.gain[points.smallest_edit] == edit.efficiency_gain
    assert points.on_front.any()


def test_published_needs_one_entry_per_case() -> None:
    with pytest.raises(AssertionError):
        replace(PUBLISHED, cases=("one",))
    assert isinstance(PUBLISHED, Published)
    assert np.isnan(PUBLISHED.published[1])


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
def test_text_has_contrast_enough_on_its_ground(theme: Any) -> None:
    for colour in (theme.ink, theme.muted):
        for ground in (theme.surface, theme.panel):
            assert _contrast(colour, ground) >= 4.5  # WCAG 2.1, 1.4.3
    for colour in theme.series:
        assert _contrast(colour, theme.surface) >= 2.2


def _contrast(one: str, other: str) -> float:
    light, dark = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def _luminance(colour: str) -> float:
    """Relative luminance, WCAG 2.1."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_missing_extra_is_a_sentence_with_its_command(advice: Advice, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] in ("altair", "vl_convert"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[report\]"):
        draw(PUBLISHED)


def test_no_dot_stands_above_what_is_advised(advice: Advice) -> None:
    points = pareto_points(advice.search)
    assert points is not None
    assert points.gain.max() == max(candidate.efficiency_gain for candidate in advice.search.candidates)


def test_the_word_for_today_stays_inside_the_plot(advice: Advice) -> None:
    points = pareto_points(advice.search)
    assert points is not None
    for changes, side in (([-0.01, 0.0], "right"), ([0.0, 0.01], "left")):
        moved = replace(points, params_change=np.resize(changes, len(points.labels)))
        words = [layer["mark"] for layer in draw(moved).to_dict()["layer"] if layer["mark"]["type"] == "text"]
        assert side in {mark["align"] for mark in words}


def test_a_colour_means_the_same_in_every_figure_in_words_and_on_the_page() -> None:
    names = {
        **PART_WORDS,
        **{part.name: part.words for part in STEP_TIME},
        "grad_bytes": "gradients",
        "param_bytes": "weights",
        "stash_bytes": "activations",
    }
    areas = {name.removesuffix("_mm2"): words for name, words in AREA_WORDS.items()}
    for field, words in {**names, **areas}.items():
        assert painted(LIGHT, [field]) == painted(LIGHT, [words]), field
    assert painted(LIGHT, ["optimizer_s"]) == painted(LIGHT, ["optimizer step"]) == painted(LIGHT, ["optimizer_bytes"])
    every = [name for means in MEANS.values() for name in means]
    assert len(set(every)) == len(every)
    for name in every:
        assert f"--of-{slug(name)}:" in css_meanings()
    assert set(MEANS) <= {field.name for field in fields(LIGHT)}
