"""Answers within a tight limit: soon, the same whatever else is known, and no grid that fits is missed."""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from functools import reduce
from itertools import product
from operator import add
from pathlib import Path
from typing import Any

import pytest
from brute_force import all_grids, all_pass_plans
from counted_work import Efforts
from effort import tried
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from hypothesis_problems import distributions, small_nests

from synth.base.errors import InfeasibleError, InputError
from synth.layer.axes import TENSORS, Axis, PerAxis
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.passes import TASKS, Task
from synth.planning.derive import plan
from synth.planning.plan_file import read_plan
from synth.planning.plan_json import to_json
from synth.reports.text import report
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import PassPlan, Structure
from synth.schedule.pass_program import Tree, pass_program
from synth.schedule.training_memory import unused_resident_words
from synth.schedule.volume import Received, VisitForm, Visits, received
from synth.search.branch_and_bound import _Search
from synth.search.lean_grids import STEPS
from synth.search.pass_tilings import PassTilings, choose_tiling
from synth.search.request import Optimum, Request
from synth.search.tiling_words import TilingWords
from synth.search.training_step import choose_training_tilings, pass_templates, reuse_choices

# the halo of In moves once, before the loop, however often panels of In are gathered
HALO_MOVES_ONCE = Distribution(
    Layer.conv2d((1, 2, 1, 3), 3, (1, 1), padding=(0, 1)).nest, PerAxis(w=3, k=2), ghosts=False
)


@pytest.fixture
def efforts(monkeypatch: pytest.MonkeyPatch) -> Efforts:
    """What all searches of a test do."""
    made = Efforts()
    monkeypatch.setattr("synth.search.branch_and_bound.Effort", made)
    return made


@pytest.mark.slow
def test_a_volume_in_training_within_few_mebibytes(efforts: Efforts) -> None:
    """It took minutes while each choice of reused tensors was tiled on its own.

    A training program holds In, Ker and Out with their gradients: more than two mebibytes, which are refused.
    """
    layer = Layer.conv3d((1, 512, 18, 64, 64), 512, 3, padding=(0, 1, 1), dtype="bfloat16")
    assert 2 * 2 * layer.nest.total_words / 128 > 2**21
    with pytest.raises(InfeasibleError, match="the least memory that fits"):
        plan(layer, 128, 2**21, pass_="training")
    made = plan(layer, 128, 5 * 2**19, pass_="training")
    steps, examined = efforts.work
    assert 0 < steps < 20_000  # 8939
    assert 0 < examined < 60_000  # 25 485
    assert made.used_bytes <= 5 * 2**19
    assert made.words["total"] == 20_426_976


def test_a_dilated_signal_within_half_as_much_again_as_it_needs(efforts: Efforts) -> None:
    layer = Layer.conv1d((1, 64, 16384), 64, 2, dilation=512)
    made = plan(layer, 64, int(1.5 * layer.nest.total_words / 64) * 4)
    steps, examined = efforts.work
    assert 0 < steps < 600  # 291
    assert 0 < examined < 4000  # 1610
    assert made.words["total"] == 8064


@settings(max_examples=tried(15, 30))
@example(HALO_MOVES_ONCE, 0.0)
@given(distributions(small_nests(4)), st.floats(0, 1))
def test_a_tiling_is_found_if_it_moves_as_many_words_as_may_be(d: Distribution, share: float) -> None:
    for choose in (choose_tiling, choose_training_tilings):
        ample, least = choose(d, TENSORS, None), choose(d, TENSORS, 1)[1]
        assert ample[0] is not None
        limit = least + int(share * max(0, ample[0].used_words - least))
        best, _ = choose(d, TENSORS, limit)
        assert best is not None
        same, _ = choose(d, TENSORS, limit, most_words=best.words)
        assert same == best
        assert choose(d, TENSORS, limit, most_words=best.words - 1)[0] is None


