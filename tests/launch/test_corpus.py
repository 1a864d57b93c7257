"""Launches as people write them, and their right readings: tests/corpus (``make corpus``)."""

import runpy
from pathlib import Path

from sartor import api

TOOL = Path(__file__).parents[2] / "tools" / "corpus.py"
CORPUS = Path(__file__).parents[1] / "corpus"


def test_no_launch_of_the_corpus_is_read_wrong() -> None:
    results = runpy.run_path(str(TOOL))["outcomes"]()
    assert {name: why for name, (outcome, why) in results.items() if outcome == "wrong"} == {}
    answered = [outcome for outcome, _ in results.values() if outcome in ("read", "partly")]
    assert len(answered) >= 0.75 * len(results)


def test_an_8_bit_optimizer_and_4_bit_weights_of_a_recipe_are_priced() -> None:
    answer = api.lint_launch(CORPUS / "axolotl" / "qlora_one_gpu.yaml", "dgx-h100", num_devices=1, search=False)
    assert answer.fits
    assert (answer.job.frozen_bits, answer.job.optimizer.value) == (4, "paged_adam8bit")
    assert any("packed sequences" in note for note in answer.assumptions)


def test_a_recipe_by_name_says_that_its_other_values_are_not_known() -> None:
    answer = api.lint_launch(CORPUS / "bridge_flags" / "heredoc.sh", "gb200-nvl72", search=False)
    assert "$llama31_405b" in answer.unknown
