"""Files that are damaged, hostile or no config at all: one sentence each, never a traceback, never a wait."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.errors import InputError
from sartor.model.counts import count_params
from sartor.read.config_text import parse_config
from sartor.read.fields import class_defaults
from sartor.read.huggingface import read_model

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "vocab_size": 32000,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "architectures": ["MixtralForCausalLM"],
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
}


def text(config: Any) -> bytes:
    return json.dumps(config).encode()


def swapped(old: str, new: str) -> bytes:
    out = json.dumps(LLAMA, ensure_ascii=False).replace(old, new)
    assert out != json.dumps(LLAMA)
    return out.encode("utf-8", "surrogatepass")


TRUNCATED = json.dumps(LLAMA, indent=2)[:200].encode()

# name: (bytes, words the sentence must hold)
BROKEN: dict[str, tuple[bytes, tuple[str, ...]]] = {
    "empty": (b"", ("is empty",)),
    "blank": (b"  \n\t ", ("is empty",)),
    "truncated": (TRUNCATED, ("valid JSON", "line", "column")),
    "trailing_comma": (swapped("32000}", "32000,}"), ("valid JSON", "line 1")),
    "single_quotes": (json.dumps(LLAMA).replace('"', "'").encode(), ("valid JSON",)),
    "two_objects": (text(LLAMA) + text(LLAMA), ("valid JSON",)),
    "web_page": (b"<!DOCTYPE html><html><body>404</body></html>", ("web page",)),
    "lfs_pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 9\n", ("LFS",)),
    "binary": (b"\x80\x02}q\x00(X\x05", ("UTF-8",)),
    "safetensors": (b"\x08\x00\x00\x00\x00\x00\x00\x00{}", ("binary",)),
    "latin1": ('{"_name_or_path": "caf\xe9"}'.encode("latin-1"), ("UTF-8",)),
    "list_root": (text([LLAMA]), ("list", "object")),
    "string_root": (text("llama"), ("object",)),
    "number_root": (b"42", ("object",)),
    "null_root": (b"null", ("null", "object")),
    "deep_lists": (b'{"a": ' + b"[" * 3000 + b"]" * 3000 + b"}", ("nest",)),
    "deep_objects": (b'{"a": ' * 3000 + b"1" + b"}" * 3000, ("nest",)),
    "unclosed_deep": (b"[" * 200_000, ("nest",)),
    "too_large": (b" " * 10_000_001 + b"{}", ("at most",)),
    "duplicate_key": (
        swapped('"hidden_size": 4096', '"hidden_size": 4096, "hidden_size": 512'),
        ("hidden_size", "twice"),
    ),
    "same_key_twice": (swapped('"hidden_size": 4096', '"hidden_size": 4096, "hidden_size": 4096'), ("twice",)),
    "nan": (swapped("4096,", "NaN,"), ("NaN",)),
    "nan_elsewhere": (swapped("1e-05", "NaN"), ("NaN",)),
    "infinity": (swapped('"hidden_size": 4096', '"hidden_size": Infinity'), ("hidden_size", "positive integer")),
    "minus_infinity": (swapped('"vocab_size": 32000', '"vocab_size": -Infinity'), ("vocab_size",)),
    "thousand_digits": (swapped("11008", "1" * 1000), ("digits",)),
    "ten_thousand_digits": (swapped("11008", "1" * 10_000), ("digits",)),
    "huge_exponent": (swapped("11008", "1e400"), ("intermediate_size",)),
    "cyrillic_key": (swapped('"hidden_size"', '"hidd\u0435n_size"'), ("ASCII", "hidden_size")),
    "fullwidth_key": (swapped('"hidden_size"', '"\uff48idden_size"'), ("ASCII", "hidden_size")),
    "zero_width_key": (swapped('"hidden_size"', '"hidden\u200b_size"'), ("ASCII", "hidden_size")),
    "control_in_key": (swapped('"hidden_size"', '"hidden\\u001b[31m_size"'), ("control",)),
    "raw_control": (swapped('"hidden_size"', '"hidden\x07_size"'), ("valid JSON",)),
    "surrogate_key": (b'{"\\ud800": 1, "model_type": "llama"}', ("ASCII",)),
    "missing_both": (
        text({k: v for k, v in LLAMA.items() if k not in ("model_type", "architectures")}),
        ("model_type",),
    ),
}

# name: (changed fields, words)
CHANGED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "negative_hidden": ({"hidden_size": -4096}, ("hidden_size", "-4096", "positive integer")),
    "zero_layers": ({"num_hidden_layers": 0}, ("num_hidden_layers", "positive")),
    "null_hidden": ({"hidden_size": None}, ("hidden_size", "positive integer")),
    "word_layers": ({"num_hidden_layers": "thirty-two"}, ("num_hidden_layers", "thirty-two", "integer")),
    "true_layers": ({"num_hidden_layers": True}, ("num_hidden_layers", "true", "integer")),
    "list_hidden": ({"hidden_size": [4096]}, ("hidden_size", "integer")),
    "object_vocab": ({"vocab_size": {"a": 1}}, ("vocab_size", "integer")),
    "fraction": ({"intermediate_size": 11008.5}, ("intermediate_size", "integer")),
    "billion_layers": ({"num_hidden_layers": 10**9}, ("num_hidden_layers", "at most")),
    "huge_hidden": ({"hidden_size": 10**12}, ("hidden_size", "at most")),
    "astronomic_vocab": ({"vocab_size": 10**30}, ("vocab_size", "at most")),
    "heads_not_dividing": (
        {"num_attention_heads": 30, "num_key_value_heads": 30},
        ("num_attention_heads=30", "hidden_size 4096", "32"),
    ),
    "kv_heads_not_dividing": ({"num_key_value_heads": 5}, ("num_key_value_heads=5", "32", "4")),
    "more_kv_heads_than_heads": ({"num_key_value_heads": 64}, ("num_key_value_heads",)),
    "string_flag": ({"attention_bias": "yes"}, ("attention_bias", "true or false")),
    "number_flag": ({"tie_word_embeddings": 7}, ("tie_word_embeddings", "true or false")),
    "model_type_number": ({"model_type": 7}, ("model_type",)),
    "model_type_list": ({"model_type": ["llama"]}, ("model_type",)),
    "model_type_escape": ({"model_type": "llama\x1b[2J"}, ("model_type",)),
    "model_type_path": ({"model_type": "../../etc/passwd"}, ("model_type",)),
    "architectures_object": ({"architectures": {"a": 1}}, ("architectures",)),
    "architectures_number": ({"architectures": [3]}, ("architectures",)),
    "unknown_dtype": ({"torch_dtype": "float7"}, ("torch_dtype", "bfloat16")),
    "numeric_dtype": ({"dtype": 16}, ("dtype",)),
    "zero_head_dim": ({"head_dim": 0}, ("head_dim", "positive")),
    "misspelt": ({"hidden_size": ..., "hiden_size": 4096}, ("hidden_size=missing", "hiden_size")),
    "wrong_case": (
        {"num_hidden_layers": ..., "Num_Hidden_Layers": 32},
        ("num_hidden_layers=missing", "Num_Hidden_Layers"),
    ),
    "missing_vocab": ({"vocab_size": ...}, ("vocab_size=missing",)),
    "missing_heads": ({"num_attention_heads": ...}, ("num_attention_heads=missing",)),
    "missing_hidden": ({"hidden_size": ...}, ("hidden_size=missing",)),
    "missing_layers": ({"num_hidden_layers": ...}, ("num_hidden_layers=missing",)),
}


def changed(base: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    merged = base | fields
    return {k: v for k, v in merged.items() if v is not ...}


def refused(data: bytes) -> str:
    start = time.process_time()
    with pytest.raises(InputError) as caught:
        read_model(data)
    assert time.process_time() - start < 5
    sentence = str(caught.value)
    assert sentence.isprintable()
    assert sentence.isascii()
    assert len(sentence) < 400
    assert "Traceback" not in sentence
    return sentence


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_is_refused_with_a_sentence_that_names_what_is_wrong(name: str) -> None:
    data, words = BROKEN[name]
    sentence = refused(data)
    for word in words:
        assert word in sentence


@pytest.mark.parametrize("name", CHANGED)
def test_a_wrong_field_is_refused_with_field_value_and_what_must_hold(name: str) -> None:
    fields, words = CHANGED[name]
    sentence = refused(text(changed(LLAMA, fields)))
    for word in words:
        assert word in sentence


def test_more_experts_per_token_than_experts_are_refused() -> None:
    sentence = refused(text(MIXTRAL | {"num_experts_per_tok": 9}))
    assert "num_experts_per_tok=9" in sentence
    assert "8" in sentence


def test_layer_lists_must_have_one_entry_per_layer() -> None:
    config = LLAMA | {"layer_types": ["full_attention"] * 31}
    assert "32 entries" in refused(text(config))


def test_an_unknown_kind_of_layer_is_refused() -> None:
    config = LLAMA | {"layer_types": ["telepathy"] * 32}
    assert "telepathy" in refused(text(config))


def test_every_shared_broken_config_is_refused(shared_dir: Path) -> None:
    folders = [p for p in (shared_dir / "data/configs/broken").iterdir() if p.is_dir()]
    assert len(folders) >= 6
    for folder in folders:
        refused((folder / "config.json").read_bytes())


def test_a_missing_path_a_folder_without_config_and_a_device_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "nowhere", tmp_path, Path("/dev/zero"), Path("bad\x00name")):
        with pytest.raises(InputError) as caught:
            read_model(path)
        assert "\n" not in str(caught.value)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read every file")
def test_an_unreadable_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_bytes(text(LLAMA))
    file.chmod(0)
    with pytest.raises(InputError, match="readable"):
        read_model(file)


def test_a_byte_order_mark_is_no_error() -> None:
    for encoding in ("utf-8-sig", "utf-16"):
        assert read_model(json.dumps(LLAMA).encode(encoding)).shape.hidden_size == 4096


def test_digits_in_a_string_are_refused_and_whole_floats_read_with_a_note() -> None:
    with pytest.raises(InputError) as found:
        read_model(LLAMA | {"hidden_size": "4096"})
    assert 'hidden_size="4096" (a string): must be a positive integer; nearest: 4096 without quotes' in str(found.value)
    reading = read_model(LLAMA | {"intermediate_size": 11008.0})
    assert reading.shape.num_layers == 32
    assert any("11008.0" in note for note in reading.notes)


def test_auto_map_of_a_known_model_type_is_left_aside_and_said() -> None:
    reading = read_model(LLAMA | {"auto_map": {"AutoModel": "https://evil.example/x.py--os.system"}})
    assert any("auto_map" in note for note in reading.notes)
    assert reading.exact


def test_infinity_outside_the_sizes_is_legal() -> None:
    """Published Mamba-2 files hold ``"time_step_limit": [0.0, Infinity]``."""
    data = json.dumps(LLAMA | {"time_step_limit": [0.0, float("inf")]}).encode()
    assert read_model(data).shape.num_layers == 32


def test_contradicting_aliases_are_noted() -> None:
    config = {
        "model_type": "gpt2",
        "n_embd": 768,
        "hidden_size": 1536,
        "n_layer": 12,
        "n_head": 12,
        "vocab_size": 50257,
    }
    notes = " ".join(read_model(config).notes)
    assert "ignored" in notes


def test_names_are_safe_to_print() -> None:
    reading = read_model(LLAMA | {"_name_or_path": "evil\x1b[2Jname"})
    assert reading.shape.name.isprintable()


def test_many_layers_are_answered_at_once() -> None:
    start = time.process_time()
    reading = read_model(LLAMA | {"num_hidden_layers": 65_536, "model_type": "gemma2", "sliding_window": 4096})
    assert reading.shape.num_layers == 65_536
    assert time.process_time() - start < 5


HOSTILE = st.sampled_from(
    [None, True, False, 0, -1, 1, 3, 2**40, 10**30, 1.5, float("inf"), "", "abc", "4096", "\x1b[31m", [], [1], ["a"],
     [None], [[1, 2], 3], {}, {"a": 1}, 65_537]
)  # fmt: skip
KINDS = ("llama", "gpt2", "mixtral", "deepseek_v3", "gemma3_text", "qwen3_next", "t5", "bert", "mamba", "falcon", "opt")


@given(st.sampled_from(KINDS), st.data())
@settings(max_examples=300, deadline=None)
def test_whatever_a_field_holds_the_answer_is_a_shape_or_a_sentence(model_type: str, data: st.DataObject) -> None:
    defaults = class_defaults(model_type)
    config = dict(defaults.values) | {"model_type": model_type}
    for name in data.draw(st.lists(st.sampled_from(sorted(config)), min_size=1, max_size=3)):
        config[name] = data.draw(HOSTILE)
    shape, sentence = None, ""
    try:
        shape = read_model(config).shape
    except InputError as error:
        sentence = str(error)
    assert sentence.isprintable()
    assert shape is None or (shape.fields() and isinstance(count_params(shape).total, int))


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"hidden_act": 5}, "hidden_act=5"),
        ({"sliding_window": -5}, "sliding_window=-5"),
        ({"text_config": {"hidden_act": ["silu"]}}, "text_config.hidden_act"),
    ],
)
def test_fields_no_count_depends_on_are_checked_too(fields: dict[str, object], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence.replace("[", r"\[")):
        read_model(LLAMA | fields)


def test_a_nan_is_refused_with_the_file_its_line_and_its_key() -> None:
    text = b'{"model_type": "llama",\n "rope_note": "NaN",\n "rms_norm_eps": NaN}'
    with pytest.raises(InputError, match=r"/given/path\.json=.*line 3 \(rms_norm_eps\)"):
        parse_config(text, name="/given/path.json")


def test_the_experts_width_beside_the_dense_layers_is_no_contradiction() -> None:
    reading = read_model(Path(__file__).parents[2] / "examples/deepseek-v3")
    assert not any("is ignored" in note for note in reading.notes)


def test_a_misspelt_field_is_named_beside_the_field_that_it_may_mean() -> None:
    reading = read_model({**{k: v for k, v in LLAMA.items() if k != "num_key_value_heads"}, "num_key_value_head": 8})
    said = "num_key_value_head is ignored: no published class has it; it may mean num_key_value_heads, "
    assert said + "which is not in the file" in reading.assumptions
    assert not reading.exact


def test_fields_of_no_published_class_are_listed_as_ignored_and_published_ones_are_not() -> None:
    reading = read_model({**LLAMA, "num_key_value_heads": 8, "bos_token_id": 1, "rope_ratio": 50, "_commit": "abc"})
    assert [note for note in reading.notes if "ignored" in note] == [
        "ignored, as no published class has such a field: rope_ratio"
    ]
    assert reading.exact
