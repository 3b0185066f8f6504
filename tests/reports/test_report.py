"""The report: every number in it is the plan's, and it fits a page."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis_problems import layers

from synth.base.units import show_bytes, show_words
from synth.layer.layer import Layer
from synth.planning.derive import plan
from synth.planning.summary import ratio_text, shown_ratio
from synth.reports.html.html_layer import tiles
from synth.reports.text import report
from synth.reports.text_costs import memory_stages
from synth.search.strategies import STRATEGIES

CONV4 = Layer.conv2d([32, 256, 14, 14], 256, 3, padding=1, name="conv4")


@settings(max_examples=25)
@given(
    layers(), st.integers(1, 16), st.sampled_from(["forward", "backward-data", "backward-filter", "training"])
)
def test_every_plan_can_be_reported(layer: Layer, procs: int, task: str) -> None:
    made = plan(layer, procs, pass_=task)
    text = report(made)
    assert text == text.strip("\n") + "\n"
    lines = text.splitlines()
    assert all(line == line.rstrip() and line.isprintable() for line in lines)
    assert max(map(len, lines)) <= 110
    assert made.id in text
    assert f"together {show_words(made.words['total'])} words = " in text
    assert f"  {show_words(made.used_words)} words = {show_bytes(made.used_bytes)}" in text
    assert f"{made.used_procs} of {procs} processes" in text
    assert (f"{procs - made.used_procs} idle" in text) == (made.used_procs < procs)
    for strategy in STRATEGIES:
        assert re.search(rf"^  {re.escape(strategy.name)} ", text, re.MULTILINE)


def test_the_table_of_decisions() -> None:
    table = report(plan(CONV4, 64)).split("\n\n")[1]
    assert re.sub(" +", " ", table).splitlines()[1:4] == [
        "extent N 32 14 14 256 256 kernel 3x3, not split",
        "grid P 8 1 1 2 4 ranks are row-major, the last axis varies fastest",
        "work W 4 14 14 128 64 57 802 752 multiply-adds, padding counted, 1.000 times the least of any grid",
    ]


def test_costs_and_certificates() -> None:
    made = plan(CONV4, 64)
    text = report(made)
    assert "In 75 264, Ker 64 512, Out 25 088; together 164 864 words = 644 KiB" in text
    assert f"plan / bound = {made.ratio:.3f}" in text
    assert f"case {made.closed_form.case}" in text


def test_the_ratio_to_a_small_bound_has_a_caution_and_to_none_there_is_none() -> None:
    made = plan("examples/cosmoflow/conv1.yaml", 16)
    assert made.ratio is not None
    assert made.ratio > 20
    ratio = shown_ratio(made.ratio)
    said = f"plan / bound = {ratio}: the bound is small, 0.01% of what a process owns"
    text = re.sub(r"\s+", " ", report(made))
    assert said in text
    assert said in " ".join(str(made).split())
    assert (ratio, "words / bound", said.partition(": ")[2]) in tiles(made)
    small = replace(made.bound, words=made.words["total"] / 1.9)  # near the plan, so it says something
    assert ratio_text(made.words["total"], small) == "1.900"
    assert ratio_text(5, replace(made.bound, words=0.0)) == "none: the bound is 0"
    assert ratio_text(0, replace(made.bound, words=0.0)) == "1.000"


def test_a_limit_is_shown_beside_what_is_needed() -> None:
    text = report(plan(CONV4, 64, "1MiB"))
    assert " of 1 MiB" in text


def test_what_a_strategy_lacks_is_said() -> None:
    text = report(plan(CONV4, 64))
    assert re.search(r"^  data  +b=32  .* 2\.00 times the least work of any grid$", text, re.MULTILINE)


def test_a_plan_that_moves_nothing() -> None:
    text = report(plan(Layer.conv2d([8, 3, 8, 8], 4, 3), 1))
    assert "together 0 words = 0 B" in text
    assert "plan / bound = 1.000" in text


@pytest.mark.parametrize("groups", [1, 4])
def test_the_group_axis_is_shown_where_there_are_groups(groups: int) -> None:
    made = plan(Layer.conv2d([8, 16, 8, 8], 16, 3, groups=groups), 4)
    header = report(made).split("\n\n")[1].splitlines()[0].split()
    assert header == (["b", "h", "w", "c", "k"] if groups == 1 else ["b", "g", "h", "w", "c", "k"])


def test_memory_is_told_by_stages_that_there_are() -> None:
    flat = plan(Layer.conv2d([4, 8, 1, 1], 8, 1), 4)
    text = report(flat)
    assert flat.words["halo"] == 0
    assert re.search(r"\(shards [\d ]+, loop [\d ]+, reduce [\d ]+\)", text)
    rows = plan(Layer.conv2d([1, 8, 32, 32], 8, 3, padding=1), 4, grid={"h": 4})
    assert f"halo {show_words(rows.memory.halo)}" in report(rows)
    assert "gather" in memory_stages(plan(CONV4, 64, stationary="ker"))


@settings(max_examples=25)
@given(layers(), st.integers(1, 16), st.sampled_from(["forward", "training"]))
def test_the_largest_stage_is_told(layer: Layer, procs: int, task: str) -> None:
    made = plan(layer, procs, pass_=task)
    assert max(memory_stages(made).values()) == max(made.used_words, made.memory.shards)


def test_where_the_closed_form_comes_from() -> None:
    made = plan(CONV4, 64)
    assert (
        f"Eq. 4 of Li et al., SPAA'21, case {made.closed_form.case} ({made.closed_form.algorithm})"
        in report(made)
    )
    assert "accessed words (owned ones count, too)" in report(made)


def test_multiply_adds_say_whether_those_on_padding_count() -> None:
    made = plan(Layer.conv2d([8, 64, 28, 28], 128, 3, stride=2, padding=1), 8)
    text = re.sub(r"\s+", " ", report(made))
    assert f"{show_words(made.load * 9)} multiply-adds, padding counted," in text
    assert f"at most {show_words(made.bound.most_work)} multiply-adds in a process, padding left out" in text
    assert made.load * 9 > made.bound.most_work
    bare = report(plan(Layer.conv2d([8, 64, 28, 28], 128, 3), 8))
    assert "multiply-adds" in bare
    assert "padding counted" not in bare
    assert "padding left out" not in bare
