"""The keys of Hugging Face's Trainer that a Python file sets (TRL, PEFT, Unsloth), read from its text, never run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from sartor.bounded import printable
from sartor.errors import InputError
from sartor.json_types import JsonDict
from sartor.launch.python_source import ARGS, TARGET, is_hole, plain, tables_in

_REWARDS = r"DPO|ORPO|KTO|CPO|GRPO|PPO|RLOO|Reward|XPO|BCO"
MAKES_ARGUMENTS = re.compile(rf"\b(\w*TrainingArguments|(SFT|{_REWARDS})Config)\((?!\))")
"""What a file that sets its own arguments calls."""
REWARDED = re.compile(rf"\b\w*(?:{_REWARDS})(?:Trainer|Config)$")
LOADED = ("torch_dtype", "dtype", "attn_implementation", "load_in_4bit", "load_in_8bit", "max_seq_length")

CALLS: Mapping[str, Mapping[str, str]] = {
    r"(Model|LM)\w*\.from_pretrained$": {
        **dict.fromkeys(("pretrained_model_name_or_path", "model_name", ARGS), "model_name_or_path"),
        **{name: name for name in LOADED},
    },
    r"BitsAndBytesConfig$": {"load_in_4bit": "load_in_4bit", "load_in_8bit": "load_in_8bit"},
    r"LoraConfig$|get_peft_model$": {
        "r": "lora_r",
        "target_modules": "lora_target_modules",
        "use_dora": "use_dora",
        "use_gradient_checkpointing": "gradient_checkpointing",
    },
    r"SFTTrainer$": {
        **dict.fromkeys(("model", ARGS), "model_name_or_path"),
        **{name: name for name in ("max_seq_length", "packing")},
    },
}
"""Keywords of calls (the end of their names), and the key of TRL's command line that says the same."""
SIZES = {"hidden_size", "n_embd"}
ARGUMENTS = re.compile(r"(TrainingArguments|SFTConfig)$")
"""Calls whose keywords are keys as they are."""


def trainer_keys(text: str, name: str, given: Mapping[str, object]) -> JsonDict:
    """Keys of Hugging Face's Trainer, by their names on its command line; what only the running program knows, or two
    calls say differently, is a placeholder. Raises `InputError` for training on pairs or rewards."""
    keys: JsonDict = {}
    for key, value in _said(tables_in(text, name, given)):
        if keys.setdefault(key, value) != value:
            keys[key] = "${two_values}"
    return keys


def _said(tables: list[JsonDict]) -> Iterator[tuple[str, object]]:
    for table in tables:
        called = str(table[TARGET])
        if REWARDED.search(called):
            must = "trains on pairs or rewards, whose further passes are not priced: must be supervised fine-tuning"
            raise InputError("trainer", printable(called.rpartition(".")[2]), must, "SFTTrainer")
        if called.startswith("unsloth."):
            yield "unsloth", True
        if ARGUMENTS.search(called):
            yield from plain(table).items()
        if called.endswith("Config") and SIZES & table.keys():
            yield "model", {"config": {TARGET: called, **plain(table)}}
        for ending, names in CALLS.items():
            if re.search(ending, called):
                yield from _renamed(table, names, adapts="lora_r" in names.values())


def _renamed(table: JsonDict, names: Mapping[str, str], *, adapts: bool) -> Iterator[tuple[str, object]]:
    if adapts and (set(names) & table.keys() or not table.get(ARGS)):
        yield "use_peft", True
    if table.get("gradient_checkpointing_enable"):
        yield "gradient_checkpointing", True
    for keyword, key in names.items():
        value = next(iter(table.get(ARGS, ())), None) if keyword == ARGS else table.get(keyword)
        value = value.removeprefix("torch.") if isinstance(value, str) else value
        named = key != "model_name_or_path" or isinstance(value, str)
        if value is not None and named and not (is_hole(value) and keyword == ARGS and len(table[ARGS]) > 1):
            yield key, bool(value) if key == "gradient_checkpointing" else value
