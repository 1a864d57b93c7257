"""Every rule: a good and a bad sample, a fix that lowers the time, grades by hardware, allowing, interplay."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest

from rules.rule_samples import LLAMA, SAMPLES, UNFUSED, Sample, bad, good
from sartor import api
from sartor.answers.advice import FINDING
from sartor.answers.field import to_json
from sartor.cost.price import price
from sartor.errors import InputError
from sartor.hardware.catalog import load_gpu
from sartor.model.counts import count_params
from sartor.model.editing import EDITABLE, edit_fields
from sartor.model.lower import lower
from sartor.model.plan import AXES
from sartor.model.workload import ParallelDims, Phase, Workload
from sartor.model.zoo import load_model
from sartor.operators import Role
from sartor.read.huggingface import read_model
from sartor.report import lint_formats
from sartor.report.fit_words import headline
from sartor.rules.lint import LEAST_GAIN, changed, run_rules
from sartor.rules.rule import DIMS_FIELDS, WORKLOAD_FIELDS, Context, Finding, Grade, worst_grade
from sartor.rules.shape import RULES, find_rule, rule_entries
from sartor.run.fields import Origin

NAMES = [rule.name for rule in RULES]
CONTRACT_KEYS = {"rule", "grade", "message", "operator", "field", "value", "gain_s", "gain_fraction", "fix"}


def findings_of(name: str) -> list[Finding]:
    found = [finding for finding in run_rules(bad(name)) if finding.rule == name]
    assert found
    return found


def test_codes_are_numbered_in_order() -> None:
    assert [rule.code for rule in RULES] == [f"R{i}" for i in range(1, len(RULES) + 1)]


def test_every_rule_has_samples() -> None:
    assert sorted(SAMPLES) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_is_one_file_of_its_name_with_a_page(name: str) -> None:
    module = importlib.import_module(f"sartor.rules.shape.{name}")
    assert module.RULE.name == name
    for section in ("## What it finds", "## Why it costs", "## Example", "## Fix", "## Source"):
        assert section in (module.__doc__ or "")


@pytest.mark.parametrize("name", NAMES)
def test_a_rule_speaks_on_its_bad_sample_and_is_silent_on_its_good_one(name: str) -> None:
    rule = find_rule(name)
    suspicions = list(rule.check(bad(name)))
    assert suspicions
    assert not list(rule.check(good(name)))
    assert findings_of(name) or all(s.advisory for s in suspicions)
    assert all(s.grade.severity <= rule.worst.severity for s in suspicions)


@pytest.mark.parametrize("name", NAMES)
def test_a_message_names_field_or_size_and_value(name: str) -> None:
    suspicions = list(find_rule(name).check(bad(name)))
    assert suspicions
    for suspicion in suspicions:
        assert len(suspicion.message) > 20
        assert not suspicion.message.endswith(".")
        if suspicion.fixes and suspicion.operator == "":
            assert str(suspicion.value) in suspicion.message


@pytest.mark.parametrize("name", NAMES)
def test_a_fix_lowers_the_predicted_time_or_the_finding_is_information(name: str) -> None:
    context = bad(name)
    for finding in findings_of(name):
        if finding.gain_s is None:
            assert finding.grade is Grade.ERROR
            assert finding.fix
        elif finding.grade is not Grade.INFO:
            assert finding.gain_fraction is not None
            assert finding.gain_fraction >= LEAST_GAIN
        if finding.fix and finding.gain_s is not None:
            assert finding.gain_s > 0
            assert device_seconds_per_token(context, finding) < paced(context, finding)


def device_seconds_per_token(context: Context, finding: Finding) -> float:
    """Predicted anew, one scalar call."""
    workload, dims, _ = changed(context.workload, context.priced_dims, finding.fix)
    after = price(lower(workload, dims), context.gpu, context.calibration)
    return float(after.time_s) / after.graph.tokens * dims.tp


def paced(context: Context, finding: Finding) -> float:
    """The baseline's device-seconds per token; of as many layers as the longest stage implies, for pipelines."""
    base = context.baseline
    if finding.rule == "uneven_pipeline":
        layers = -(-finding.value // context.dims.pp) * context.dims.pp
        workload, dims, _ = changed(context.workload, context.priced_dims, {"num_layers": layers})
        base = price(lower(workload, dims), context.gpu, context.calibration)
    return float(base.time_s) / base.graph.tokens * context.priced_dims.tp


@pytest.mark.parametrize("name", NAMES)
def test_a_fix_names_known_fields_and_breaks_no_rule_harder_than_the_one_it_answers(name: str) -> None:
    context = bad(name)
    loud = {rule.name for rule in RULES for s in rule.check(context) if s.grade is Grade.ERROR}
    for finding in findings_of(name):
        assert set(finding.fix) <= {*EDITABLE, *WORKLOAD_FIELDS, *DIMS_FIELDS}
        if not finding.fix or finding.gain_s is None:
            continue
        workload, dims, _ = changed(context.workload, context.dims, finding.fix)
        after = replace(context, workload=workload, dims=dims)
        assert {rule.name for rule in RULES for s in rule.check(after) if s.grade is Grade.ERROR} <= loud


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ("tail_wave", "deep_narrow_decode")])
def test_a_rule_is_content_with_its_own_fix(name: str) -> None:
    """Rules with a condition of their own stop complaining of what the fix changed; two only compare."""
    context = bad(name)
    for finding in findings_of(name):
        if not finding.fix:
            continue
        workload, dims, _ = changed(context.workload, context.dims, finding.fix)
        after = replace(context, workload=workload, dims=dims, runs_at=dims)
        left = [s for s in find_rule(name).check(after) if s.field == finding.field and not s.advisory]
        assert all(s.grade.severity < finding.grade.severity or s.grade is Grade.INFO for s in left)


