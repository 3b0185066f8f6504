"""A right schedule passes; each kind of tampering is caught, and named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest
from example_nests import same_window, whole_numbers
from hypothesis import given
from hypothesis_problems import schedules

from synth.base.errors import CheckError
from synth.layer.axes import PerAxis, Tensor
from synth.layer.intervals import Box, volume
from synth.layer.layer import Layer
from synth.layer.nest import Nest
from synth.layer.window import Window
from synth.schedule.distribution import Distribution
from synth.schedule.pass_plan import PassPlan
from synth.schedule.schedule import Move, Round, Schedule
from synth.schedule.shard_cuts import ShardCut
from synth.simulation.interpreter import simulate
from synth.simulation.numpy_kernels import reference
from synth.simulation.rank_state import IncompleteResult, PanelMissing
from synth.simulation.verify import (
    IterationFault,
    MemoryFault,
    OwnershipFault,
    WordsFault,
    computed_once,
    owned_once,
    verify,
)

Edit = Callable[[Round], Round]


@dataclass(frozen=True)
class Tampered(Schedule):
    """A schedule with edited rounds."""

    edit: Edit = lambda each: each

    def rounds(self) -> Iterator[Round]:
        return (self.edit(each) for each in super().rounds())


def tampered(right: Schedule, edit: Edit) -> Tampered:
    return Tampered(right.distribution, right.pass_plan, edit)


def example(stationary: Tensor = "Out", grid: PerAxis | None = None, **counts: int) -> Schedule:
    """Twelve processes along b, h, c and k: a halo, broadcasts of In and Ker, and a reduction of Out."""
    nest = Nest(PerAxis(b=2, h=8, w=3, c=9, k=6), Window(1), same_window(8), same_window(3))
    grid = grid or PerAxis(h=2, c=3, k=2)
    return Schedule(Distribution(nest, grid), PassPlan(stationary, PerAxis(**counts)))


def without(moves: tuple[Move, ...], index: int) -> tuple[Move, ...]:
    return moves[:index] + moves[index + 1 :]


@given(schedules())
def test_every_schedule_of_the_planner_is_right(schedule: Schedule) -> None:
    verified = verify(schedule)
    assert verified.ranks == len(schedule.distribution.ranks)
    assert verified.steps == schedule.pass_plan.steps
    assert "every iteration once" in str(verified)


def test_an_edit_that_changes_nothing_passes() -> None:
    verify(tampered(example(c=3), lambda each: each))


# -- iterations -----------------------------------------------------------------------------------------


def test_a_dropped_computation() -> None:
    wrong = tampered(example(c=3), lambda r: replace(r, computes=r.computes[1:]))
    with pytest.raises(IterationFault, match=r"is computed 0 times instead of once"):
        computed_once(wrong)
    with pytest.raises(IterationFault):
        verify(wrong)


def test_a_repeated_computation() -> None:
    wrong = tampered(example(c=3), lambda r: replace(r, computes=r.computes + r.computes[-1:]))
    with pytest.raises(IterationFault, match=r"is computed 2 times instead of once"):
        verify(wrong)


def test_a_computation_by_the_wrong_rank() -> None:
    """Every iteration is still computed once, but by a rank that does not hold what it touches."""

    def edit(each: Round) -> Round:
        swapped = {0: 5, 5: 0}
        return replace(
            each, computes=tuple(replace(c, rank=swapped.get(c.rank, c.rank)) for c in each.computes)
        )

    with pytest.raises(PanelMissing, match=r"^rank 5 computes tile .* but holds .* only"):
        verify(tampered(example(c=3), edit))


def test_a_shrunken_tile() -> None:
    def edit(each: Round) -> Round:
        if not each.computes:
            return each
        first = each.computes[0]
        low, high = first.tile["h"]
        smaller = replace(first, tile={**first.tile, "h": (low, high - 1)})
        return replace(each, computes=(smaller, *each.computes[1:]))

    with pytest.raises(IterationFault, match=r"iteration \(b=0, g=0, d=0, h=3, w=0, c=0, k=0\)"):
        verify(tampered(example(), edit))


# -- moves ----------------------------------------------------------------------------------------------

MOVES = [("halo", "moves"), ("loop", "moves"), ("reduce", "reductions")]


@pytest.mark.parametrize(("phase", "field"), MOVES)
def test_a_dropped_move(phase: str, field: str) -> None:
    """Whichever move of a phase is dropped, and in whichever phase."""
    right = example(c=3)
    count = next(len(getattr(r, field)) for r in right.rounds() if r.phase == phase)
    assert count > 2
    for index in range(count):

        def edit(each: Round, index: int = index) -> Round:
            moves = getattr(each, field)
            return replace(each, **{field: without(moves, index)}) if each.phase == phase else each

        fault = IncompleteResult if phase == "reduce" else PanelMissing
        with pytest.raises(fault):
            verify(tampered(right, edit))


@pytest.mark.parametrize(("phase", "field"), MOVES)
def test_a_repeated_move(phase: str, field: str) -> None:
    def edit(each: Round) -> Round:
        moves = getattr(each, field)
        return replace(each, **{field: moves + moves[:1]}) if each.phase == phase else each

    with pytest.raises((PanelMissing, IncompleteResult)):
        verify(tampered(example(c=3), edit))


@pytest.mark.parametrize(("phase", "field"), MOVES)
def test_a_move_in_the_place_of_another(phase: str, field: str) -> None:
    """The words of every rank still add up, but some word comes twice and another one never."""
    right = example(c=3)
    every = next(getattr(r, field) for r in right.rounds() if r.phase == phase)
    pairs = [
        (i, j)
        for i, one in enumerate(every)
        for j, other in enumerate(every)
        if i != j and one.targets == other.targets and volume(one.box) == volume(other.box)
    ]
    if phase == "loop":
        pairs = [(0, 1)]
    assert pairs or phase == "halo"
    for i, j in pairs:

        def edit(each: Round, i: int = i, j: int = j) -> Round:
            moves = list(getattr(each, field))
            if each.phase != phase:
                return each
            moves[i] = replace(moves[j], targets=moves[i].targets) if phase == "loop" else moves[j]
            return replace(each, **{field: tuple(moves)})

        with pytest.raises((PanelMissing, IncompleteResult)):
            verify(tampered(right, edit))


@pytest.mark.parametrize("stationary", ["In", "Ker", "Out"])
def test_a_swapped_source(stationary: Tensor) -> None:
    """A rank sends what it does not hold, for every move of every round."""
    right = example(stationary)
    ranks = list(right.distribution.ranks)
    for each in right.rounds():
        for field in ("moves", "reductions"):
            for index, move in enumerate(getattr(each, field)):
                others = [r for r in ranks if r != move.source and r not in move.targets]
                other = move.targets[0] if move.kind == "broadcast" else others[0]
                targets = tuple(move.source if target == other else target for target in move.targets)
                moves = list(getattr(each, field))
                moves[index] = replace(move, source=other, targets=targets)
                wrong = replace(each, **{field: tuple(moves)})

                def edit(r: Round, each: Round = each, wrong: Round = wrong) -> Round:
                    return wrong if r == each else r

                with pytest.raises((PanelMissing, IncompleteResult)):
                    simulate(tampered(right, edit))


def test_partial_sums_of_one_rank_twice_and_of_another_never() -> None:
    """Words per rank are as planned and every owner gets enough: only the values would be wrong."""

    def edit(each: Round) -> Round:
        if each.phase != "reduce":
            return each
        first, second, *rest = each.reductions
        assert first.targets == second.targets
        return replace(each, reductions=(first, replace(second, source=first.source), *rest))

    wrong = tampered(example(), edit)
    nest = wrong.distribution.nest
    assert {v.source for v in next(r for r in wrong.rounds() if r.phase == "reduce").reductions[:2]} == {2}
    with pytest.raises(IncompleteResult, match=r"partial sums of Out for others"):
        simulate(wrong, whole_numbers(nest, "In"), whole_numbers(nest, "Ker"))
    with pytest.raises(IncompleteResult):
        verify(wrong)


def test_partial_sums_for_the_wrong_owner() -> None:
    def edit(each: Round) -> Round:
        if each.phase != "reduce":
            return each
        first, *rest = each.reductions
        return replace(each, reductions=(replace(first, targets=(first.targets[0] + 1,)), *rest))

    with pytest.raises(IncompleteResult, match=r"to rank 1, which sums"):
        verify(tampered(example(), edit))


def test_a_shrunken_strip() -> None:
    def edit(each: Round) -> Round:
        if each.phase != "halo":
            return each
        first = each.moves[0]
        low, high = first.box[5]
        smaller = replace(first, box=(*first.box[:5], (low, high - 1)))
        return replace(each, moves=(smaller, *each.moves[1:]))

    with pytest.raises(PanelMissing, match=r"do not tile it"):
        verify(tampered(example(), edit))


def test_a_forgotten_target() -> None:
    """All pieces are sent, but one piece skips one of its receivers."""

    def edit(each: Round) -> Round:
        if each.phase != "loop":
            return each
        first = each.moves[2]
        return replace(
            each, moves=(*each.moves[:2], replace(first, targets=first.targets[:-1]), *each.moves[3:])
        )

    right = example(grid=PerAxis(k=3))
    with pytest.raises(PanelMissing, match=r"^the pieces of In .* for rank 1 do not tile it$"):
        verify(tampered(right, edit))


def test_a_partial_share_in_a_rotated_schedule() -> None:
    schedule = Schedule(Distribution(Layer.matmul(4, 4, 8).nest, PerAxis(b=2)), PassPlan("Out", PerAxis(c=2)))
    verify(schedule)

    def edit(each: Round) -> Round:
        if not each.moves:
            return each
        first, *rest = each.moves
        half = tuple(
            (low, low + 1) if axis == 1 else (low, high) for axis, (low, high) in enumerate(first.box)
        )
        return replace(each, moves=(replace(first, box=half), *rest))

    with pytest.raises(PanelMissing, match=r"^rank \d is to send Ker .* but shards move whole"):
        verify(tampered(schedule, edit))


def test_a_panel_too_early() -> None:
    """The panels of step 1 in step 0: they are not what the tile needs."""
    right = example(c=3)
    steps = [r.moves for r in right.rounds() if r.phase == "loop"]
    moved = {0: steps[1], 1: steps[0]}

    def edit(each: Round) -> Round:
        return replace(each, moves=moved.get(each.step, each.moves)) if each.phase == "loop" else each

    with pytest.raises(PanelMissing):
        verify(tampered(right, edit))


# -- ownership ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Misowned(Distribution):
    """A distribution in which `rank` owns `instead` of its box of a tensor."""

    tensor: Tensor = "In"
    wrong: int = 0
    instead: Callable[[Box], Box] = lambda box: box

    def owned(self, tensor: Tensor, at: PerAxis) -> Box:
        box = super().owned(tensor, at)
        return self.instead(box) if tensor == self.tensor and self.rank(at) == self.wrong else box


def misowned(d: Distribution, tensor: Tensor, wrong: int, instead: Callable[[Box], Box]) -> Misowned:
    return Misowned(d.nest, d.grid, d.order, tensor=tensor, wrong=wrong, instead=instead)


@pytest.mark.parametrize("tensor", ["In", "Ker", "Out"])
def test_a_word_without_owner(tensor: Tensor) -> None:
    d = example().distribution
    wrong = misowned(d, tensor, 7, lambda box: tuple((low, low) for low, _ in box))
    with pytest.raises(OwnershipFault, match=rf"^{tensor} word \(.*\) has 0 owners instead of 1$"):
        verify(Schedule(wrong, PassPlan()))


@pytest.mark.parametrize("tensor", ["In", "Ker", "Out"])
def test_a_word_with_two_owners(tensor: Tensor) -> None:
    d = example().distribution
    taken = d.owned(tensor, d.at(2))
    wrong = misowned(d, tensor, 7, lambda box: taken)
    with pytest.raises(OwnershipFault):
        owned_once(Schedule(wrong, PassPlan()))
    larger = misowned(d, tensor, 0, lambda box: tuple((low, high + 1) for low, high in box))
    with pytest.raises(OwnershipFault, match="has 2 owners instead of 1"):
        owned_once(Schedule(larger, PassPlan()))


# -- words and memory -----------------------------------------------------------------------------------


def test_words_other_than_planned() -> None:
    """Other shards are other words: planned for the one, interpreted with the other."""

    @dataclass(frozen=True)
    class Otherwise(Distribution):
        def owned(self, tensor: Tensor, at: PerAxis) -> Box:
            return Uneven(self.nest, self.grid).owned(tensor, at)

    @dataclass(frozen=True)
    class Uneven(Distribution):
        @property
        def shard_cuts(self) -> dict[Tensor, ShardCut]:  # type: ignore[override]
            return {**Distribution(self.nest, self.grid).shard_cuts, "Ker": (("c", 2),)}

    d = Distribution(Nest(PerAxis(b=2, c=5, k=8), *[Window(1)] * 3), PerAxis(b=2))
    with pytest.raises(WordsFault, match=r"of ker, but \d+ are planned"):
        verify(Schedule(Otherwise(d.nest, d.grid), PassPlan()))


@given(schedules())
def test_the_memory_limit_is_exact(schedule: Schedule) -> None:
    most = verify(schedule).used_words
    assert verify(schedule, most).used_words == most
    with pytest.raises(MemoryFault, match=rf"holds {most} words, 1 over {most - 1}$"):
        verify(schedule, most - 1)


def test_faults_are_check_errors() -> None:
    for fault in (IterationFault, OwnershipFault, MemoryFault, WordsFault, PanelMissing, IncompleteResult):
        assert issubclass(fault, CheckError)
        assert fault.exit_code == 5


@given(schedules())
def test_a_verified_schedule_computes_the_layer(schedule: Schedule) -> None:
    nest = schedule.distribution.nest
    inputs, ker = whole_numbers(nest, "In"), whole_numbers(nest, "Ker")
    out = simulate(schedule, inputs, ker).out
    assert out is not None
    assert (out == reference(nest, inputs, ker)).all()
