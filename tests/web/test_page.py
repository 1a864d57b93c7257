"""The page in a real browser: Debian's chromium, driven by playwright. Screenshots go to out/screenshots."""

from __future__ import annotations

import base64
import gzip
import json
import os
import shutil
import signal
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from design_samples import question, small_space
from effort import LONG
from engine_samples import run_design
from traces.kineto_made import Made, strength_for, write

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


def link(**changes: Any) -> str:
    """The path of a page in another state than the one it opens in."""
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(json.dumps(changes).encode()) + packer.flush()
    return "/#s=" + base64.urlsafe_b64encode(packed).decode().rstrip("=")


OPENING = "/"
"""The page as a stranger sees it first."""
LLAMA = link(q={"model": "Llama 3.1 8B", "gpu": "h100_sxm", "framework": None}, plan={"cluster": "dgx-h100"})
SIZES = {"360": (360, 780), "1280": (1280, 860), "3840": (3840, 2160)}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if not CHROMIUM:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    with api.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture
def open_page(browser: Any, server: Any) -> Iterator[Callable[..., Any]]:
    """Open the page; afterwards nothing may have been complained of, nor asked of anyone else."""
    contexts: list[Any] = []
    complaints: list[str] = []
    asked: set[str] = set()
    own: list[str] = []

    def opened(
        *, size: str = "1280", scheme: str = "light", path: str = LLAMA, at: str = server.url, **words: Any
    ) -> Any:
        width, height = SIZES[size]
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme, **words)
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(120_000)  # of a busy machine; an idle one answers at once
        page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.add(request.url.split("?")[0]))
        page.goto(at + path)
        own.append(at)
        page.wait_for_selector("#step-time")
        return page

    yield opened
    for context in contexts:
        context.close()
    refusals = [
        text for text in complaints if "422" not in text and "net::ERR_" not in text
    ]  # the browser logs every answer that is no 200
    assert not refusals
    assert all(url.startswith((*own, "blob:", "data:")) for url in asked)


@pytest.fixture(scope="session")
def screenshots(repo_dir: Path) -> Path:
    folder = repo_dir / "out" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def until(page: Any, condition: str, wait_s: float = 60.0) -> None:
    """Wait for a condition in the page (playwright's own way evaluates strings, which the page's policy forbids)."""
    end = time.monotonic() + wait_s
    while not page.evaluate(f"() => Boolean({condition})"):
        assert time.monotonic() < end, f"waited {wait_s} s for {condition}"
        page.wait_for_timeout(40)


def settled(page: Any) -> None:
    """Until nothing is being asked or drawn."""
    until(page, "!document.querySelector('.waiting')")
    page.wait_for_timeout(30)


def planned(page: Any, fix: str = "pp=4") -> None:
    """Ask for plans with something fixed, and wait for their answer: the view's first look answers another question."""
    page.locator("#plan-fix").fill(fix)
    page.locator("#plan-fix").press("Enter")
    page.locator("#run-plan").click()
    until(page, "document.querySelector('#plan-headline')?.closest('.results:not(.stale)')", 120)


def slowed(page: Any) -> None:
    """Searches for plans begin two seconds late, so that a test can look at one that runs on any machine."""
    page.evaluate(
        """() => {
            const own = window.fetch;
            window.fetch = (url, options) => String(url).includes("/api/plan") ? new Promise((done, fail) => {
                const later = setTimeout(() => own(url, options).then(done, fail), 2000);
                options?.signal?.addEventListener("abort", () => {
                    clearTimeout(later);
                    fail(new DOMException("cancelled", "AbortError"));
                });
            }) : own(url, options);
        }"""
    )


def use(page: Any, what: str) -> None:
    """Take the file of a dialog, once the server has read it."""
    page.locator(f"#{what}-use").click()
    until(page, f"!document.querySelector('#{what}-dialog').open")
    settled(page)


def drop(page: Any, name: str, content: bytes, place: str = "header.top") -> None:
    data = page.evaluate_handle(
        """([name, text]) => {
          const data = new DataTransfer();
          data.items.add(new File([Uint8Array.from(atob(text), letter => letter.charCodeAt(0))], name));
          return data;
        }""",
        [name, base64.b64encode(content).decode()],
    )
    for event in ("dragenter", "dragover", "drop"):
        page.dispatch_event(place, event, {"dataTransfer": data})


def set_number(page: Any, field: str, value: int) -> None:
    box = page.locator(f"#field-{field}")
    box.fill(str(value))
    box.press("Enter")
    settled(page)


def test_it_loads_with_every_field_and_says_what_the_api_says(open_page: Callable[..., Any], server: Any) -> None:
    page = open_page()
    told = server.post("/api/estimate", {"model": "llama-3.1-8b"}).json()
    for field in (
        "num_layers",
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "ffn_hidden_size",
        "vocab_size",
    ):
        assert page.locator(f"#field-{field}").input_value() == str(told["model"][field])
        assert page.locator(f"[data-field={field}] svg path.saw").count() == 1
    assert page.locator("#step-time").inner_text() == f"{told['totals']['time_s']:.3g} s"


def test_a_pasted_config_is_read_and_its_findings_stand_beside_their_fields(
    open_page: Callable[..., Any], pythia: dict[str, Any]
) -> None:
    page = open_page()
    page.locator("#ask-gpu").select_option("a100_sxm")
    page.locator("#open-config").click()
    page.locator("#config-text").fill(json.dumps(pythia))
    page.locator("#config-name").fill("my pythia")
    use(page, "config")
    assert page.locator("#field-num_heads").input_value() == "32"
    assert page.locator("[data-field=head_dim].has-finding").count() == 1
    assert "my pythia" in page.locator("#ask-model").inner_text()
    page.locator("[data-field=head_dim] .finding button").click()
    settled(page)
    assert page.locator("#field-num_heads").input_value() != "32"
    assert (
        page.locator("#promise")
        .inner_text()
        .endswith("\u00d7 faster than the model's own sizes, trained with megatron")
    )