@pytest.mark.parametrize(("model", "dense", "spoken"), [("deepseek-v3", False, False), ("gpt3-6.7b", True, True)])
def test_only_a_tail_of_the_dense_feed_forward_part_counts(model: str, dense: bool, spoken: bool) -> None:
    """DeepSeek-V3's q_up and shared experts do not depend on ``ffn_hidden_size``."""
    baseline = (context := Sample(model, workload={"phase": Phase.PREFILL}, wave_efficiency=1.0).context()).baseline
    costs = tuple(
        replace(c, details=c.details | {"wave_efficiency": 0.1})
        if (op.role in (Role.FFN_UP, Role.FFN_DOWN)) == dense
        else c
        for op, c in zip(baseline.graph.operators, baseline.costs, strict=True)
    )
    suspicions = list(find_rule("tail_wave").check(replace(context, baseline=replace(baseline, costs=costs))))
    assert bool(suspicions) == spoken


@pytest.mark.parametrize("name", NAMES)
def test_operators_named_are_the_graphs(name: str) -> None:
    known = {op.name for op in bad(name).baseline.graph.operators} | {""}
    assert {s.operator for s in find_rule(name).check(bad(name))} <= known


def test_findings_carry_the_contracts_keys_and_no_number_json_cannot_hold() -> None:
    import json

    bodies = [to_json(finding, FINDING) for name in NAMES for finding in findings_of(name)]
    assert all(body.keys() >= CONTRACT_KEYS for body in bodies)
    assert {body["grade"] for body in bodies} == {"error", "warn", "info"}
    json.dumps(bodies, allow_nan=False)


def test_findings_come_worst_and_costliest_first() -> None:
    found = run_rules(Sample("gpt3-2.7b", workload=UNFUSED).context())
    keys = [(-f.grade.severity, -(f.gain_s or 0.0)) for f in found]
    assert keys == sorted(keys)


def test_the_same_question_has_the_same_findings() -> None:
    assert run_rules(bad("ragged_vocab")) == run_rules(SAMPLES["ragged_vocab"][0].context())


# Grades by hardware: codesign.md section 2.1 and the hardware column of section 3.


def raw_grade(rule: str, model: str, gpu: str, **more: dict[str, int]) -> Grade | None:
    found = list(find_rule(rule).check(Sample(model, gpu, **more).context()))  # type: ignore[arg-type]
    return found[0].grade if found else None


@pytest.mark.parametrize(
    ("gpu", "grade"),
    [
        ("v100_sxm", Grade.ERROR),
        ("a100_sxm", Grade.ERROR),
        ("h100_sxm", Grade.ERROR),
        ("mi250x", Grade.INFO),
        ("tpu_v5p", Grade.WARN),
    ],
)
def test_an_odd_vocabulary_is_an_error_on_tensor_cores_only(gpu: str, grade: Grade) -> None:
    assert raw_grade("ragged_vocab", "gpt2-small", gpu) is grade


