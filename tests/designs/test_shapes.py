"""Shapes as one more axis: the best of each is that of a search of its own, and regrets are what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from design_samples import question, small_shape, small_space
from sartor.designs.baselines import NamedChip
from sartor.designs.candidates import DesignStatus, candidates_of
from sartor.designs.question import DesignModel, DesignQuestion
from sartor.designs.search import search_design
from sartor.designs.shapes import ShapeDesign, ShapeVariant, search_design_shapes, shape_variants
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.zoo import load_model

VARIANTS = (
    ShapeVariant(shape=small_shape(), changed=()),
    ShapeVariant(shape=small_shape(16, 128), changed=(("num_layers", 4, 16), ("hidden_size", 256, 128))),
)
SPACE = small_space(hbm_gb=[0.2], array_cols=[16, 64], num_vector_cores=[2])


def asked(**more: Any) -> DesignQuestion:
    return question(microbatch_sizes=(4,), **more)


@pytest.fixture(scope="module")
def found() -> ShapeDesign:
    one = asked()
    candidates, _ = candidates_of(one, SPACE)
    there = NamedChip(name="there", accelerator=candidates.accelerator(0), hbm_bytes=(2e8,))
    return search_design_shapes(one, SPACE, VARIANTS, [(there, 2.0)])


@pytest.mark.slow
def test_each_shape_has_its_own_best_chip_over_the_whole_space(found: ShapeDesign) -> None:
    for variant, result, rate in zip(VARIANTS, found.results, found.best_rate, strict=True):
        alone = DesignModel(name="small", shape=variant.shape, seq_len=128, widths=(1, 2))
        again = search_design(asked(models=(alone,)), SPACE)
        assert again.best is not None
        assert result.status is DesignStatus.OPTIMAL
        assert rate == pytest.approx(again.best.objective)


def test_no_chip_is_faster_than_the_best_of_the_space_and_no_plan_than_the_searched_one(found: ShapeDesign) -> None:
    assert found.rates.shape == (2, len(found.chips), len(found.plans))
    assert (found.reached <= found.best_rate[:, None] * (1 + 1e-9)).all()
    assert (found.rates <= found.reached[:, :, None] * (1 + 1e-9)).all()
    assert found.rates.max(axis=(1, 2)) == pytest.approx(found.best_rate)
    assert (found.chip_regret >= -1e-9).all()
    assert (found.shape_regret >= -1e-9).all()


def test_the_chip_for_all_and_the_shape_for_a_fleet_lose_least(found: ShapeDesign) -> None:
    worst = found.chip_regret.max(axis=0)[:-1]  # the last chip is the fleet's
    assert worst[found.chip_for_family] == worst.min()
    shape, regret = found.fleet_shape
    there = found.reached[:, -1]
    assert regret == pytest.approx(1 - there[shape] / there.max())
    assert found.best_shape[-1] == there.argmax()
    best = found.family.best
    assert best is not None
    both = np.exp(np.log(found.reached).mean(axis=0))
    assert best.objective >= both.max() * (1 - 1e-9)


@pytest.mark.slow
def test_a_shape_that_fits_nowhere_is_left_out_and_none_that_fits_is_refused() -> None:
    huge = ShapeVariant(shape=small_shape(4, 4096), changed=(("hidden_size", 256, 4096),))
    found = search_design_shapes(asked(), SPACE, (VARIANTS[0], huge))
    assert len(found.variants) == 1
    with pytest.raises(InputError, match=r"^shapes="):
        search_design_shapes(asked(), SPACE, (huge,))
    two = replace(asked().models[0], name="other")
    with pytest.raises(InputError, match="one model"):
        search_design_shapes(asked(models=(*asked().models, two)), SPACE, VARIANTS)


def test_variants_are_the_model_and_shapes_of_its_size() -> None:
    shape = load_model("gpt2-small")
    variants = shape_variants(shape, 1024, [load_gpu("a100")], 2)
    assert variants[0].name == "as it is"
    assert 1 < len(variants) <= 3
    assert all(variant.changed for variant in variants[1:])
    with pytest.raises(InputError, match=r"^shapes="):
        shape_variants(shape, 1024, [load_gpu("a100")], 0)