def test_a_file_dropped_anywhere_is_read(open_page: Callable[..., Any], pythia: dict[str, Any]) -> None:
    page = open_page()
    for layers, place in enumerate(("header.top", "#promise", "[data-field=num_heads] svg", "footer"), 20):
        drop(page, "dropped.json", json.dumps(pythia | {"num_hidden_layers": layers}).encode(), place)
        until(page, f"document.querySelector('#field-num_layers')?.value === '{layers}'")
        assert page.locator("#field-hidden_size").input_value() == "2560"
        settled(page)


def test_a_dropped_file_that_cannot_be_read_leaves_the_answer_and_opens_the_dialog(
    open_page: Callable[..., Any],
) -> None:
    page = open_page()
    settled(page)
    before = page.locator("#step-time").inner_text()
    posted: list[str] = []
    page.on("request", lambda request: posted.append(request.post_data or ""))
    drop(page, "broken.json", b'{"model_type": "llama",\n "hidden_size": 4096')
    until(
        page,
        "document.querySelector('#config-dialog')?.open && document.querySelector('#config-dialog .wrong').innerText",
    )
    assert page.locator("#config-name").input_value() == "broken"
    assert page.locator("#step-time").inner_text() == before
    assert len([body for body in posted if "model_type" in body]) == 1


@pytest.mark.parametrize(("view", "name"), [("plan", "rank0.json"), ("diagnose", "rank0.json.gz")])
def test_a_trace_dropped_on_any_view_is_diagnosed(
    open_page: Callable[..., Any], tmp_path: Path, view: str, name: str
) -> None:
    fault = Made(fault="ragged_vocab", strength=strength_for("ragged_vocab"), seed=3, steps=3)
    written = write(fault, tmp_path / "made.json.gz").read_bytes()
    page = open_page(path=LLAMA)
    page.locator(f"#tab-{view}").click()
    settled(page)
    drop(page, name, written if name.endswith("gz") else gzip.decompress(written))
    until(page, "/Ragged sizes/.test(document.querySelector('#run-says')?.textContent)")
    assert page.locator("#run-example").count() == 0
    assert not page.evaluate("document.querySelector('#config-dialog').open")
    drop(page, "train.log", b"nothing")  # on the header, of a page that shows another run
    until(page, "document.querySelector('#banner').textContent.length > 10")


def test_a_log_dropped_on_shape_is_diagnosed(open_page: Callable[..., Any], repo_dir: Path) -> None:
    page = open_page()
    settled(page)
    drop(page, "train.log", (repo_dir / "examples" / "llama-3-8b" / "train.log").read_bytes())
    until(page, "document.querySelector('#run-says')?.textContent && !document.querySelector('#run-example')")
    assert page.evaluate("document.body.dataset.view") == "diagnose"
    assert page.evaluate("document.querySelector('#run-file').files[0].name") == "train.log"


def test_a_figure_that_meets_two_widths_before_it_is_asked_for_is_drawn(open_page: Callable[..., Any]) -> None:
    page = open_page()
    settled(page)
    for width in (1300, 1200):
        page.set_viewport_size({"width": width, "height": 700})
        page.wait_for_timeout(200)
    page.get_by_text("Roofline").first.scroll_into_view_if_needed()
    until(page, "[...document.querySelectorAll('.vega')].some((e) => e.querySelector('svg'))")
    assert "could not be drawn" not in page.locator("body").inner_text()


def test_a_drag_moves_everything_and_nothing_jumps(open_page: Callable[..., Any]) -> None:
    page = open_page()
    settled(page)
    plot = page.locator("[data-field=ffn_hidden_size] .plot")
    plot.scroll_into_view_if_needed()
    before = page.locator("#step-time").inner_text()
    places = """[...document.querySelectorAll('.card')].map((e) => e.getBoundingClientRect())
        .map((b) => [b.x, b.y, b.width, b.height].map(Math.round).join()).join(';')"""
    laid_out = page.evaluate(places)
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    page.mouse.down()
    for step in range(12):
        page.mouse.move(box["x"] + box["width"] * (0.5 + step / 40), box["y"] + 30)
        assert page.evaluate(places) == laid_out
    page.mouse.up()
    settled(page)
    assert page.evaluate(places) == laid_out
    assert page.locator("#step-time").inner_text() != before
    assert int(page.locator("#field-ffn_hidden_size").input_value()) > 14336
    page.locator("#undo").click()  # one drag is one step back
    settled(page)
    assert page.locator("#step-time").inner_text() == before
    page.locator("#redo").click()
    settled(page)
    assert page.locator("#step-time").inner_text() != before
    page.keyboard.press("Control+z")
    settled(page)
    assert page.locator("#step-time").inner_text() == before


def test_the_keyboard_alone_is_enough(open_page: Callable[..., Any]) -> None:
    page = open_page()
    slider = page.locator("[data-field=num_heads] input[type=range]")
    slider.focus()
    before = page.locator("#field-num_heads").input_value()
    page.keyboard.press("ArrowRight")
    settled(page)
    assert page.locator("#field-num_heads").input_value() != before
    assert slider.get_attribute("aria-valuetext")
    number = page.locator("#field-ffn_hidden_size")
    number.focus()
    page.keyboard.press("PageUp")
    settled(page)
    assert int(number.input_value()) > 14336  # a number stepped by its keys shows where it is
    page.keyboard.press("Control+z")
    settled(page)
    assert number.input_value() == "14336"
    number.fill("15000")
    page.keyboard.press("Control+z")  # of what is being typed: the shape stays
    assert number.input_value() == "14336"
    page.locator("[data-field=ffn_hidden_size] .term").focus()
    assert "FLOPs" in page.locator("#tip").inner_text()
    page.locator("#tab-shape").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#tab-compare").get_attribute("aria-selected") == "true"


def test_better_values_can_be_clicked(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#ask-model").select_option(label="GPT-2 XL (1.5B)") if page.locator(
        "#ask-model option", has_text="GPT-2 XL (1.5B)"
    ).count() else page.evaluate("0")
    page.locator("#ask-framework").select_option("torchtitan")  # which does not pad a vocabulary
    set_number(page, "vocab_size", 100_001)
    chip = page.locator("[data-field=vocab_size] .offers .chip").last
    assert " parameters" in chip.inner_text()
    until(
        page,
        "/, (clean|\\d+ findings?)$/.test(document.querySelector('[data-field=vocab_size] .offers .chip').textContent)",
    )
    chip.click()
    settled(page)
    assert int(page.locator("#field-vocab_size").input_value()) % 8 == 0