@pytest.mark.parametrize(
    ("gpu", "grade"), [("v100_sxm", None), ("a100_sxm", Grade.WARN), ("mi300x", Grade.INFO), ("tpu_v4", Grade.WARN)]
)
def test_the_64_rule_is_that_of_ampere_and_later(gpu: str, grade: Grade | None) -> None:
    assert raw_grade("ragged_vocab", "opt-1.3b", gpu) is grade  # 50272 = 32 * 1571


def test_blackwell_and_systolic_arrays_want_more_than_64() -> None:
    assert raw_grade("ragged_hidden", "gpt-oss-20b", "h100_sxm") is None  # 2880 = 45 * 64
    assert raw_grade("ragged_hidden", "gpt-oss-20b", "b200_sxm") is Grade.WARN
    assert raw_grade("ragged_hidden", "gpt-oss-20b", "tpu_v6e") is Grade.WARN


def test_the_vocabularys_gain_on_a100_is_far_above_that_on_mi250x() -> None:
    gains = {
        gpu: next(f for f in run_rules(Sample("gpt2-small", gpu).context()) if f.rule == "ragged_vocab")
        for gpu in ("a100_sxm", "mi250x")
    }
    assert gains["a100_sxm"].grade is Grade.ERROR
    assert gains["mi250x"].grade is Grade.INFO
    assert (gains["a100_sxm"].gain_fraction or 0) > 3 * (gains["mi250x"].gain_fraction or 0)


def test_padding_a_vocabulary_is_no_gain_when_decoding() -> None:
    from sartor.model.workload import Phase

    decode = {"phase": Phase.DECODE, "context_len": 512, "microbatch_size": 4}
    found = [f for f in run_rules(Sample("gpt2-small", workload=decode).context()) if f.rule == "ragged_vocab"]
    assert [f.grade for f in found] == [Grade.INFO]


# Interplay: codesign.md, end of section 3.


def test_the_head_dimension_is_not_fixed_with_heads_that_do_not_split() -> None:
    """h = 2560 at tp=8: 20 heads of 128 would be fastest, but 20 % 8 is not 0; 40 of 64 splits."""
    context = Sample("pythia-2.8b", workload=UNFUSED, dims={"tp": 8}).context()
    fixes = [f.fix for f in run_rules(context) if f.rule == "ragged_head_dim" and f.fix]
    assert all(fix["num_heads"] % 8 == 0 for fix in fixes)
    alone = Sample("pythia-2.8b", workload=UNFUSED).context()
    assert {"num_heads": 20, "head_dim": 128} in [f.fix for f in run_rules(alone)]


def test_a_vocabulary_for_six_devices_divides_by_six() -> None:
    context = Sample("gpt3-175b", "v100_sxm", dims={"tp": 6}).context()
    fixes = [f.fix for f in run_rules(context) if f.rule in ("ragged_vocab", "six_gpu_nodes")]
    assert fixes
    assert all(fix.get("vocab_size", 0) % 6 == 0 for fix in fixes)


def test_a_gated_width_at_tp_8_is_fixed_to_whole_shards() -> None:
    context = Sample("llama-2-7b", "h100_sxm", {"ffn_hidden_size": 10922 - 2}, {"tp": 8}).context()
    fixes = [f.fix for f in run_rules(context) if f.rule == "untuned_swiglu" and f.fix]
    assert all(fix["ffn_hidden_size"] % 512 == 0 for fix in fixes)


def test_the_2_7b_shape_is_told_to_take_20_heads() -> None:
    found = next(f for f in run_rules(bad("ragged_head_dim")) if f.rule == "ragged_head_dim")
    assert found.fix == {"num_heads": 20, "head_dim": 128}


def test_a_model_that_cannot_split_is_answered_not_refused() -> None:
    context = Sample("falcon-7b", "h100_sxm", dims={"tp": 8}).context()
    assert context.priced_dims.tp == 1
    found = run_rules(context)
    assert (found[0].rule, found[0].grade, found[0].gain_s) == ("unsplit_heads", Grade.ERROR, None)


# Allowing.


@pytest.mark.parametrize("word", ["ragged_vocab", "ragged-vocab", "R1", "r1"])
def test_an_allowed_rule_is_silent(word: str) -> None:
    context = bad("ragged_vocab")
    assert "ragged_vocab" in {f.rule for f in run_rules(context)}
    assert "ragged_vocab" not in {f.rule for f in run_rules(context, allow=(word,))}


