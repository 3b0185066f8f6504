"""Words that the ranks of a network receive in a pass, from the layouts of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from synth.runtime.comm.exchanges import Exchange, Words, added, times
from synth.runtime.grid.boxes import volume
from synth.runtime.grid.rules.shared_rounds import all_reduced
from synth.runtime.layers.steps.homes import is_at_home, planned_fetch, planned_words
from synth.runtime.layers.steps.one_mode import InOneMode
from synth.runtime.model.execute import Region, Schedule

if TYPE_CHECKING:
    from synth.runtime.grid.ranks import Ranks
    from synth.runtime.layers.steps.held import Held
    from synth.runtime.model.step_graph import StepGraph


@dataclass(frozen=True)
class PlannedWords:
    """Words that each rank receives, as `received()` of a network counts them.

    calls: call of the model -> by rank, those of the forward pass and those of the
    backward pass. What a checkpoint of the model computes again is in the latter.
    sums: by rank, those of the sums of gradients that several ranks have parts of.
    """

    calls: Mapping[str, tuple[Words, Words]]
    sums: Words

    @cached_property
    def forward(self) -> Words:
        """Of a forward pass, by rank."""
        return added(forward for forward, _ in self.calls.values())

    @cached_property
    def backward(self) -> Words:
        """Of a backward pass, by rank."""
        return added([self.sums, *(backward for _, backward in self.calls.values())])

    @property
    def step(self) -> Words:
        """Of both passes, by rank."""
        return added((self.forward, self.backward))

    @property
    def most(self) -> int:
        """Of both passes, of the rank that receives most."""
        return max(self.step)

    def __str__(self) -> str:
        """The words of the rank that receives most, and the calls that move most."""
        each = {name: max(added(pair)) for name, pair in self.calls.items()}
        each["sums of gradients"] = max(self.sums)
        names = sorted(each, key=each.__getitem__, reverse=True)[:5]
        most = ", ".join(f"{name} {each[name]:,}" for name in names if each[name])
        return f"{self.most:,} words received per rank; most in {most or 'no call'}"


def float_inputs(graph: StepGraph) -> list[str]:
    """The inputs that may require gradients."""
    given = zip(graph.inputs.values(), graph.arguments.specs, strict=True)
    return [
        node for node, spec in given if (spec.dtype or graph.dtype).is_floating_point
    ]


def inputs_behind(graph: StepGraph) -> dict[int, set[int]]:
    """Place of an output -> the places of the inputs that get a gradient from it."""
    found: dict[int, set[int]] = {place: set() for place in range(len(graph.outputs))}
    floats = float_inputs(graph)
    for at, node in enumerate(graph.inputs.values()):
        graded = _Gradients(graph, (), [node] if node in floats else []).graded
        for place, out in enumerate(graph.outputs):
            if out in graded:
                found[place].add(at)
    return found


def words_of(
    graph: StepGraph, trained: Collection[str], asked: Collection[str] = ()
) -> PlannedWords:
    """What the steps of a graph exchange, in the modes in which they are.

    trained: keys of the parameters that require a gradient; none for a pass without
    gradients. asked: the inputs that do.
    """
    gradients = _Gradients(graph, trained, asked)
    again = _regions(graph.schedules[True], gradients.passing) if trained else {}
    found = dict[str, tuple[Words, Words]]()
    rings, summed = _of_rings(graph), set[str]()
    for name, sources in graph.calls:
        step, made = graph.steps[name], graph.expressions
        exchanges = list(step.exchanges())
        if not (isinstance(step, InOneMode) and step.passes):
            exchanges += _of_homes(graph, name)
        passing = gradients.passing.get(name, set())
        args = (each for each in dict.fromkeys(sources) if each not in made)
        gets: set[int | str] = {n for n, each in enumerate(args) if each in passing}
        gets |= {place.name for key, place in graph.held[name] if key in passing}
        count, size = again.get(name, 0), graph.ranks.size
        words = _words(exchanges, gets, count, size)
        summed |= passing & graph.homes.keys()
        for node, exchange in rings.get(name, ()):
            back = bool(passing) if node == name else node in gradients.graded
            gives: set[int | str] = {0} if back else set()
            more = _words([exchange], gives, count * (node == name), size)
            words = added((words[0], more[0])), added((words[1], more[1]))
        call, none = graph.part_of.get(name, name), ((0,) * size,) * 2
        forward, backward = found.get(call, none)
        found[call] = added((forward, words[0])), added((backward, words[1]))
    nothing = (0,) * graph.ranks.size
    sums = (summed_words(graph.homes[key], graph.ranks) for key in summed)
    return PlannedWords(found, added([nothing, *sums]))


def summed_words(place: Held, ranks: Ranks) -> Words:
    """Words that ranks receive as the parts of a parameter's gradient are added up.

    ranks: with their replicas, which average all gradients.
    """
    where, replicas = place.partition, ranks.replica_count
    if where is None or not (place.copies or replicas > 1):
        return (0,) * ranks.size
    boxes = where.layout.boxes
    if place.copies or where.disjoint:
        alike = Counter(boxes)
        pairs = [(volume(box), alike[box]) for box in boxes]
    else:  # those that overlap in part are added up as one
        holders = sum(volume(box) > 0 for box in boxes)
        pairs = [(volume(where.frame) * (volume(box) > 0), holders) for box in boxes]
    return tuple(all_reduced(words, each * replicas) for words, each in pairs)


class _Gradients:
    """Where gradients pass from the outputs to what requires them.

    passing: call -> the calls that it reads, and the keys that it uses, which get one.
    graded: the calls and inputs whose values have one.
    """

    def __init__(
        self, graph: StepGraph, trained: Collection[str], asked: Collection[str]
    ) -> None:
        self.graph = graph
        self.passing: dict[str, set[str]] = {}
        self.graded = graded = {*asked}
        for name, sources in graph.calls:
            got = self._got(name, sources, trained, graded)
            if got and name in graph.floats and name not in graph.detached:
                graded.add(name)
                self.passing[name] = got
        reached = {*graph.outputs}
        for name, _ in reversed(graph.calls):
            if name not in reached:
                self.passing.pop(name, None)
            reached |= {each.removesuffix("()") for each in self.passing.get(name, ())}
        for name in list(self.passing):  # of several results, one call computes all
            computes = self._computes(name)
            self.passing.setdefault(computes, set()).update(self.passing[name])

    def _got(
        self,
        name: str,
        sources: Collection[str],
        trained: Collection[str],
        graded: Collection[str],
    ) -> set[str]:
        """What a call reads or uses that requires a gradient and gets one from it."""
        keys = {key for key, _ in self.graph.held[name]}
        got = {
            key for key in keys if key in trained or key.removesuffix("()") in graded
        }
        got |= {each for each in sources if each in graded}
        paths = self.graph.paths.get(name)
        return got if paths is None else got & paths

    def _computes(self, name: str) -> str:
        """The call that computes the result of a call: another one of several."""
        calls, own = self.graph.calls, self._several(name)
        if own is None:
            return name
        return next(n for n, _ in calls if self._several(n) is own)

    def _several(self, name: str) -> object:
        step: Any = self.graph.steps.get(name)
        return getattr(getattr(step, "inner", step), "several", None)


def _words(
    exchanges: Collection[Exchange], gets: set[int | str], again: int, ranks: int
) -> tuple[Words, Words]:
    nothing = (0,) * ranks
    forward = added([nothing, *(each.forward for each in exchanges)])
    back = [each.backward for each in exchanges if gets & {*each.needs}]
    return forward, added([times(again, forward), *back])


def _of_rings(graph: StepGraph) -> dict[str, list[tuple[str, Exchange]]]:
    """Call -> what is fetched of its result; of an input at its first call.

    Each with the node whose value it is.
    """
    found: dict[str, list[tuple[str, Exchange]]] = {}
    for name, ring in graph.rings.items():
        readers = (call for call, sources in graph.calls if name in sources)
        at = name if name in graph.steps else next(readers)
        found.setdefault(at, []).append((name, ring.exchange()))
    return found


def _of_homes(graph: StepGraph, name: str) -> list[Exchange]:
    """Parameters that are held elsewhere, and buffers that return there."""
    found = list[Exchange]()
    for key, place in graph.held[name]:
        home = graph.homes.get(key)
        if home is None or is_at_home(place, home):
            continue
        found += planned_fetch(home, place)
        returns = place.is_buffer and graph.steps[name].changes_buffers
        if returns and home.partition and place.partition:
            words = planned_words(place.partition, home.partition)
            found.append(Exchange(words, words, ()))
    return found


def _regions(schedule: Schedule, passing: Collection[str]) -> dict[str, int]:
    """Call -> the number of checkpoints that it is in, and that are computed again.

    passing: the calls through which gradients pass.
    """
    found: dict[str, int] = {}
    for part in schedule:
        if isinstance(part, Region) and not part.names.isdisjoint(passing):
            inner = _regions(part.parts, passing)
            found |= {name: inner.get(name, 0) + 1 for name in part.names}
    return found
