"""A few mutated files through every reader on every run; ``make fuzz`` does many."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzz.contract import fault, fault_of
from fuzz.readers import READERS

CASES = 3
SLOW = {"space", "config", "study"}
"""Readers whose answer takes a search."""


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("reader", READERS)
def test_a_mutated_file_is_answered_or_refused_in_one_sentence(reader: str, tmp_path: Path) -> None:
    faults = {seed: fault(reader, seed, tmp_path) for seed in range(1 if reader in SLOW else CASES)}
    assert not {seed: found for seed, found in faults.items() if found}


FOUND = [
    ("calibration", 1228),
    ("calibration", 5009),
    ("calibration", 5184),
    ("measured", 1096),
    ("measured", 1224),
    ("space", 5014),
    ("space", 8000148),
    ("space", 100454),
    ("config", 8001403),
    ("config", 102937),
    ("config", 104499),
    ("accelerator", 102529),
    ("trace", 111),
    ("trace", 133),
    ("megatron-yaml", 146),
    ("records", 5025),
    ("measured", 5265),
    ("training", 5154),
    ("space", 5182),
]
"""Cases that the long run found outside the contract, by reader and seed; fixed since."""


@pytest.mark.slow
@pytest.mark.parametrize(("reader", "seed"), FOUND)
def test_what_the_long_run_found_stays_fixed(reader: str, seed: int, tmp_path: Path) -> None:
    assert not fault(reader, seed, tmp_path)


RECIPES = [
    (".json", b'{"model": "nobody/knows", "": 16, "enable_activation_checkpointing": false, "checkpointer": 512, '
    b'"max_seq_len": 512, "gradient_accumulation_steps": 1, "lora_rank": 2, "fsdp_cpu_offload": true}'),
    (".json", b'{"model": "mixtral-8x7b", "tokenizer": "mixtral-8x7b", "checkpointer": 32, "dtype": "bf16", '
    b'"enable_activation_checkpointing": true, "optimizer_in_bwd": "a", "": "b"}'),
    (".sh", b"accelerate launch trl model_name_or_path=Qwen/Qwen2.5-7B per_device_train_batch_size=2 "
    b"fp16=True fsdp=full_shard fsdp_config.fsdp_sharding_strategy=HYBRID_SHARD padding_free=[]\n"),
    (".sh", b"megatron --tuner_type lora --global_batch_size 64 --pipeline_model_parallel_size 2 "
    b"--recompute_num_layers 8 --virtual_pipeline_model_parallel_size 2147483648 --torch_dtype fp16\n"),
]  # fmt: skip
"""As found by structure, whose seeds say another file once a table of a dialect changes."""


@pytest.mark.parametrize(("suffix", "recipe"), RECIPES)
@pytest.mark.parametrize("command", READERS["recipe.sh"].commands)
def test_recipes_that_the_long_run_found_stay_fixed(suffix: str, recipe: bytes, command: str, tmp_path: Path) -> None:
    assert not fault_of(recipe, command + " --json", tmp_path, suffix)


@pytest.mark.parametrize("reader", sorted(name for name in {*READERS} - SLOW if READERS[name].make is None))
def test_every_sample_is_read_as_it_is(reader: str, tmp_path: Path) -> None:
    of = READERS[reader]
    assert not fault_of(of.files()[0], of.commands[0] + " --json", tmp_path, of.suffix)