def test_the_advised_shapes_stand_side_by_side_are_applied_and_undone_by_name(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#ask-model").select_option("Pythia 2.8B")
    until(page, "document.querySelectorAll('.offer').length === 2")
    assert page.locator("#promise").inner_text().endswith("× faster at the same size, trained with megatron")
    page.locator("#apply-one").click()
    settled(page)
    one = page.locator(".field.changed").count()
    assert one >= 1
    assert page.locator("#apply-one").count() == 0  # what is set is not offered again
    page.locator("#apply-best").click()
    settled(page)
    assert page.locator(".field.changed").count() > one
    assert page.locator("#apply-best-done").inner_text() == "Applied"
    page.locator("#undo").click()
    settled(page)
    assert page.locator(".field.changed").count() == one
    page.locator("#reset").click()
    settled(page)
    assert page.locator(".field.changed").count() == 0


def test_a_shape_that_nothing_surely_betters_is_well_cut(open_page: Callable[..., Any]) -> None:
    page = open_page()
    until(page, "/Well cut/.test(document.querySelector('#promise').textContent)")
    assert "of the same size none is surely faster" in page.locator("#promise-under").inner_text()


def test_the_page_opens_on_its_promise_and_the_headline_follows_apply(
    open_page: Callable[..., Any], server: Any, screenshots: Path
) -> None:
    page = open_page(path=OPENING)
    page.wait_for_selector("#apply-best")
    page.screenshot(path=screenshots / "opening.png")
    asked = {"model": "GPT-3 2.7B", "gpus": ["a100_sxm"], "framework": "torchtitan"}
    gain = server.post("/api/advise", asked).json()["candidates"][0]["efficiency_gain"]
    assert gain > 1.05
    assert page.locator("#promise").inner_text() == f"{gain:.2f}\u00d7 faster at the same size, trained with torchtitan"
    assert page.locator("#fit").get_attribute("class") != "wrong"
    assert page.locator("#apply-one").count() == 1
    page.locator("#apply-best").click()
    until(page, "/own sizes/.test(document.querySelector('#promise').textContent)")
    assert (
        page.locator("#promise").inner_text()
        == f"{gain:.2f}\u00d7 faster than the model's own sizes, trained with torchtitan"
    )
    assert page.locator(".ticker .delta").text_content() == f"{gain:.2f}\u00d7"
    assert page.locator("#apply-one").count() == 0  # its change is one of those applied
    page.emulate_media(media="print")
    assert page.locator(".offer button, input[type=range]").filter(visible=True).count() == 0
    page.emulate_media(media="screen")
    page.locator("#undo-apply-best").click()
    until(page, "/same size/.test(document.querySelector('#promise').textContent)")
    page.locator("#apply-best").click()
    until(page, "/own sizes/.test(document.querySelector('#promise').textContent)")
    page.go_back()
    until(page, "/same size/.test(document.querySelector('#promise').textContent)")


def test_a_chip_that_cannot_be_built_is_said_first_in_every_view(open_page: Callable[..., Any], repo_dir: Path) -> None:
    chip = (
        (repo_dir / "examples" / "my_chip.toml").read_text().replace("num_tensor_cores = 16", "num_tensor_cores = 160")
    )
    page = open_page(path=link(q={"gpu_toml": chip, "framework": None}))
    for view in ("shape", "design", "diagnose"):
        page.locator(f"#tab-{view}").click()
        until(page, f"document.body.dataset.view === '{view}'")
        assert "my_chip cannot be built: " in page.locator("#warnings").inner_text()
    page.locator("#tab-shape").click()
    page.locator("#ask-gpu").select_option("h100_sxm")
    settled(page)
    until(page, "document.querySelector('#warnings').textContent === ''", 180)


def test_a_file_with_a_fault_is_refused_in_its_dialog_at_its_line(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#ask-gpu").select_option("own")
    until(page, "document.querySelector('#device-text').value.includes('num_sms = 132')")
    sheet = page.locator("#device-text").input_value()
    page.locator("#device-text").fill(sheet.replace("num_sms = 132", "num_sms = -132"))
    page.locator("#device-use").click()
    until(page, "document.querySelector('#device-dialog [role=alert]').textContent.includes('num_sms=-132')")
    assert page.evaluate("document.querySelector('#device-dialog').open")
    chosen = "(() => { const a = document.activeElement; return a.value.slice(a.selectionStart, a.selectionEnd); })()"
    assert page.evaluate(chosen).startswith("num_sms = -132")
    assert page.locator("#banner").inner_text() == ""
    page.locator("#device-text").fill(sheet.replace('name = "h100_sxm"', 'name = "mine"'))
    page.locator("#device-use").click()
    until(page, "!document.querySelector('#device-dialog').open")


def test_devices_are_found_by_words_and_stand_under_their_vendor(open_page: Callable[..., Any]) -> None:
    page = open_page()
    assert page.locator("#ask-gpu optgroup[label=AMD] option").count() > 5
    page.get_by_label("search devices").click()
    page.locator("#pick-gpu-search").fill("amd mi300x")
    assert page.locator(".picker[open] h3").all_inner_texts() == ["AMD"]
    page.locator("#pick-gpu-search").press("Enter")
    settled(page)
    assert page.locator("#ask-gpu").input_value() == "mi300x"


def test_scenarios_stand_side_by_side_and_the_link_brings_all_back(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#tab-compare").click()
    page.locator("#save-scenario").click()
    page.locator("#ask-model").select_option("Pythia 2.8B")
    until(page, "document.querySelectorAll('[aria-label=Scenarios] tbody tr').length === 2")
    rows = page.locator("[aria-label=Scenarios] tbody tr").all_inner_texts()
    assert "Pythia 2.8B" in rows[0]
    assert "Llama 3.1 8B on h100_sxm" in rows[1]
    page.wait_for_timeout(400)
    page.reload()
    until(page, "document.querySelectorAll('[aria-label=Scenarios] tbody tr').length === 2")
    page.locator("[aria-label=Scenarios] button", has_text="open").click()
    settled(page)
    assert page.locator("#headline").inner_text().startswith("A training step of Llama 3.1 8B")


def test_a_deployment_is_answered_at_the_first_look_and_again_for_another_load(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#tab-deploy").click()
    until(page, "document.querySelector('#deploy-headline')")
    before = page.locator("#deploy-headline").inner_text()
    assert "vllm serve" in page.locator(".results pre").inner_text()
    page.locator("#deploy-requests_per_s").fill("200")
    page.locator("#run-deploy").click()
    until(page, f"document.querySelector('#deploy-headline').innerText !== {json.dumps(before)}")
    page.locator("#deploy-tpot_s").fill("-1")
    page.locator("#run-deploy").click()
    until(page, "document.querySelector('#deploy-tpot_s').getAttribute('aria-invalid') === 'true'")


def test_the_first_sentence_has_a_noun_beside_each_number(open_page: Callable[..., Any]) -> None:
    page = open_page()
    said = page.locator("#headline").inner_text()
    assert said.startswith("A training step of Llama 3.1 8B on 8 x h100_sxm takes ")
    assert "(80%: " in said
    assert "It fits with framework=megatron (" in said  # and not with torchtitan
    held = page.locator(".story .stackbar").last.get_attribute("aria-label")
    assert "weights" in held
    assert "activations" in held


def test_the_total_stays_in_sight_on_a_phone_while_a_slider_moves(open_page: Callable[..., Any]) -> None:
    page = open_page(size="360")
    settled(page)
    page.locator("[data-field=ffn_hidden_size] input[type=range]").scroll_into_view_if_needed()
    box = page.locator(".ticker").bounding_box()
    assert 0 <= box["y"] <= 40
    assert page.locator("#step-time").inner_text() in page.locator(".ticker").inner_text()


def test_a_curve_is_read_off_where_the_hand_points_and_every_chip_says_the_gain(
    open_page: Callable[..., Any],
) -> None:
    page = open_page()
    plot = page.locator("[data-field=hidden_size] .plot")
    assert page.locator("[data-field=hidden_size] .readout").text_content().startswith("4,096: ")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.8 * box["width"], box["y"] + 40)
    assert "at equal work" in page.locator("[data-field=hidden_size] .readout").text_content()
    assert page.locator("[data-field=hidden_size] .cross").count() == 1
    chips = page.locator(".offers .chip b").all()
    assert chips
    for chip in chips:
        assert float(chip.inner_text().removesuffix("\u00d7")) >= 1


def test_an_invalid_value_is_taken_back_where_it_is_said(open_page: Callable[..., Any]) -> None:
    page = open_page()
    before = page.locator("#step-time").inner_text()
    set_number(page, "num_heads", 30)
    page.locator("#banner button", has_text="Undo num_heads = 30").click()
    settled(page)
    assert page.locator("#field-num_heads").input_value() == "32"
    assert page.locator("#step-time").inner_text() == before
    assert page.locator("#banner").inner_text() == ""


def test_errors_stand_at_their_field_with_the_sentence_of_the_command_line(open_page: Callable[..., Any]) -> None:
    page = open_page()
    set_number(page, "num_heads", 30)
    said = page.locator("#banner").inner_text()
    assert said.startswith("num_heads=30: must divide hidden_size=4096")
    assert page.locator("#field-num_heads").get_attribute("aria-invalid") == "true"
    set_number(page, "num_heads", 32)
    assert page.locator("#banner").inner_text() == ""
    assert page.locator("#field-num_heads").get_attribute("aria-invalid") == "false"
    page.locator("#ask-seq_len").fill("-5")
    page.locator("#ask-seq_len").press("Enter")
    until(page, "document.querySelector('#banner').textContent.includes('seq_len=-5')")
    assert page.locator("#ask-seq_len").get_attribute("aria-invalid") == "true"


def test_the_shape_view_takes_fixed_values_of_the_plan_and_a_link_keeps_them(
    open_page: Callable[..., Any], server: Any
) -> None:
    page = open_page()
    page.locator("#ask-fix").fill("recompute=full, tp_overlap=on")
    page.locator("#ask-fix").press("Enter")
    settled(page)
    fixed = server.post(
        "/api/estimate", {"model": "llama-3.1-8b", "fix": {"recompute": "full", "tp_overlap": "on"}}
    ).json()
    shown = page.locator("#step-time").inner_text()
    assert float(shown.split()[0]) == pytest.approx(fixed["totals"]["time_s"], rel=5e-3)
    page.locator("#link").click()
    until(page, "document.querySelector('#status').textContent.toLowerCase().includes('link')")
    again = open_page(path=page.evaluate("location.pathname + location.hash"))
    settled(again)
    assert again.locator("#ask-fix").input_value() == "recompute=full, tp_overlap=on"
    assert again.locator("#step-time").inner_text() == shown
    page.locator("#ask-fix").fill("recompute=half")
    page.locator("#ask-fix").press("Enter")
    until(page, "document.querySelector('#banner').textContent.includes('recompute=half')")
    assert page.locator("#ask-fix").get_attribute("aria-invalid") == "true"


def test_a_link_brings_everything_back(open_page: Callable[..., Any], pythia: dict[str, Any]) -> None:
    page = open_page()
    page.locator("#open-config").click()
    page.locator("#config-text").fill(json.dumps(pythia))
    use(page, "config")
    set_number(page, "num_heads", 20)
    page.locator("#link").click()
    until(page, "document.querySelector('#status').textContent.toLowerCase().includes('link')")
    shown = page.locator("#step-time").inner_text()
    path = page.evaluate("location.pathname + location.hash")
    again = open_page(path=path)
    settled(again)
    assert again.locator("#field-num_heads").input_value() == "20"
    assert again.locator("#step-time").inner_text() == shown


def test_a_link_that_is_damaged_is_a_sentence_not_a_blank_page(open_page: Callable[..., Any]) -> None:
    page = open_page(path="/#s=nonsense!!")
    until(page, "document.querySelector('#banner').textContent.includes('could not be read')")
    settled(page)
    assert page.locator("#field-hidden_size").input_value()


def test_downloads_are_the_config_the_report_and_the_json(
    open_page: Callable[..., Any], pythia: dict[str, Any]
) -> None:
    page = open_page()
    page.locator("#open-config").click()
    page.locator("#config-text").fill(json.dumps(pythia))
    use(page, "config")
    set_number(page, "num_heads", 20)
    for button, check in (
        ("#get-config", lambda text: json.loads(text)["num_attention_heads"] == 20),
        ("#get-json", lambda text: json.loads(text)["schema"] == "sartor/estimate/1"),
        ("#get-lint", lambda text: json.loads(text)["schema"] == "sartor/lint/1"),
        ("#get-report", lambda text: text.startswith("<!doctype html>")),
    ):
        page.locator("#downloads").click()
        with page.expect_download(timeout=60_000) as waiting:
            page.locator(button).click()
        assert check(Path(waiting.value.path()).read_text())
        if page.locator("details.menu[open]").count():
            page.locator("#downloads").click()


def test_two_tabs_do_not_disturb_each_other(open_page: Callable[..., Any]) -> None:
    one, two = open_page(), open_page()
    set_number(one, "num_layers", 20)
    set_number(two, "num_layers", 40)
    set_number(one, "vocab_size", 64000)
    assert one.locator("#field-num_layers").input_value() == "20"
    assert two.locator("#field-num_layers").input_value() == "40"
    assert two.locator("#field-vocab_size").input_value() == "128256"


def test_shapes_are_compared_on_several_devices(open_page: Callable[..., Any], screenshots: Path) -> None:
    page = open_page()
    set_number(page, "num_layers", 30)
    page.locator("#pin").click()
    page.locator("#tab-compare").click()
    page.locator("#add-gpu").select_option("a100_sxm")
    page.locator("#advised").click()
    until(page, "document.querySelectorAll('.stack > section:nth-child(2) tbody tr').length >= 2", 60)
    settled(page)
    until(page, "document.querySelectorAll('.results .card').length === 2")
    assert page.locator(".odds").count() >= 2
    page.screenshot(path=screenshots / "compare-1280-light.png", full_page=True)


def test_a_plan_is_made_and_its_launch_files_are_downloaded(open_page: Callable[..., Any], screenshots: Path) -> None:
    page = open_page()
    page.locator("#tab-plan").click()
    planned(page)
    assert "pp 4" in page.locator("#plan-headline").inner_text()
    page.locator("#get-launch").click()
    page.wait_for_selector("[data-file]")
    with page.expect_download() as waiting:
        page.locator("[data-file]").first.click()
    assert "--pipeline-model-parallel-size 4" in Path(waiting.value.path()).read_text()
    page.screenshot(path=screenshots / "plan-1280-light.png", full_page=True)
    page.locator("#plan-fix").fill("tp=6")
    page.locator("#plan-fix").press("Enter")
    page.locator("#run-plan").click()
    until(page, "document.querySelector('#banner').textContent.includes('tp=6')")
    assert page.locator("#plan-fix").get_attribute("aria-invalid") == "true"


MARK = ".vega [role=graphics-symbol][aria-roledescription=point]"
"""A point of a figure."""


def test_plans_are_clicked_compared_with_the_best_and_still_there_after_a_reload(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#tab-plan").click()
    page.locator("#run-plan").click()
    until(page, f"document.querySelectorAll('{MARK}').length > 2", 60)
    settled(page)
    page.locator(".row-plan").nth(1).click()
    beside = page.locator(".beside")
    assert page.locator(".row-plan").nth(1).inner_text() in beside.locator("thead").inner_text()
    assert beside.locator("tbody tr").first.inner_text().startswith("step")
    page.locator("#why-not").fill("tp=8, pp=2")
    page.locator("#ask-why").click()
    until(page, "/tp 8 pp 2/.test(document.querySelector('.beside').textContent)")
    page.locator("#why-not").fill("tp=7")
    page.locator("#ask-why").click()
    until(page, "/tp/.test(document.querySelector('.beside .wrong')?.textContent ?? '')")
    page.locator(MARK).nth(2).dispatch_event("click")
    until(page, "document.querySelector('.beside tbody tr')")
    clicked = beside.inner_text()
    page.locator(".vega").first.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.locator("#tip").inner_text() == page.locator(MARK).nth(2).get_attribute("aria-label")
    page.locator(".row-plan").nth(1).click()
    page.locator(MARK).nth(2).focus()
    page.keyboard.press("Enter")
    until(page, f"document.querySelector('.beside').innerText === {json.dumps(clicked)}")
    page.wait_for_timeout(400)  # the address follows within a quarter of a second
    page.reload()
    page.wait_for_selector("#plan-headline")
    page.go_back()
    until(page, "document.body.dataset.view === 'shape'")
    page.go_forward()
    until(page, "document.body.dataset.view === 'plan' && document.querySelector('#plan-headline')")


def test_an_address_that_comes_late_never_takes_the_place_gone_back_to(open_page: Callable[..., Any]) -> None:
    page = open_page(path=OPENING)
    page.evaluate(
        "() => { const quick = Response.prototype.arrayBuffer;"
        " Response.prototype.arrayBuffer = async function () {"
        " await new Promise((done) => setTimeout(done, 700)); return quick.call(this); }; }"
    )
    page.locator("#tab-plan").click()
    until(page, "location.hash")
    page.locator("#plan-fix").fill("pp=4")
    page.locator("#plan-fix").press("Enter")
    page.wait_for_timeout(400)  # its address is on its way now
    page.go_back()
    until(page, "document.body.dataset.view === 'shape'")
    page.wait_for_timeout(1000)
    assert page.evaluate("() => location.hash") == ""
    page.go_forward()
    until(page, "document.body.dataset.view === 'plan'")
    page.go_back()
    until(page, "document.body.dataset.view === 'shape'")


def test_what_was_asked_of_a_plan_stays_when_its_figures_come_late(open_page: Callable[..., Any]) -> None:
    page, held = open_page(), []
    page.route("**/api/plan/figures", lambda route: held.append(route))
    page.locator("#tab-plan").click()
    planned(page)
    page.locator("#get-launch").click()
    page.wait_for_selector("[data-file]")
    assert page.locator(".zoomed").count() == 0
    for route in held:
        route.continue_()
    until(page, "document.querySelector('.zoomed rect')", 60)
    assert page.locator("[data-file]").count()


def test_the_step_in_time_is_zoomed_moved_and_downloaded_for_perfetto(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#tab-plan").click()
    planned(page)
    until(page, "document.querySelector('.zoomed rect')", 60)
    shown, drawn = page.locator(".zoomed"), page.locator(".zoomed rect")
    page.evaluate("document.querySelector('.zoomed').scrollIntoView({block: 'center'})")
    all_of_it, window = drawn.count(), page.locator("output")
    for _ in range(5):
        page.locator("button[aria-label='zoom in']").click()
    until(page, f"document.querySelectorAll('.zoomed rect').length < {all_of_it} / 5")
    assert page.locator(".zoomed text.inbar").count()  # microbatches by number, once there is room
    place, before = shown.bounding_box(), window.inner_text()
    page.mouse.move(place["x"] + 600, place["y"] + 30)
    page.mouse.down()
    page.mouse.move(place["x"] + 400, place["y"] + 30, steps=3)
    page.mouse.up()
    until(page, f"document.querySelector('output').textContent !== {json.dumps(before)}")
    before = window.inner_text()
    page.mouse.wheel(0, 40)  # the wheel alone scrolls the page
    page.wait_for_timeout(100)
    assert window.inner_text() == before
    shown.focus()
    page.keyboard.press("0")
    until(page, "document.querySelector('output').textContent === ''")
    with page.expect_download() as waiting:
        page.locator("#get-trace").click()
    events = json.loads(Path(waiting.value.path()).read_text())["traceEvents"]
    assert sum(event["ph"] == "X" for event in events) >= all_of_it


def test_a_search_shows_how_long_it_takes_is_cancelled_and_no_drag_waits_for_it(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#ask-model").select_option("Llama 3.1 405B")
    settled(page)
    slowed(page)
    page.locator("#tab-plan").click()
    page.locator("#plan-num_devices").fill("512, 768, 1024, 1536, 2048, 3072, 4096, 6144")
    page.locator("#run-plan").click()
    until(page, "/[0-9.]+ s/.test(document.querySelector('.working')?.textContent ?? '')")
    page.locator("#tab-shape").click()
    before = page.locator("#step-time").inner_text()
    set_number(page, "num_layers", 100)
    assert page.locator("#step-time").inner_text() != before  # answered while the search still runs
    page.locator("#tab-plan").click()
    assert page.locator(".working .cancel").count() == 1
    page.locator(".working .cancel").click()
    until(page, "!document.querySelector('.working')")
    assert "Cancelled" in page.locator("#status").inner_text()


def test_of_several_numbers_of_devices_each_is_shown_as_it_comes_and_kept_by_cancel(
    open_page: Callable[..., Any],
) -> None:
    page = open_page()
    page.locator("#ask-model").select_option("Llama 3.1 405B")
    settled(page)
    slowed(page)
    page.locator("#tab-plan").click()
    page.locator("#plan-num_devices").fill("1024, 2048, 4096")
    page.locator("#plan-num_devices").press("Enter")
    until(page, "/2 of 3 numbers of devices/.test(document.querySelector('.working')?.textContent ?? '')", 60)
    assert page.locator("#plan-headline").count() == 1
    page.locator(".working .cancel").click()
    until(page, "/Cancelled after [12] of 3/.test(document.querySelector('#status').textContent)")
    assert page.locator("#plan-headline").count() == 1
    page.locator("#plan-num_devices").fill("8, 16")
    page.locator("#ask-model").select_option("Llama 3.1 8B")
    page.locator("#run-plan").click()
    until(page, "document.querySelector('.vega svg') && !document.querySelector('.working')", 60)
    rows = page.locator("table", has_text="device seconds a step").locator("tbody tr")
    assert [row.split("\t")[0] for row in rows.all_inner_texts()] == ["8", "16"]


def test_what_does_not_fit_says_what_would(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#ask-model").select_option("Llama 3.1 405B")
    page.locator("#tab-plan").click()
    page.locator("#plan-num_devices").fill("8")
    page.locator("#plan-global_batch_size").fill("8")
    page.locator("#run-plan").click()
    page.wait_for_selector("text=Nothing fits", timeout=60_000)
    assert page.locator(".bars.why li").count() > 2


def test_a_device_and_a_cluster_of_ones_own_are_used(open_page: Callable[..., Any]) -> None:
    page = open_page()
    before = page.locator("#step-time").inner_text()
    page.locator("#ask-gpu").select_option("own")
    until(page, "document.querySelector('#device-text').value.includes('num_sms = 132')")
    sheet = page.locator("#device-text").input_value()
    slow = sheet.replace('name = "h100_sxm"', 'name = "mine"').replace("hbm_gb_per_s = 3350", "hbm_gb_per_s = 1500")
    page.locator("#device-text").fill(slow)
    use(page, "device")
    assert page.locator("#step-time").inner_text() != before
    assert page.evaluate("document.querySelector('#ask-gpu').selectedOptions[0].textContent") == "mine (own)"
    page.locator("#tab-compare").click()
    until(page, "document.querySelector('.results h2')?.textContent.startsWith('mine')")
    page.locator("#tab-plan").click()
    page.locator("#plan-cluster").select_option("own")
    until(page, "document.querySelector('#cluster-text').value.includes('devices_per_node')")
    page.locator("#cluster-text").fill("devices_per_node = 8")
    page.locator("#cluster-use").click()
    until(page, "document.querySelector('#cluster-dialog [role=alert]').textContent.startsWith('gpu=missing')")


def test_nothing_shifts_while_the_page_comes_up_nor_while_a_size_is_dragged(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.evaluate(
        """() => { window.shifted = 0; new PerformanceObserver((list) => {
          for (const entry of list.getEntries()) window.shifted += entry.value;
        }).observe({type: 'layout-shift', buffered: true}); }"""
    )
    settled(page)
    plot = page.locator("[data-field=hidden_size] .plot")
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 30)
    page.mouse.down()
    for step in range(10):
        page.mouse.move(box["x"] + box["width"] * (0.5 + step / 30), box["y"] + 30)
        page.wait_for_timeout(50)
    page.mouse.up()
    settled(page)
    assert page.evaluate("window.shifted") < 0.01  # "good" is below 0.1 (web.dev/cls)


def test_a_study_is_loaded_and_drawn(open_page: Callable[..., Any], screenshots: Path, tmp_path: Path) -> None:
    run_design(question(), small_space(), study=tmp_path / "study.db")
    page = open_page()
    page.locator("#tab-design").click()
    until(
        page, "document.querySelector('.stack h2')?.textContent.startsWith('Example, ')"
    )  # an answer at the first look
    page.locator("#study-file").set_input_files(tmp_path / "study.db")
    until(page, "document.querySelector('.stack h2').textContent === 'Study: small (seq 128) on 8 devices'")
    assert "complete" in page.locator("#study-says").inner_text()
    until(page, "document.querySelectorAll('.results svg').length >= 3")
    page.screenshot(path=screenshots / "design-1280-light.png", full_page=True)
    assert page.locator("#design-num_devices").input_value() == "8"
    assert page.locator("#design-global_batch_size").input_value() == "32"
    said = page.locator("#study-says").inner_text()
    page.wait_for_timeout(400)
    page.reload()
    until(
        page, f"document.querySelector('#study-says')?.textContent === {json.dumps(said)}"
    )  # this browser has kept it
    page.locator("#study-file").set_input_files({"name": "x.db", "mimeType": "", "buffer": b"nothing"})
    until(page, "document.querySelector('#banner').textContent.startsWith('study=')")


@pytest.mark.parametrize("evaluated", [0, 1])
def test_an_unfinished_study_says_so_and_how_far_it_came(
    open_page: Callable[..., Any], tmp_path: Path, evaluated: int
) -> None:
    def stop(progress: Any) -> None:
        if progress.evaluated == evaluated:
            raise KeyboardInterrupt

    run_design(question(), small_space(), study=tmp_path / "study.db", on_progress=stop)
    page = open_page()
    page.locator("#tab-design").click()
    page.locator("#study-file").set_input_files(tmp_path / "study.db")
    points = "1 point" if evaluated else "0 points"
    until(page, f"document.querySelector('#study-says').textContent.includes('interrupted; {points} evaluated')")
    assert page.locator("#design-num_devices").input_value() == "8"
    assert ("ended before a point was evaluated" in page.locator(".results").inner_text()) == (not evaluated)
    assert ("proved" in page.locator("footer").inner_text()) == bool(evaluated)  # the first point met its bound


def test_a_search_for_a_chip_is_started_cancelled_and_still_there_after_a_reload_and_in_another_tab(
    open_page: Callable[..., Any],
) -> None:
    page = open_page()
    page.locator("#tab-design").click()
    page.locator("#design-num_devices").fill("0")
    page.locator("#run-design").click()
    until(page, "document.querySelector('#banner').textContent.startsWith('num_devices=0')")
    assert page.locator("#design-num_devices").get_attribute("aria-invalid") == "true"
    page.locator("#design-num_devices").fill("64")
    page.locator("#run-design").click()
    until(page, "document.querySelector('#stop-design')", 60)
    assert "on 64 devices" in page.locator("#study-says").inner_text()
    page.wait_for_timeout(400)
    other = page.context.new_page()
    other.goto(page.url)
    until(other, "document.querySelector('#stop-design, #get-study')")
    page.reload()
    until(page, "document.querySelector('#stop-design, #get-study')")
    if page.locator("#stop-design").count():
        page.locator("#stop-design").click()
    until(page, "document.querySelector('#get-study')", 60)
    until(other, "document.querySelector('#get-study')", 60)
    page.locator("#tab-shape").click()
    page.go_back()
    until(page, "document.body.dataset.view === 'design' && document.querySelector('#get-study')")


def test_a_trace_is_diagnosed_and_drawn(open_page: Callable[..., Any], screenshots: Path, tmp_path: Path) -> None:
    fault = Made(fault="ragged_vocab", strength=strength_for("ragged_vocab"), seed=3, steps=3)
    page = open_page()
    page.locator("#tab-diagnose").click()
    page.wait_for_selector("#run-example")  # an answer at the first look
    page.locator("#run-file").set_input_files(write(fault, tmp_path / "rank0.json.gz"))
    until(page, "!document.querySelector('#run-example')")
    assert "Ragged sizes" in page.locator("#run-says").inner_text()
    page.locator(".zoomed").first.focus()
    page.keyboard.press("ArrowDown")
    assert "kernels, the longest" in page.locator(".detail").first.inner_text()
    until(page, "document.querySelectorAll('.results svg').length >= 3")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.screenshot(path=screenshots / "diagnose-1280-light.png", full_page=True)
    page.wait_for_timeout(400)
    page.reload()
    page.wait_for_selector("#run-says")
    page.locator("#run-file").set_input_files({"name": "x.log", "mimeType": "", "buffer": b"nothing"})
    until(page, "document.querySelector('#banner').textContent.length > 10")


def test_a_server_that_is_restarted_under_the_page_is_waited_for_and_said(
    open_page: Callable[..., Any], start: Callable[..., Any]
) -> None:
    first = start()
    page = open_page(at=first.url)
    port = first.url.rpartition(":")[2]
    os.kill(first.pid, signal.SIGKILL)
    page.locator("#field-num_layers").fill("40")
    page.locator("#field-num_layers").press("Enter")
    until(page, "/cannot be reached/.test(document.querySelector('#banner').textContent)")
    before = page.locator("#step-time").inner_text()
    start("--port", port)
    until(page, "/restarted/.test(document.querySelector('#status').textContent)")
    until(page, f"document.querySelector('#step-time').textContent !== {json.dumps(before)}")
    assert page.locator("#banner").inner_text() == ""


def test_terms_explain_themselves_with_their_formula(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("[data-field=vocab_size] .term").hover()
    assert "Vocabulary" in page.locator("#tip").inner_text()
    page.keyboard.press("Escape")
    assert page.locator("#tip").is_hidden()
    page.locator(".facts .term", has_text="MFU").focus()
    undefined = page.evaluate(
        """async () => { const { TERMS } = await import('/terms.js');
        const bare = Object.entries(TERMS).filter(([, [, , formula]]) => !formula).map(([key]) => key);
        const shown = [...document.querySelectorAll('[data-term]')].map(e => e.dataset.term);
        return shown.filter(t => !TERMS[t]).concat(bare) }"""
    )
    assert undefined == []  # every word that explains itself has its formula


@pytest.mark.parametrize("size", SIZES)
def test_it_fits_a_phone_and_a_wall_by_day_and_by_night(
    open_page: Callable[..., Any], screenshots: Path, size: str
) -> None:
    page = open_page(size=size)
    for view in ("shape", "compare", "plan", "deploy", "design", "diagnose"):
        page.locator(f"#tab-{view}").click()
        settled(page)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), view
    page.locator("#tab-shape").click()
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme)
        ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
        red = int(ground.split("(")[1].split(",")[0])
        assert (red < 80) == (scheme == "dark")
        page.screenshot(path=screenshots / f"shape-{size}-{scheme}.png", full_page=size == "360")


def test_the_theme_is_kept(open_page: Callable[..., Any]) -> None:
    page = open_page()
    page.locator("#theme").click()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    page.wait_for_selector("#step-time")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_axe_finds_nothing_to_complain_of_in_any_view(open_page: Callable[..., Any], tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.base", reason="axe-playwright-python is not installed")
    run_design(question(), small_space(), study=tmp_path / "study.db")
    trace = write(Made(fault="", seed=3, steps=3), tmp_path / "rank0.json.gz")
    page = open_page()
    page.evaluate(axe.AXE_SCRIPT)
    found = []

    def look(view: str, *, there: str, act: Callable[[], Any]) -> None:
        page.locator(f"#tab-{view}").click()
        act()
        page.wait_for_selector(there)
        settled(page)
        page.emulate_media(color_scheme="dark")  # what has no colour is the same by night
        by_night = page.evaluate("() => axe.run({ runOnly: ['color-contrast'] }).then(all => all.violations)")
        page.emulate_media(color_scheme="light")
        for fault in by_night + page.evaluate("() => axe.run().then(all => all.violations)"):
            found.append((view, fault["id"], [node["html"][:120] for node in fault["nodes"][:3]]))

    def drawn() -> None:
        planned(page)
        until(page, "document.querySelector('.zoomed rect')", 60)

    look("shape", there="#step-time", act=lambda: None)
    look("compare", there=".results table, .results svg", act=lambda: None)
    look("plan", there="#plan-headline", act=drawn)
    look("deploy", there="#deploy-headline", act=lambda: None)
    look(
        "design",
        there="#study-best",
        act=lambda: page.locator("#study-file").set_input_files(tmp_path / "study.db"),
    )
    look("diagnose", there="#run-says", act=lambda: page.locator("#run-file").set_input_files(trace))
    assert not found


SAMPLE = ("GPT-3 2.7B", "DeepSeek-V3 671B", "Qwen3 32B", "T5 large", "Falcon 7B")
"""One model of each structure."""


@pytest.mark.parametrize("name", SAMPLE)
def test_a_zoo_model_is_loaded_dragged_advised_and_planned(open_page: Callable[..., Any], name: str) -> None:
    walk(open_page(), name)


def test_every_zoo_model_is_loaded_dragged_advised_and_planned(open_page: Callable[..., Any], server: Any) -> None:
    if not LONG:
        pytest.skip("takes ten minutes: a part of `make long`")
    names = [entry["name"] for entry in server.get("/api/catalog/models").json()["entries"]]
    page, failed = open_page(), {}
    for name in names:
        if name in SAMPLE:
            continue
        try:
            walk(page, name)
        except Exception as error:
            failed[name] = str(error)[:200]
    assert not failed


def walk(page: Any, name: str) -> None:
    """Load a model, drag its feed-forward width, apply what is advised, plan it: nothing may be refused."""
    page.locator("#tab-shape").click()
    page.locator("#ask-model").select_option(name)
    until(page, f"document.querySelector('#headline').textContent.includes({json.dumps(name)})")
    settled(page)
    slider = page.locator("[data-field$=ffn_hidden_size] input[type=range]").first
    shown = page.locator("#params").inner_text()
    slider.evaluate("""(e) => { for (const k of [1, 2, 3]) {
        e.value = Number(e.value) + (e.max - e.value) / 3; e.dispatchEvent(new Event('input', {bubbles: true})); }
        e.dispatchEvent(new Event('change', {bubbles: true})); }""")
    settled(page)
    assert page.locator("#params").inner_text() != shown
    refused = "document.querySelector('#banner').textContent"
    assert page.evaluate(refused) == ""
    until(page, "!document.querySelector('.promise .working')", 60)
    for offer in ("#apply-best", "#apply-one"):
        if page.locator(offer).count():
            page.locator(offer).click()
            settled(page)
            assert page.evaluate(refused) == "", offer
            assert page.locator(f"{offer}-done").inner_text() == "Applied"
    page.locator("#tab-plan").click()
    slowed(page)
    page.locator("#run-plan").click()
    until(page, "document.querySelector('.waiting')", 30)
    until(page, "!document.querySelector('.waiting')", 120)
    assert page.evaluate(refused) == ""
    assert page.locator("#plan-headline, .bars.why").count()


def test_the_first_page_takes_less_than_250_kb(open_page: Callable[..., Any]) -> None:
    page = open_page()
    kinds = ("navigation", "resource")
    sizes = {
        entry["name"]: entry["encodedBodySize"]
        for kind in kinds
        for entry in page.evaluate(f"() => performance.getEntriesByType('{kind}').map((e) => e.toJSON())")
    }
    assert sum(sizes.values()) < 250_000


def test_the_page_weighs_less_than_a_megabyte(server: Any) -> None:
    from sartor.web.guard import Settings
    from sartor.web.server import pages

    found = pages(Settings())
    assert sum(len(page.data) for path, page in found.items() if path not in ("/", "/openapi.json")) < 1_000_000
    assert found["/vega-embed.js"].slow
    for path in found:
        assert server.get(path).status_code == 200