def test_an_unknown_rule_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"raged_vocab.*ragged_vocab \(R1\)"):
        run_rules(LLAMA.context(), allow=("raged_vocab",))


def test_the_catalogue_lists_every_rule_with_source_and_date() -> None:
    entries = rule_entries()
    assert [entry["name"] for entry in entries] == NAMES
    assert all(entry["source"] for entry in entries)
    assert "## Why it costs" in rule_entries("R1")[0]["page"]


# Tie to the docs and to speed.


def test_the_docs_pages_are_up_to_date(repo_dir: Path) -> None:
    spec = importlib.util.spec_from_file_location("rules_docs", repo_dir / "tools" / "rules_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = repo_dir / "docs" / "rules"
    have = {path.name: path.read_text("utf-8") for path in folder.glob("*.md")}
    assert have == module.pages(), "run python tools/rules_docs.py"


def test_all_rules_together_are_priced_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fixes of every rule, however many, go through the cost model once."""
    import sartor.rules.lint as pricing

    calls, real = [], pricing.price_all
    monkeypatch.setattr(pricing, "price_all", lambda *a, **k: calls.append(1) or real(*a, **k))
    context = Sample("gpt3-13b", "h100_sxm", dims={"tp": 4}).context()
    assert sum(len(s.fixes) for rule in RULES for s in rule.check(context)) > 8
    run_rules(context)
    assert len(calls) == 1


def test_gpus_of_every_generation_have_an_alignment() -> None:
    from sartor.hardware.catalog import GPUS
    from sartor.hardware.gpu import alignment_of

    for name in GPUS.names():
        gpu = load_gpu(name)
        for dtype in gpu.peak_flops_per_s:
            alignment = alignment_of(gpu, dtype)
            assert 1 <= alignment.minimum <= alignment.preferred
            assert alignment.preferred % alignment.minimum == 0
            assert alignment.source


@pytest.mark.parametrize("model", ["pythia-2.8b", "opt-1.3b", "gpt2-xl", "phi-2", "qwen2.5-1.5b", "gemma-2b"])
@pytest.mark.parametrize("phase", list(Phase))
def test_a_fix_can_be_asked_about_as_it_is_printed(model: str, phase: Phase) -> None:
    workload = Workload(shape=load_model(model), seq_len=2048, phase=phase, microbatch_size=4, context_len=2048)
    for finding in run_rules(Context.of(workload, load_gpu("a100"), ParallelDims())):
        sizes = {name: value for name, value in finding.fix.items() if name in EDITABLE}
        shape, _ = edit_fields(workload.shape, sizes)
        assert {name: shape.fields()[name] for name in sizes} == sizes
        coupled = workload.shape.num_heads * workload.shape.head_dim == workload.shape.hidden_size
        assert not coupled or shape.num_heads * shape.head_dim == shape.hidden_size


def test_rules_that_one_change_answers_are_one_finding_with_several_reasons() -> None:
    """GPT-3 2.7B: R4 and R14 each claimed the same 3.0% of heads of 128."""
    found = api.lint("gpt3-2.7b", "a100_sxm").findings
    heads = [finding for finding in found if "head_dim" in finding.fix]
    assert [finding.rules for finding in heads] == [("ragged_head_dim", "flash_misfit")]
    assert [reason["code"] for reason in to_json(heads[0], FINDING)["reasons"]] == ["R4", "R14"]


@pytest.mark.slow
def test_no_two_findings_claim_the_gain_of_one_field() -> None:
    for question in ({"tp": 8}, {"phase": "decode"}, {"microbatch_size": 1}):
        for model in ("gpt3-2.7b", "t5-large", "tinyllama-1.1b"):
            found = api.lint(model, "h100_sxm", **question).findings  # type: ignore[arg-type]
            faults = [finding for finding in found if finding.gain_s is not None and not finding.remark]
            fields = [field for finding in faults for field in finding.fix]
            assert len(fields) == len(set(fields)), (model, question)


def test_a_change_of_depth_is_a_remark_with_its_own_gain_and_fix() -> None:
    """It stood as a further reason for heads of 64, a change of 1.6%, and its own gain was not said."""
    found = {finding.rule: finding for finding in api.lint("pythia-2.8b", "h100_sxm", phase="decode").findings}
    deep, heads = found["deep_narrow_decode"], found["ragged_head_dim"]
    assert deep.remark
    assert "num_layers" in deep.fix
    assert heads.rules == ("ragged_head_dim", "flash_misfit")
    assert (deep.gain_s or 0.0) > 5 * (heads.gain_s or 0.0)


def test_a_matter_of_architecture_is_a_remark_and_no_fault() -> None:
    found = api.lint("llama-3.1-8b", "a100_sxm").findings
    assert [finding.rule for finding in found if finding.remark] == ["sequential_layers"]
    assert worst_grade(finding for finding in found if finding.remark) is None
    assert str(lint_formats.FindingsText(found)).startswith("No rule finds waste in this shape.")


@pytest.mark.parametrize(("model", "gpu"), [("gpt3-2.7b", "a100_sxm"), ("gpt3-13b", "l40s")])
def test_a_finding_gains_what_advise_says_of_the_same_change(model: str, gpu: str) -> None:
    """Gradient traffic bounds the step on L40S."""
    advice = api.advise(model, gpu, framework="torchtitan")
    single = {edit.field: edit for edit in advice.search.single_edits}
    vocab = next(finding for finding in advice.findings if finding.rule == "ragged_vocab")
    assert vocab.fix == {"vocab_size": single["vocab_size"].new}
    assert vocab.gain_fraction == pytest.approx(1 - 1 / single["vocab_size"].efficiency_gain, abs=1e-9)


WHISPER_STACK = {"layers": 32, "attention_heads": 20, "ffn_dim": 5120}


def test_a_fix_of_the_length_is_one_that_the_model_takes() -> None:
    """A ViT's inputs have one length, Whisper's decoder 448 positions; lint offered 256 and 512 (2026-11-26)."""
    vit = read_model({"model_type": "vit", "hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16})
    found = {each.rule: each for each in api.lint(vit, "h100_sxm", microbatch_size=41).findings}
    assert "microbatch_size 40 or 48" in found["ragged_tokens"].message
    halves = {f"{half}_{key}": value for half in ("encoder", "decoder") for key, value in WHISPER_STACK.items()}
    whisper = read_model({"model_type": "whisper", "d_model": 1280, "vocab_size": 51866, **halves})
    found = {each.rule: each for each in api.lint(whisper, "mi300x", microbatch_size=1).findings}
    assert found["ragged_tokens"].message.endswith("Use seq_len 384")


def test_a_fix_can_be_set_as_it_is_told() -> None:
    """25 heads of 64 over tp=4: 24 of 64 no longer fill the hidden size, so the fix says their width, and its size."""
    found = next(each for each in api.lint("gpt2-xl", "h100", tp=4).findings if "unsplit_heads" in each.rules)
    assert found.fix == {"num_heads": 24, "head_dim": 64}
    shapes = [api.read("gpt2-xl", changes).shape for changes in (None, dict(found.fix))]
    before, after = (count_params(replace(shape, vocab_size=50688)).total for shape in shapes)  # as Megatron pads it
    assert found.params_change == pytest.approx(after / before - 1)
    assert -0.02 < found.params_change < -0.01
    wide = next(each for each in api.lint("turing-nlg", "h100").findings if each.rule == "ragged_hidden")
    assert api.estimate("turing-nlg", "h100", set=dict(wide.fix)).question.reading.shape.head_dim == 152


def test_fewer_wider_layers_keep_the_size() -> None:
    found = next(f for f in api.lint("qwen2.5-0.5b", "mi300x", phase="decode").findings if f.code == "R16")
    assert abs(found.params_change) < 0.01


def test_fewer_devices_shorten_no_pass_of_inference() -> None:
    found = next(f for f in api.lint("qwen2.5-0.5b", "mi300x", tp=2, phase="decode").findings if f.code == "R8")
    assert found.gain_s == found.gain_fraction == 0.0
    assert found.device_seconds_spared > 0.3
    train = next(f for f in api.lint("qwen2.5-0.5b", "h100", tp=2).findings if f.code == "R8")
    assert (train.gain_fraction or 0.0) > 0.1


@pytest.mark.parametrize("width", [700, 701])
@pytest.mark.parametrize("ep", [1, 8])
def test_experts_whose_rows_no_grouped_gemm_takes_go_to_the_nearest_width_of_their_size(width: int, ep: int) -> None:
    found = api.lint("qwen3-30b-a3b", "h100", ep=ep, set={"expert_ffn_hidden_size": width}).findings
    experts = next(finding for finding in found if "ragged_experts" in finding.rules)
    assert experts.grade is Grade.ERROR
    assert experts.fix == {"expert_ffn_hidden_size": 704}
    assert "multiples of 16 bytes only" in experts.message


def test_the_rules_are_asked_about_a_degree_that_does_not_divide() -> None:
    answer = api.lint("mixtral-8x7b", "h100", ep=3)
    (fault,) = (finding for finding in answer.findings if finding.axis)
    assert (fault.rule, fault.grade, fault.fix) == ("unsplit_experts", Grade.ERROR, {"ep": 2})
    assert api.estimate("mixtral-8x7b", "h100", ep=3).cannot_run == "ep=3 does not split num_experts=8 (6 and 9 do)"


def test_one_degree_that_does_not_divide_several_sizes_is_one_fault() -> None:
    (fault,) = (
        finding for finding in api.lint("gpt2-xl", "h100", tp=8, framework="torchtitan").findings if finding.axis
    )
    assert fault.fix == {"num_heads": 24, "head_dim": 64, "vocab_size": 50688}
    assert {"ragged_vocab", "unsplit_heads"} <= set(fault.rules)


@pytest.mark.parametrize(
    ("model", "axes", "start"), [("qwen2.5-7b", {"tp": 8}, {"tp": 4}), ("mixtral-8x7b", {"ep": 3}, {"ep": 2})]
)
def test_advice_for_a_degree_that_does_not_divide_starts_from_the_largest_that_does(
    model: str, axes: dict[str, int], start: dict[str, int]
) -> None:
    advice = api.advise(model, "h100", tp=axes.get("tp", 1), ep=axes.get("ep", 1), num_devices=64)
    held = advice.base.question.held
    assert held is not None
    assert held.num_devices == 64  # as stated, though another degree is priced
    assert all(held.axes[axis] == degree for axis, degree in start.items())
    assert all(int(candidate.shape.num_heads) % start.get("tp", 1) == 0 for candidate in advice.search.candidates)


def test_a_tp_that_does_not_split_the_heads_is_answered_with_the_nearest_heads_and_degrees() -> None:
    """28 heads over tp=8 (Qwen2.5 7B): the answer is about tp=4 and says so; estimate names the same degree."""
    lint = api.lint("qwen2.5-7b", "h100", tp=8)
    found = lint.findings[0]
    assert found.message == "num_heads=28 is not divisible by tp=8. Use 24 or 32 heads, or tp=4"
    question = lint.base.question
    assert (question.run.get("tp"), question.run.origin("tp")) == (4, Origin.IMPLIED)
    lines = list(headline(lint.base))
    assert lines[0].startswith("As stated it cannot run: tp=8 does not split num_heads=28 (24 and 32 do).")
    assert any("as tp 4, dp 2" in line for line in lines)
    for phase in ("train", "prefill"):
        answer = api.estimate("qwen2.5-7b", "h100", tp=8, phase=phase)
        assert answer.cannot_run == "tp=8 does not split num_heads=28 (24 and 32 do)"
        assert answer.question.dims.tp == 4
    planned = api.plan("qwen2.5-7b", "dgx-h100", num_devices=16, global_batch_size=64, tp=8)
    assert planned.cannot_run == "tp=8 does not split num_heads=28 (24 and 32 do)"


@pytest.mark.parametrize(("model", "stated"), [("qwen2.5-0.5b", {"tp": 2}), ("llama-2-7b", {"microbatch_size": 1})])
def test_a_change_of_a_stated_axis_gains_what_it_says_when_it_is_typed(model: str, stated: dict[str, int]) -> None:
    linted = api.lint(model, "h100", **stated)
    assert linted.base.priced is not None
    for finding in linted.findings:
        if set(finding.fix) == set(stated):
            typed = api.estimate(model, "h100", **finding.fix)
            gain = 1 - typed.time_s / linted.base.time_s
            assert finding.gain_fraction == pytest.approx(gain, rel=1e-6)


def test_no_change_is_proposed_of_what_the_search_chose() -> None:
    for model in ("llama-2-70b", "qwen3-30b-a3b"):
        axes = {name for finding in api.lint(model, "h100").findings for name in finding.fix} & AXES.keys()
        assert not axes