def test_visits_are_derived_once_from_each_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each tiling that is compared; only the order of the inner loops may differ."""
    derive, trees, examined = VisitForm.of, Counter[object](), Counter[object]()

    def derived(tree: Tree, plan: Structure, turned: tuple[Axis, ...] = ()) -> VisitForm:
        trees[plan] += 1
        return derive(tree, plan, turned)

    visits = TilingWords.visits

    def counted(words: TilingWords, *tiles: Any) -> Visits:
        examined[words.template] += 1
        return visits(words, *tiles)

    monkeypatch.setattr(VisitForm, "of", derived)
    monkeypatch.setattr(TilingWords, "visits", counted)
    nest = Layer.conv2d((4, 48, 20, 18), 64, 3, padding=1).nest
    footprints = Footprints(Distribution(nest, PerAxis(b=2, c=2, k=2)))
    tilings = PassTilings(footprints, TENSORS, PassPlan(), None)
    found = tilings.choose(tilings.least_memory)
    assert found is not None
    assert found.used_words == tilings.least_memory
    assert examined.total() > 5 * trees.total()
    assert max(trees[plan] for plan in trees) <= 1 + 2  # twice for the tilings, once for `received`


def within(nest: Nest, procs: int, task: Task, turns: bool, share: float) -> Request:
    """A request with a limit between the least memory and what the plan without a limit uses."""
    free = Request(nest, procs, pass_=task, turnable=nest.turnable if turns else ())
    lean = _Search(replace(free, limit_words=1)).leanest
    most = _Search(free).run()
    assert lean.best is not None
    assert most is not None
    return replace(
        free, limit_words=lean.best[0] + int(share * max(0, most.tiling.used_words - lean.best[0]))
    )


def examined(request: Request) -> int | None:
    """The fewest words of any grid and turned axes, by looking at all of them."""
    search = _Search(request)
    fewest = math.inf
    for grid in all_grids(request.nest.extents, request.procs, request.exact):
        if Distribution(request.nest, grid).most_work.size > search.cap:
            continue
        for turned in search._turns(grid):
            tiling, _ = search._choose_tiling(search._footprints(grid, turned), request.limit_words)
            fewest = min(fewest, tiling.words if tiling else math.inf)
    return None if fewest == math.inf else int(fewest)


def step_by_hand(request: Request) -> int | None:
    """The fewest words of a training step, by looking at all grids, reused tensors, orders and tilings."""
    fewest = math.inf
    cap, limit = _Search(request).cap, request.limit_words or 0
    for grid in all_grids(request.nest.extents, request.procs):
        d = Distribution(request.nest, grid)
        if d.most_work.size > cap:
            continue
        footprints, known = Footprints(d), dict[tuple[PassPlan, int], list[Received]]()
        for order, reused in product(request.sequences, reuse_choices(request.sequences[0], False)):
            passes = []
            for template in pass_templates(reused, order):
                left = limit - unused_resident_words(footprints, reused, order, template.pass_)
                if (template, left) not in known:
                    known[template, left] = received_within(footprints, template, left)
                passes.append(known[template, left])
            for words in product(*passes):
                fewest = min(fewest, reduce(add, words).most_in_all())
    return None if fewest == math.inf else int(fewest)


def received_within(footprints: Footprints, template: PassPlan, limit: int) -> list[Received]:
    """What processes receive in a pass, for each kind of tiling of which one fits."""
    d, found = footprints.distribution, dict[Visits, Received]()
    for tensor in TENSORS:
        for each in all_pass_plans(d.most_work, tensor):
            made = replace(template, stationary=tensor, counts=each.counts, swapped=each.swapped)
            visits = Visits.of(pass_program(d, made), d.nest.turned)
            if visits not in found and footprints.memory(made).words <= limit:
                found[visits] = received(d, made)
    return [*found.values()]


@settings(max_examples=12)
@given(small_nests(3), st.integers(2, 4), st.floats(0, 0.6))
def test_no_step_within_the_memory_moves_fewer_words(nest: Nest, procs: int, share: float) -> None:
    assume(nest.extents.size <= 40)
    request = within(nest, procs, "training", False, share)
    found = _Search(request).run()
    assert found is not None
    assert found.tiling.words == step_by_hand(request)


TIGHT = (small_nests(5), st.integers(2, 16), st.sampled_from(TASKS), st.booleans(), st.floats(0, 0.6))


@settings(max_examples=tried(20, 40))
@given(*TIGHT)
def test_no_grid_that_fits_is_missed(nest: Nest, procs: int, task: Task, turns: bool, share: float) -> None:
    request = within(nest, procs, task, turns, share)
    found = _Search(request).run()
    assert found is not None
    assert found.proven_words is None
    assert found.tiling.words == examined(request)


@settings(max_examples=tried(20, 40))
@given(*TIGHT, st.sampled_from([0, 1, 3, 10, 30, 100]))
def test_an_impatient_search_says_what_it_has_not_proven(
    nest: Nest, procs: int, task: Task, turns: bool, share: float, patience: int
) -> None:
    """Its plan fits, and no grid moves fewer words than it claims to have proven."""
    request = within(nest, procs, task, turns, share)
    fewest, found = examined(request), _Search(request, patience).run()
    assert fewest is not None
    if found is None:  # it has met no grid that fits
        return
    assert found.tiling.used_words <= (request.limit_words or 0)
    proven = found.tiling.words if found.proven_words is None else found.proven_words
    assert proven <= fewest <= found.tiling.words


def test_grids_that_split_other_axes_are_not_assumed_to_be_too_large() -> None:
    """2.4 times as many words were moved on 256 processes when all grids exceeded their bounds alike."""
    layer = Layer.conv3d((1, 512, 18, 64, 64), 512, 3, padding=(0, 1, 1), dtype="bfloat16")
    made = plan(layer, 256, int(1.05 * layer.nest.total_words / 256) * 2)
    assert made.words["total"] == 6_842_624
    assert made.proven_words is None


VIDEO = Layer.conv3d((1, 512, 18, 64, 64), 512, 3, padding=(0, 1, 1))


def test_a_step_that_cannot_hold_its_tensors_is_refused_at_once() -> None:
    """In, Ker and Out with their gradients take 306 176 words of each of 512 processes."""
    search = _Search(Request(VIDEO.nest, 512, 267_144, pass_="training", turnable=VIDEO.nest.turnable))
    assert search.run() is None
    assert search.effort.steps == 1
    assert search.effort.left_words is None


@pytest.mark.slow
def test_ghost_rows_and_their_strips_bound_the_memory_of_ranges() -> None:
    """Without them, the search ended early and took a plan that moves seven times as many words."""
    search = _Search(Request(VIDEO.nest, 512, 310_434, pass_="training", turnable=VIDEO.nest.turnable))
    found = search.run()
    assert found is not None
    assert (found.tiling.words, found.proven_words) == (14_183_568, None)
    assert search.effort.steps < 1000


@pytest.mark.slow
def test_slices_that_do_not_fit_are_not_assumed_to_be_reused() -> None:
    """Words of a range are bounded by the tensors that passes can reuse; else the search ended early."""
    search = _Search(Request(VIDEO.nest, 512, 465_651, pass_="training", turnable=VIDEO.nest.turnable))
    found = search.run()
    assert found is not None
    assert (found.tiling.words, found.proven_words) == (4_071_936, None)
    assert search.effort.steps < 5000


def test_a_refusal_says_that_it_is_not_proven() -> None:
    """Where the search ended early, and so did the search for the least memory."""
    nest = Layer.conv2d((2, 16, 12, 12), 24, 3, padding=1).nest
    free = _Search(Request(nest, 12, 1)).leanest.best
    assert free is not None
    request = Request(nest, 12, free[0] - 1)

    def refusal(patience: int, lean_steps: int = STEPS) -> InfeasibleError:
        search = _Search(request, patience, lean_steps)
        assert search.run() is None
        return search.infeasible()

    told = "as far as the search went: it ended early, so this is not proven; the least memory"
    assert refusal(20_000).proven
    assert refusal(0).proven  # by the least memory of all grids
    assert told not in str(refusal(20_000, 1))
    assert told in str(refusal(0, 1))
    assert not refusal(0, 1).proven


def test_a_plan_says_that_it_is_not_proven_the_fewest(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """In the summary, the report and the file, which is refused if that is taken out or edited."""
    layer = Layer.conv2d((2, 16, 12, 12), 24, 3, padding=1)
    request = Request(layer.nest, 12, int(1.3 * layer.nest.total_words / 12))
    found = _Search(request, 40).run()
    assert isinstance(found, Optimum)
    assert found.proven_words is not None
    monkeypatch.setattr("synth.planning.derive.search_classes", lambda *_: found)
    made = plan(layer, 12, 4 * (request.limit_words or 0))
    told = "not proven the fewest: the search ended early; no plan of the family receives fewer than"
    assert told in " ".join(str(made).split())
    assert told in " ".join(report(made).split())
    data = to_json(made)
    assert data["proven_words"] == found.proven_words
    path = tmp_path / "plan.json"
    path.write_text(json.dumps(data))
    assert read_plan(path).proven_words == found.proven_words
    for edit in ({"proven_words": found.proven_words + 1}, {"proven_words": None}):
        path.write_text(json.dumps({**data, **edit}))
        with pytest.raises(InputError, match="digest is not that of"):
            read_plan(path)
    path.write_text(json.dumps({key: value for key, value in data.items() if key != "proven_words"}))
    with pytest.raises(InputError, match="digest is not that of"):
        read_plan(path)
