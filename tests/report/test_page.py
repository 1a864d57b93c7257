"""The page: one offline file, escaped, deterministic, with everything the issue asks for in it."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from sartor.answers.advice import Advice
from sartor.report.advice_document import advice_page
from sartor.report.grid import element, json_block, markdown, text

HOSTILE = "</script><img src=x onerror=alert(1)>\u202e\x1b[31m{{7*7}}${7}"
VOID = {"meta", "link", "img", "br", "hr", "input"}


class Outline(HTMLParser):
    """What a page is made of: tags with their attributes, ids, and whether every element is closed."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.mismatches: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if not self.open or self.open.pop() != tag:
            self.mismatches.append(tag)


@pytest.fixture(scope="module")
def html(advice: Advice) -> str:
    return advice_page(advice, date="2026-11-21")


@pytest.fixture(scope="module")
def outline(html: str) -> Outline:
    found = Outline()
    found.feed(html)
    return found


def test_it_is_one_file_below_one_and_a_half_megabytes(html: str) -> None:
    assert len(html.encode()) < 1.5e6


def test_nothing_in_it_is_fetched_from_anywhere(html: str, outline: Outline) -> None:
    for tag, attributes in outline.tags:
        assert "src" not in attributes, tag
        assert tag not in {"link", "iframe", "img", "object", "embed", "base"}
        assert (attributes.get("href") or "#").startswith("#")
    policy = next(a["content"] for _, a in outline.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "http" not in policy
    assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", html.split("<script", 1)[0])


def test_the_javascript_libraries_are_there_once(outline: Outline, html: str) -> None:
    scripts = [a for tag, a in outline.tags if tag == "script"]
    assert Counter(a.get("type") for a in scripts) == {"application/json": 1, None: 2}
    assert html.count("window.vegaEmbed=") == 1


def test_every_element_is_closed_and_every_id_is_there_once(outline: Outline) -> None:
    assert not outline.open
    assert not outline.mismatches
    ids = [a["id"] for _, a in outline.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    links = {(a["href"] or "")[1:] for tag, a in outline.tags if tag == "a"}
    assert links <= set(ids)


def test_headings_go_down_one_level_at_a_time(outline: Outline) -> None:
    levels = [int(tag[1]) for tag, _ in outline.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))


def test_every_figure_has_its_place_its_caption_and_its_data(html: str, outline: Outline) -> None:
    specs = figures_of(html)
    places = {a["id"] for _, a in outline.tags if (a.get("class") or "") == "plot"}
    assert set(specs) == places
    assert {"figure-time_by_operator", "figure-roofline", "figure-candidates", "figure-sawtooth"} <= places
    assert Counter(tag for tag, _ in outline.tags)["figcaption"] == len(places)


def figures_of(html: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="figures">(.*?)</script>', html, re.DOTALL)
    assert found is not None
    specs: dict[str, Any] = json.loads(found[1])
    return specs


def test_the_same_answer_gives_the_same_bytes(advice: Advice, html: str) -> None:
    assert advice_page(advice, date="2026-11-21") == html


@pytest.mark.slow
def test_another_process_gives_the_same_bytes(html: str) -> None:
    code = (
        "import hashlib, sartor.api as api; from sartor.report.advice_document import advice_page; "
        "advice = api.advise('examples/gpt2/config.json', ['a100', 'h100'], framework='torchtitan'); "
        "print(hashlib.sha256(advice_page(advice, date='2026-11-21').encode()).hexdigest())"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert shown == [hashlib.sha256(html.encode()).hexdigest()]


def test_provenance_is_printed(advice: Advice, html: str) -> None:
    from sartor import __version__

    assert f"sartor {__version__}, 2026-11-21" in html
    for gpu in advice.gpus:
        assert all(str(text(document)) in html for document in gpu.sources.values())


def test_without_a_date_the_page_states_none(advice: Advice) -> None:
    from sartor import __version__

    assert f"Made by sartor {__version__}. Numbers are" in advice_page(advice)


def test_every_finding_assumption_and_candidate_is_on_the_page(advice: Advice, html: str) -> None:
    for finding in advice.findings:
        assert str(text(finding.message)) in html
    for line in (*advice.base.question.assumptions, *advice.search.assumptions):
        assert str(text(line)) in html
    assert html.count("smallest edit</span>") == 1
    assert html.count("least regret</span>") == 1


def test_hostile_names_stay_text(advice: Advice) -> None:
    question = advice.base.question
    reading = replace(question.reading, shape=replace(question.reading.shape, name=HOSTILE))
    graph = replace(
        advice.base.graph,
        operators=tuple(replace(op, name=f"{HOSTILE}{i}") for i, op in enumerate(advice.base.graph.operators)),
    )
    base = replace(
        advice.base,
        question=replace(question, reading=reading, assumptions=(HOSTILE,)),
        graph=graph,
        microbatch=replace(advice.base.microbatch, graph=graph),
    )
    findings = tuple(replace(f, message=HOSTILE) for f in advice.findings)
    hostile = advice_page(replace(advice, base=base, findings=findings))
    seen = Outline()
    seen.feed(hostile)
    assert not any(tag == "img" or "onerror" in attributes for tag, attributes in seen.tags)
    assert not seen.mismatches
    assert "\u202e" not in hostile
    assert "\x1b" not in hostile
    assert figures_of(hostile)


def test_text_is_escaped_once() -> None:
    assert element("p", "a < b & c", title='"x"') == '<p title="&quot;x&quot;">a &lt; b &amp; c</p>'
    assert element("p", element("b", "<")) == "<p><b>&lt;</b></p>"


def test_data_cannot_close_its_script() -> None:
    assert "</script><" not in json_block("x", {"a": "</script><b>"})[:-9]


def test_rule_pages_become_headings_paragraphs_and_lists() -> None:
    shown = markdown("## Fix\n\nPad `v` to **64**.\n\n- one\n- two")
    assert shown == ("<h4>Fix</h4><p>Pad <code>v</code> to <strong>64</strong>.</p><ul><li>one</li><li>two</li></ul>")
