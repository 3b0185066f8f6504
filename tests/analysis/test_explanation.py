"""Why a plan is as it is: terms add up to the words, other grids are the next best, what limits is true."""

from __future__ import annotations

import math
import random
from pathlib import Path

import pytest
from brute_force import all_grids
from cases import CASES
from seeded_problems import random_plan

import synth
from synth.analysis.explain_layer import LayerExplanation
from synth.analysis.explain_network import NetworkExplanation
from synth.base.errors import InputError, UsageError
from synth.layer.layer import Layer
from synth.layer.passes import TASKS
from synth.planning.plan import Plan
from synth.search.grids import work_cap

ROOT = Path(__file__).parents[2]
NETWORK = """\
input: [4, 4, 16, 16]
layers:
  - {name: a, conv2d: {out_channels: 8, kernel: 3, padding: 1}}
  - {name: b, conv2d: {out_channels: 16, kernel: 3, padding: 1}}
  - {name: c, conv2d: {out_channels: 64, kernel: 3, stride: 4}}
"""


def explained(plan: object) -> LayerExplanation:
    found = synth.explain(plan)  # type: ignore[arg-type]
    assert isinstance(found, LayerExplanation)
    return found


def check_terms(plan: Plan) -> None:
    """Terms are of one process and add up; what is gathered once is the slice without the owned part."""
    found = explained(plan)
    assert found.words == plan.words["total"] == sum(term.received for term in found.terms)
    for term in found.terms:
        if term.why.startswith("gathered") and not term.halo and "share rows" not in term.why:
            assert term.received == term.times * (term.slice - term.owns)
        if term.why.startswith("partial sums") and "neighbours" not in term.why and term.times == 1:
            once = (term.sharers - 1) * term.owns
            assert term.received > once if "tiles share rows" in term.why else term.received == once
        assert (term.received > 0) <= (term.sharers > 1 or term.halo > 0)


@pytest.mark.parametrize(
    "name", ["summa_3d", "training_tiles", "spatial", "channel", "classes", "training_up"]
)
def test_terms(name: str) -> None:
    check_terms(CASES[name])


@pytest.mark.slow
def test_terms_of_every_case_and_of_random_plans() -> None:
    for plan in CASES.values():
        check_terms(plan)
    for seed in range(200):
        check_terms(random_plan(random.Random(seed), TASKS[seed % len(TASKS)]))


@pytest.mark.parametrize("pass_", ["forward", "training"])
def test_other_grids_are_the_next_best(pass_: str) -> None:
    """Beside a search within each grid of the family."""
    layer = Layer.conv2d((4, 6, 8, 8), 8, 3, padding=1, name="small")
    plan = synth.plan(layer, 6, pass_=pass_)
    assert plan.least_work is not None
    cap, others = work_cap(plan.least_work, plan.balance), []
    for grid in all_grids(layer.nest.extents, 6):
        blocks = (-(-n // parts) for n, parts in zip(layer.nest.extents, grid, strict=True))
        if math.prod(blocks) <= cap and grid != plan.grid:
            others.append(synth.plan(layer, 6, grid=grid._asdict(), pass_=pass_).words["total"])
    others.sort()
    found = explained(plan)
    assert [each.words for each in found.others] == others[: len(found.others)]
    assert len(found.others) == min(5, len(others))


def test_what_limits() -> None:
    conv = ROOT / "examples" / "conv.yaml"
    best, bound = explained(synth.plan(conv, 64)), explained(synth.plan(conv, 64, memory="400KiB"))
    assert best.limits == ("most of the words are of In, because the grid cuts k",)
    assert f"without it the best plan receives {best.words:,} words".replace(",", " ") in bound.limits[0]
    worse = explained(synth.plan(conv, 64, as_="b=16 k=4; Out"))
    assert worse.limits[0].startswith("b=8 x c=2 x k=4 receives 22.8% fewer words: the plan was made")
    assert "104 of 1000 processes are idle" in explained(synth.plan(conv, 1000, pass_="training")).limits
    alone = explained(synth.plan(conv, 1))
    assert alone.limits == ("nothing moves",)
    assert "0 words at this load; no tensor must move\n" in str(alone)


def test_a_network(tmp_path: Path) -> None:
    (tmp_path / "net.yaml").write_text(NETWORK)
    for options in ({}, {"pass_": "training"}, {"objective": "time", "machine": "lassen"}):
        plan = synth.plan(tmp_path / "net.yaml", 4, **options)
        found = synth.explain(plan)
        assert isinstance(found, NetworkExplanation)
        assert found.cost == pytest.approx(
            plan.cost + sum(plan.words_beside.values()) * (found.unit == "words")
        )
        assert sum(part.share for part in (*found.layers, *found.redistributions)) <= 1 + 1e-9
        assert [part.cost for part in found.layers] == sorted(plan.layer_costs, reverse=True)
        assert found.limits[0].startswith("no plan of the family costs less than") == bool(plan.lower_bound)
        single = f"the best single strategy for all layers, {plan.best_single.name}"
        assert (single in str(found)) == (plan.ratio is not None)


def test_what_is_no_plan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="3 is no plan; give a plan, or the name of a plan file"):
        synth.explain(3)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="the file holds a layer, not the plan of a layer"):
        synth.explain(ROOT / "examples" / "small.yaml")
