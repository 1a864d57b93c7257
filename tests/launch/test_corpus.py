"""Launches as people write them, and their right readings: tests/corpus (``make corpus``)."""

import runpy
from pathlib import Path

import pytest

from sartor import api
from sartor.errors import InputError
from sartor.launch.files import read_launch

TOOL = Path(__file__).parents[2] / "tools" / "corpus.py"
CORPUS = Path(__file__).parents[1] / "corpus"


@pytest.mark.slow
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


def test_a_round_of_microbatches_that_megatron_rejects_is_refused_with_one_that_it_takes(tmp_path: Path) -> None:
    text = (CORPUS / "megatron" / "group.sh").read_text()
    flag = "--microbatch-group-size-per-virtual-pipeline-stage"
    for wrong, shown in ((f"{flag} 8", "8"), ("", "4")):
        (tmp_path / "a.sh").write_text(text.replace(f"{flag} 6", wrong))
        with pytest.raises(InputError, match=rf"{flag}.*{shown}.*leaves 2 of 18.*nearest: {flag} 6"):
            read_launch(tmp_path / "a.sh")
    (tmp_path / "a.sh").write_text(text.replace(f"{flag} 6", f"{flag} 9"))
    assert read_launch(tmp_path / "a.sh").unpriced == (f"{flag} 9",)


def test_inputs_of_layers_that_wait_in_the_host_are_said_to_have_no_price(tmp_path: Path) -> None:
    text = (CORPUS / "axolotl" / "grad_op.yaml").read_text()
    (tmp_path / "a.yaml").write_text(f"{text}gradient_checkpointing: offload\n")
    assert read_launch(tmp_path / "a.yaml", num_devices=8).unpriced == ("gradient_checkpointing=offload",)


def test_a_plan_with_rounds_of_its_own_is_written_and_read_back(tmp_path: Path) -> None:
    found = api.plan(
        "llama-3.1-8b", "dgx-h100", num_devices=8, global_batch_size=18, fix={"pp": 4, "tp": 2, "virtual_stages": 4}
    )
    assert int(found.best.plan.num_microbatches) == 18
    written = api.launch(found, "megatron")
    script = next(file.text for file in written.files if file.name == "launch.sh")
    assert "--microbatch-group-size-per-virtual-pipeline-stage 6" in script
    (tmp_path / "launch.sh").write_text(script)
    reading = read_launch(tmp_path)
    assert (int(reading.plan.num_microbatches), reading.unpriced) == (18, ())


def test_a_recipe_by_name_says_that_its_other_values_are_not_known() -> None:
    answer = api.lint_launch(CORPUS / "bridge_flags" / "heredoc.sh", "gb200-nvl72", search=False)
    assert "$recipe llama31_405b" in answer.unknown


def test_a_recipe_in_python_is_followed_and_never_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    text = f"""
import os
from nemo.collections import llm
os.system("touch {mark}")
open("{mark}", "w").write("x")
def again(n): return again(again(n))
again(3)
many = [0] * 90
for a in many:
    for b in many:
        for c in many:
            d = c
"""
    file = tmp_path / "a.py"
    for end, why in (("", "fewer steps"), ("made = llm.llama3_8b.pretrain_recipe(", "valid Python")):
        file.write_text(text + end)
        with pytest.raises(InputError, match=why):
            read_launch(file)
    file.write_text(text.partition("many")[0] + "made = llm.llama3_8b.pretrain_recipe(name='a')")
    with pytest.raises(InputError, match="whose values sartor does not have"):
        read_launch(file)
    assert not mark.exists()


def test_what_only_a_running_recipe_knows_stays_open(tmp_path: Path) -> None:
    text = (CORPUS / "nemo_run" / "factory.py").read_text()
    file = tmp_path / "a.py"
    for line, field in (
        ("if input(): made.trainer.strategy.tensor_model_parallel_size = 8", "tensor_model_parallel_size"),
        ("made.trainer.strategy.context_parallel_size = int(os.environ['CP'])", "context_parallel_size"),
        ("made.trainer.strategy.context_parallel_size = chosen(made.data)", "context_parallel_size"),
    ):
        file.write_text(text.replace("    return made", f"    {line}\n    return made"))
        with pytest.raises(InputError, match=field):
            api.lint_launch(file, "dgx-h100", search=False)
    file.write_text(text.replace("    return made", "    tuned(made)\n    return made"))
    assert "$tuned" in read_launch(file).unknown
