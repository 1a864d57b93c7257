"""A config file is read with the script beside it that starts it, or asks for what is in neither."""

from __future__ import annotations

from pathlib import Path

import pytest

from sartor import api
from sartor.errors import InputError

YAML = "distributed_type: FSDP\nmixed_precision: bf16\nnum_processes: 16\nfsdp_config:\n  fsdp_version: 2\n"
JSON = '{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}, "bf16": {"enabled": "auto"}}'
STARTS = {"a.yaml": "accelerate launch --config_file a.yaml", "a.json": "deepspeed --num_gpus 16"}


@pytest.mark.parametrize(("name", "text"), [("a.yaml", YAML), ("a.json", JSON)])
def test_a_config_alone_asks_for_the_sequence_length_and_beside_its_script_does_not(
    name: str, text: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_text(text)
    asked = "no sequence length; give it, or keep the script|seq_len stated beside the file, or the program's"
    with pytest.raises(InputError, match=asked):
        api.lint_launch(tmp_path / name, "dgx-h100", model="llama-3.1-8b", num_devices=16, search=False)
    named = f" --deepspeed {name}" if name.endswith("json") else ""
    words = f"{STARTS[name]} train.py{named} --per_device_train_batch_size 2 --max_length 2048 --bf16 true"
    (tmp_path / "run.sh").write_text(words + "\n")
    found = api.lint_launch(tmp_path / name, "dgx-h100", model="llama-3.1-8b", num_devices=16, search=False)
    assert (found.job.seq_len, found.priced.plan.microbatch_size) == (2048, 2)
    assert found.assumptions[0] == "read with run.sh, which starts it"
    (tmp_path / "other.sh").write_text(words + "\n")  # which of the two is meant?
    with pytest.raises(InputError, match=asked):
        api.lint_launch(tmp_path / name, "dgx-h100", model="llama-3.1-8b", num_devices=16, search=False)


def test_advice_on_an_accelerate_config_is_what_one_can_say(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML + "  fsdp_activation_checkpointing: true\n")
    found = api.lint_launch(tmp_path / "a.yaml", "dgx-h100", model="llama-3.1-8b", seq_len=4096)
    fixes = [dict(finding.fix) for finding in found.findings]
    assert fixes
    assert not any("recompute_layers" in fix or fix.get("pp", 1) != 1 for fix in fixes)
