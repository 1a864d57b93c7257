"""`sartor serving`: its JSON, its table, its refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

WORDS = ("serving", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "1,64")


def test_every_time_has_its_interval_and_loads_come_as_asked(sartor) -> None:
    body = sartor(*WORDS, "--json").body
    assert body["schema"] == "sartor/serving/1"
    assert [each["concurrency"] for each in body["loads"]] == [1, 64]
    for each in body["loads"]:
        for name in ("ttft", "tpot"):
            assert each[f"{name}_low_s"] < each[f"{name}_s"] < each[f"{name}_high_s"]
        assert each["requests_per_s"] * each["request_s"] == pytest.approx(each["concurrency"])


def test_the_table_says_what_fits_and_what_is_assumed(sartor) -> None:
    text = " ".join(sartor(*WORDS).out.split())
    assert "1,024 tokens in, 1,024 out" in text
    assert "sequences in memory, each halfway through its answer" in text
    assert "no speculative decoding" in text
    assert "the first token includes about 6 decoding steps of scheduling and 9 ms of the client" in text


@pytest.mark.parametrize("pools", [(), ("--prefill-workers", "1", "--decode-workers", "1")])
def test_without_an_engine_the_intervals_hold_every_other_engine_and_one_that_moves_the_time_is_named(
    sartor, pools: tuple[str, ...]
) -> None:
    words = (
        "serving",
        "llama-3.1-70b",
        "--gpu",
        "b200",
        "--tp",
        "8",
        "--dtype",
        "fp8",
        "--concurrency",
        "1,16",
        *pools,
    )
    answer, named = sartor(*words, "--json").body, sartor(*words, "--kernels", "trtllm", "--json").body
    for load, there in zip(answer["loads"], named["loads"], strict=True):
        for name in ("ttft", "tpot"):
            assert load[f"{name}_low_s"] <= there[f"{name}_s"] <= load[f"{name}_high_s"]
    turns = {turn["value"]: turn["time_s"] for turn in answer["depends_on"]}
    assert turns["trtllm"] == named["loads"][-1]["tpot_s"]
    assert f"With kernels=trtllm, which was not stated: {1e3 * turns['trtllm']:.3g} ms" in sartor(*words).out
    assert not named["depends_on"]


@pytest.mark.parametrize(
    "words",
    [
        ("llama-3.1-70b", "--gpu", "b200", "--tp", 8, "--dtype", "fp8"),
        ("llama-3.1-8b", "--gpu", "h100", "--tp", 1),
        ("llama-3.1-8b", "--gpu", "h100", "--tp", 1, "--kernels", "sglang"),
    ],
)
def test_one_sequence_in_flight_has_the_interval_and_the_engines_of_estimate(sartor, words: tuple[object, ...]) -> None:
    lengths = ("--input-len", 1024, "--output-len", 1024, "--concurrency", 1)
    served = sartor("serving", *words, *lengths, "--json").body
    one = ("--phase", "decode", "--microbatch-size", 1, "--context-len", 1536)
    totals = (estimated := sartor("estimate", *words, *one, "--json").body)["totals"]
    for end in ("", "low_", "high_"):
        assert served["loads"][0][f"tpot_{end}s"] == pytest.approx(totals[f"{end or 'time_'}s"], rel=1e-12)
    assert served["depends_on"] == estimated["depends_on"]


def test_lengths_and_loads_are_read_as_the_options_of_a_run_are(sartor) -> None:
    words = ("serving", "llama-3.1-8b", "--gpu", "h100", "--input-len", "32k", "--output-len", "0.5k")
    body = sartor(*words, "--concurrency", "2,1k", "--json").body
    assert [each["concurrency"] for each in body["loads"]] == [2, 1024]
    assert (body["input_len"], body["output_len"]) == (32768, 512)
    assert "32,768 tokens in, 512 out" in " ".join(sartor(*words, "--concurrency", 1).out.split())
    for word, reason in (("100B", "must be a whole number of tokens"), ("8 requests", "counts tokens, not requests")):
        assert reason in sartor("serving", "llama-3.1-8b", "--input-len", word, "--json").refusal()


def test_one_load_is_said_once(sartor) -> None:
    assert "in flight a token takes" not in sartor(*WORDS[:-1], "1").out


def test_more_devices_than_a_node_has_are_said_to_cross_the_network(sartor) -> None:
    crossing = "more than 8 h100_sxm cross the network of dgx-h100"
    assert crossing in sartor("serving", "llama-3.1-70b", "--tp", 16, "--gpu", "h100").out
    assert "cross the network" not in sartor("serving", "llama-3.1-70b", "--tp", 16, "--gpu", "gb200").out


def test_pools_of_their_own_count_all_devices(sartor) -> None:
    words = (*WORDS, "--prefill-workers", 2, "--prefill-tp", 2, "--decode-workers", 3, "--json")
    assert sartor(*words).body["server"]["num_devices"] == 7


def test_a_model_that_does_not_fit_is_an_answer_with_what_would(sartor) -> None:
    ran = sartor("serving", "llama-3.1-70b", "--gpu", "h100", "--tp", 1, "--json")
    assert ran.code == 3
    assert (ran.body["fits"], ran.body["loads"], ran.body["would_fit"]) == (False, [], {"tp": 4})


def test_devices_that_nobody_stated_are_the_fewest_that_hold_a_sequence_and_are_said(sartor) -> None:
    words = ("serving", "llama-3.1-70b", "--gpu", "h100", "--concurrency", 4)
    ran = sartor(*words, "--json")
    assert (ran.code, ran.body["run"]["tp"]["value"], ran.body["run"]["tp"]["origin"]) == (0, 4, "searched")
    stated = sartor(*words, "--tp", 4, "--json").body
    assert (stated["loads"], stated["run"]["tp"]["origin"]) == (ran.body["loads"], "stated")
    text = " ".join(sartor(*words).out.split())
    assert "tp=4: the fewest devices that hold a sequence (set --tp)" in text


def test_where_no_devices_hold_a_sequence_none_are_said_to(sartor) -> None:
    ran = sartor("serving", "llama-3.1-8b", "--gpu", "l4", "--concurrency", 1, "--input-len", 10**9, "--json")
    assert (ran.code, ran.body["run"]["tp"]["value"], ran.body["run"]["tp"]["origin"]) == (3, 1, "usual")


@pytest.mark.parametrize(
    ("words", "wider"),
    [
        (("--tp", 8, "--prefill-tp", 1), {"prefill_tp": 8}),
        (("--tp", 2, "--prefill-tp", 8), {"tp": 8}),
        (("--tp", 2), {"tp": 8, "prefill_tp": 8}),
    ],
)
def test_each_pool_must_hold_the_weights_and_what_would_fit_does(sartor, words: tuple[object, ...], wider) -> None:
    asked = ("serving", "llama-3.1-405b", "--gpu", "h100", "--dtype", "fp8", "--concurrency", 8, "--prefill-workers", 1)
    ran = sartor(*asked, *words, "--json")
    assert (ran.code, ran.body["fits"], ran.body["would_fit"]) == (3, False, wider)
    text = sartor(*asked, *words).out
    assert ("servers for prompts" in text) == ("prefill_tp" in wider)
    given = dict(zip(words[::2], words[1::2], strict=True))
    given |= {f"--{name.replace('_', '-')}": n for name, n in wider.items()}
    assert sartor(*asked, *(word for pair in given.items() for word in pair)).code == 0


@pytest.mark.parametrize(
    ("words", "dtype", "tp"),
    [
        (("gpt-oss-120b", "--gpu", "h100"), "int4_wo", 1),
        (("gpt-oss-120b", "--gpu", "b200"), "mxfp4", 1),
        (("deepseek-v3", "--gpu", "h200"), "fp8_block", 8),
        (("deepseek-v3", "--gpu", "h100"), "fp8_block", 16),
        (("gpt-oss-120b", "--gpu", "h100", "--dtype", "bf16"), "bf16", 4),
    ],
)
def test_a_model_released_in_few_bits_is_served_in_them(sartor, words: tuple[object, ...], dtype: str, tp: int) -> None:
    ran = sartor("serving", *words, "--concurrency", 4, "--json")
    assert (ran.code, ran.body["server"]["dtype"], ran.body["server"]["tp"]) == (0, dtype, tp)
    said = any(each.startswith(f"dtype={dtype} (the checkpoint's") for each in ran.body["model"]["assumptions"])
    assert said == ("--dtype" not in words) == (ran.body["run"]["dtype"]["origin"] == "implied")


@pytest.mark.parametrize(
    ("words", "named", "free_gib"),
    [
        (
            ("llama-3.1-8b", "--tp", 1, "--input-len", 1_000_000),
            "vllm has 51.4 GiB for them, enough for at most 421,",
            51.4,
        ),
        (
            ("llama-3.1-70b", "--tp", 4, "--dtype", "fp8", "--input-len", 10_000_000, "--output-len", 1),
            "one sequence of 10,000,001 tokens take 763 GiB per GPU",
            47.7,
        ),
    ],
)
def test_a_sequence_that_is_too_long_is_named_and_not_the_weights(sartor, words, named: str, free_gib: float) -> None:
    asked = ("serving", *words, "--gpu", "h100", "--concurrency", 1)
    body, ran = sartor(*asked, "--json").body, sartor(*asked)
    assert (ran.code, ran.err) == (3, "")
    text = " ".join(ran.out.split())
    assert named in text
    assert "is beyond the model's 131072" in text
    (lack,) = body["shortages"]
    assert lack["server"] == "answers"
    assert lack["sequence_bytes"] > lack["free_bytes"] == pytest.approx(free_gib * 2**30, rel=0.01)
    longest = (*words[: words.index("--input-len")], "--input-len", lack["most_tokens"] - 1, "--output-len")
    codes = [sartor("serving", *longest, n, "--gpu", "h100", "--concurrency", 1, "--json").code for n in (1, 2)]
    assert codes == [0, 3]


def test_weights_that_do_not_fit_are_named(sartor) -> None:
    text = " ".join(sartor("serving", "llama-3.1-70b", "--gpu", "h100", "--tp", 1).out.split())
    assert "Does not fit: weights of 131 GiB per GPU and what vllm keeps for a step are 65.1 GiB too much." in text
    assert "It would with tp=4." in text


QUANTIZED = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880,
    "num_hidden_layers": 36, "num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088,
    "num_local_experts": 128, "num_experts_per_tok": 4, "sliding_window": 128, "tie_word_embeddings": False,
    "max_position_embeddings": 131072, "quantization_config": {"quant_method": "mxfp4"},
}  # fmt: skip
"""gpt-oss 120B as published."""


def test_a_quantized_checkpoint_is_served_as_it_is(sartor, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QUANTIZED))
    ran, text = (sartor("serving", tmp_path, "--gpu", "h100", "--tp", 1, *how) for how in (("--json",), ()))
    assert (ran.code, text.code, ran.body["server"]["dtype"]) == (0, 0, "int4_wo")
    widened = "dtype=int4_wo (the checkpoint's mxfp4 weights, widened to 16 bits on this device)"
    notes = (widened, "wider than int4_wo in the checkpoint: qkv, attention output, logits")
    for note in notes:
        assert any(note in said for said in ran.body["model"]["assumptions"])
        assert note in " ".join(text.out.split())
    assert sartor("serving", tmp_path, "--gpu", "b200", "--tp", 1, "--json").body["server"]["dtype"] == "mxfp4"
    assert sartor("serving", tmp_path, "--gpu", "h100", "--tp", 1, "--dtype", "bf16", "--json").code == 3


def test_an_odd_vocabulary_is_padded_as_engines_do(sartor) -> None:
    body = sartor("serving", "gpt-neo-2.7b", "--gpu", "h100", "--tp", 2, "--concurrency", 4, "--json").body
    assert "vocabulary of 50257 padded to 50304, as engines do" in body["model"]["assumptions"]
    whole = sartor("serving", "gpt-neo-2.7b", "--gpu", "h100", "--concurrency", 4, "--json").body
    assert not any("padded" in each for each in whole["model"]["assumptions"])
    small = sartor("serving", "bloom-176b", "--gpu", "h100", "--tp", 1, "--json", "--set", "vocab_size=250881").body
    assert small["would_fit"] == {"tp": 8}


def test_an_engine_in_which_nothing_fits_is_named_and_not_in_the_interval(sartor) -> None:
    words = ("serving", "llama-3.1-70b", "--gpu", "h100", "--tp", 2, "--max-num-seqs", 128, "--concurrency", 4)
    ran = sartor(*words, "--json")
    assert ran.body["loads"][0]["tpot_high_s"] < 1
    assert [turn["value"] for turn in ran.body["depends_on"] if turn["verdict"] == "not one sequence fits"] == [
        "sglang"
    ]
    assert "With kernels=sglang, which was not stated: not one sequence fits." in " ".join(sartor(*words).out.split())


def test_one_whole_answer_must_fit_not_half(sartor) -> None:
    """Weights of 16.1 GB on an L4: half of an answer of 40,000 tokens fits beside them, a whole one does not."""
    words = ("serving", "llama-3.1-8b", "--gpu", "l4", "--tp", 1, "--input-len", 2000, "--concurrency", 1)
    ran = sartor(*words, "--output-len", 40_000, "--json")
    assert (ran.code, ran.body["would_fit"]) == (3, {"tp": 2})
    assert sartor(*words, "--output-len", 20_000).code == 0


def test_an_answer_of_one_token_has_no_time_between_tokens(sartor) -> None:
    lines = sartor(*WORDS, "--output-len", 1, "--input-len", 1).out.splitlines()
    assert "1 token in, 1 out: fits" in lines[0]
    assert "first token" in "".join(lines)
    assert "per token" not in "".join(lines)


def test_a_billion_requests_keep_to_one_line(sartor) -> None:
    rows = sartor("serving", "llama-3.1-8b", "--gpu", "h100", "--concurrency", "4,1000000000").out.splitlines()
    assert [row.split()[:3] for row in rows if "1B" in row] == [["1B", "274", "1B"]]
    assert max(map(len, rows)) <= 100


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("llama-3.1-8b", "--prefill-copies", 2), "--prefill-copies=2: shares out experts"),
        (
            ("mixtral-8x7b", "--tp", 8, "--ep", 8, "--prefill-tp", 1, "--prefill-copies", 3),
            "--prefill-copies=3: prefill_tp x prefill_copies must divide the 8 experts; nearest: 1, 2",
        ),
        (("llama-3.1-8b", "--prefill-tp", 3), "--prefill-tp=3: does not split num_heads=32"),
        (("mixtral-8x7b", "--tp", 2, "--prefill-tp", 4, "--prefill-ep", 3), "--prefill-ep=3: must divide"),
    ],
)
def test_sizes_for_prompts_are_refused_by_their_own_name(sartor, words: tuple[object, ...], named: str) -> None:
    ran = sartor("serving", *words, "--prefill-workers", 1)
    assert ran.code == 2
    assert named in ran.err


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--tp", 3), "num_heads=32"),
        (("--ep", 2), "--ep=2"),
        (("--copies", 2), "--copies=2"),
        (("--concurrency", "many"), "--concurrency=many"),
        (("--concurrency", "0"), "--concurrency=0"),
        (("--output-len", 0), "--output-len=0"),
        (("--kernels", "tgi"), "vllm, sglang, trtllm"),
        (("--decode-workers", 2), "--decode-workers=2"),
        (("--prefill-tp", 2), "--prefill-tp=2"),
        (("--dtype", "fp7"), "--dtype"),
        (("--gpu", "tpu_v4_like"), "serving frameworks run on GPUs"),
    ],
)
def test_what_cannot_be_served_is_one_sentence(sartor, words: tuple[object, ...], named: str) -> None:
    ran = sartor("serving", "llama-3.1-8b", *words)
    assert ran.code == 2
    assert named in ran.err
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize("gpu", ["mi300x", "arc_pro_b60"])
def test_an_engine_that_is_not_built_for_the_vendor_is_refused_and_others_serve(sartor, gpu: str) -> None:
    words = ("serving", "qwen2.5-0.5b", "--gpu", gpu, "--concurrency", 1)
    ran = sartor(*words, "--kernels", "trtllm")
    assert ran.code == 2
    assert f"runs on NVIDIA GPUs only, not on {gpu}" in ran.err
    assert sartor(*words, "--kernels", "vllm").code == 0


def test_a_length_beyond_the_models_is_said_as_estimate_does(sartor) -> None:
    words = ("serving", "gpt2", "--concurrency", 1, "--input-len", 1024, "--output-len")
    assert "input_len + output_len=1025 is beyond the model's 1024" in sartor(*words, 1).out
    assert "beyond" not in sartor("serving", "gpt2", "--concurrency", 1, "--input-len", 512, "--output-len", 512).out


def test_copies_without_a_request_run_nothing(sartor) -> None:
    words = ("serving", "deepseek-v3", "--gpu", "gb200", "--dtype", "nvfp4", "--copies", 8, "--ep", 8)
    loads = sartor(*words, "--concurrency", "1,9,64", "--json").body["loads"]
    assert [each["running"] for each in loads] == [1, 9, 64]


def test_which_tokens_an_encoder_takes_is_said_and_priced(sartor) -> None:
    words = ("serving", "t5-large", "--gpu", "h100", "--concurrency", "64", "--output-len", 8, "--json", "--input-len")
    short, long = (sartor(*words, n).body for n in (256, 512))
    assert any("prompts pass the encoder" in each for each in short["model"]["assumptions"])
    assert short["loads"][0]["step_s"] < long["loads"][0]["step_s"]


def test_an_encoder_gives_no_tokens(sartor) -> None:
    assert "encoder-only" in sartor("serving", "bert-large").err


@pytest.mark.parametrize("words", [("--concurrency", "100000"), ("--input-len", "1900000", "--tp", "4")])
def test_a_load_beyond_memory_says_how_many_run_and_gives_the_step_of_those(sartor, words: tuple[str, ...]) -> None:
    body = sartor("serving", "llama-3.1-8b", "--gpu", "h100", *words, "--json").body
    text = " ".join(sartor("serving", "llama-3.1-8b", "--gpu", "h100", *words).out.split())
    most, last = body["max_sequences"], body["loads"][-1]
    assert most < last["concurrency"] == last["running"] + last["waiting"]
    assert last["running"] == most
    runs = f"{most} run{'s' if most == 1 else ''} at once and {last['waiting']:,.0f} wait for room in memory"
    assert f"Of {last['concurrency']:,} requests {runs}: the first token takes" in text
    assert f"A step of {most} takes" in text
    assert "in flight the first token" not in text


@pytest.mark.slow
def test_sizes_that_were_not_read_leave_open_whether_it_fits(sartor, tmp_path: Path) -> None:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 2, "num_attention_heads": 8}
    config = {"model_type": "llama", "vocab_size": 32000, **sizes, "memory_slots_hidden_size": 4096}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ("serving", tmp_path / "config.json", "--gpu", "h100", "--concurrency", "1")
    lead = " ".join(sartor(*words).out.split("Loads")[0].split())
    unknown = "whether it fits is unknown, as memory_slots_hidden_size=4096 is not read; without it, "
    assert f"{unknown}at most" in lead
    assert "memory_slots_hidden_size=4096 is not read: the parameter count is unknown" in lead
    body = sartor(*words, "--json").body
    assert body["status"] == "unknown"
    assert body["fits"] is None
    assert body["model"]["unread_sizes"] == ["memory_slots_hidden_size=4096"]
    assert sartor(*WORDS, "--json").body["status"] == "feasible"
    where = ("--cluster", "dgx-h100", "--num-devices", "8", "--global-batch-size", "8", "--seq-len", "512")
    doors = {"decode": ("estimate",), "train": ("estimate", "lint", "plan")}
    for command, phase in [(command, phase) for phase, commands in doors.items() for command in commands]:
        options = where if phase == "train" else ("--gpu", "h100", "--phase", phase)
        said = " ".join(sartor(command, words[1], *options).out.split())
        assert unknown in said, (command, phase)
        assert "likely to fit" not in said
        body = sartor(command, words[1], *options, "--json" if command != "lint" else "--format=json").body
        if command == "estimate":
            assert (body["totals"]["fits"], body["totals"]["fit_probability"]) == (None, None)
        if command == "plan":
            assert (body["status"], body["fit_probability"]) == ("unknown", None)
