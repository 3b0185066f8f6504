"""The tilings of one pass on one distribution: the best for a limit, and the least memory that any needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

from synth.layer.axes import PerAxis, Tensor
from synth.schedule.distribution import Distribution
from synth.schedule.memory import Footprints
from synth.schedule.pass_plan import ONES, PassPlan
from synth.schedule.volume import Received, received
from synth.search.tiling_search import TilingChoice, TilingSearch
from synth.search.tiling_words import TilingWords

FORWARD = PassPlan()


@dataclass
class Tally:
    """The effort of tilings: how many plans' memory was computed."""

    examined: int = 0


def choose_tiling(
    distribution: Distribution,
    stationary: Sequence[Tensor],
    limit_words: int | None,
    template: PassPlan = FORWARD,
    panels: int | None = None,
    most_words: int | None = None,
    enough: int | None = None,
    footprints: Footprints | None = None,
    tally: Tally | None = None,
) -> tuple[TilingChoice | None, int]:
    """Choose the tiling of one pass with the fewest received words.

    Returns the choice, or None if none fits `limit_words`, and the least memory in words that any tiling
    needs (0 without a limit). `stationary`: the tensors that may be stationary. `template` gives the pass
    and its reused and saved tensors. `panels`: the wanted number of panels; by default the number that
    overlap pays for. Ties go to fewer steps, if there are more than `panels`, then to the first tensor of
    `stationary`. `most_words`: a tiling with more received words is of no use; then the result may be None
    although one fits. `enough`: if more memory is needed, no tiling is chosen, and a lower bound above this
    may be returned. `footprints`: of the distribution, if they are known.
    `tally`: counts the effort.
    """
    tilings = PassTilings(footprints or Footprints(distribution), stationary, template, panels, tally)
    if enough is not None and tilings.least_floor > enough:
        return None, tilings.least_floor
    least = 0 if limit_words is None else tilings.least_memory
    return tilings.choose(limit_words, most_words), least


class PassTilings:
    """The tilings of one pass on one distribution, for any limit. Arguments as of `choose_tiling`."""

    def __init__(
        self,
        footprints: Footprints,
        stationary: Sequence[Tensor],
        template: PassPlan,
        panels: int | None,
        tally: Tally | None = None,
    ) -> None:
        self.tally = tally or Tally()
        self.footprints, self.stationary = footprints, stationary
        self.template, self.panels = template, panels

    @cached_property
    def words(self) -> TilingWords:
        """The words of the tilings, which matter only where some fit."""
        return TilingWords(self.footprints, self.template)

    @cached_property
    def least_memory(self) -> int:
        """The least memory in words that any tiling needs."""
        return min(self._least.values())

    @cached_property
    def least_floor(self) -> int:
        """A lower bound of `least_memory`, found faster."""
        return min(map(self.footprints.floor, _of_each_kind(self.template, tuple(self.stationary))))

    @cached_property
    def _least(self) -> dict[Tensor, int]:
        search = self._search(0, None)
        return {tensor: search.least_memory(tensor) for tensor in self.stationary}

    @cached_property
    def untiled(self) -> Received:
        """The words of each process without a limit of the memory. No tiling moves fewer for any process."""
        return received(self.footprints.distribution, self.template)

    def choose(self, limit_words: int | None, most_words: int | None = None) -> TilingChoice | None:
        """The tiling with the fewest words that fits, or None if none with at most `most_words` fits."""
        search = self._search(limit_words, most_words)
        for tensor in self.stationary:
            if limit_words is None or self._least[tensor] <= limit_words:
                search.try_stationary(tensor)
        self.tally.examined += search.examined
        return search.best

    def _search(self, limit_words: int | None, most_words: int | None) -> TilingSearch:
        return TilingSearch(self.footprints, self.template, self.panels, limit_words, most_words, self.words)


@cache
def _of_each_kind(template: PassPlan, stationary: tuple[Tensor, ...]) -> tuple[PassPlan, ...]:
    """A plan for each way in which tensors move, whole or in panels."""
    t = template
    single = [PerAxis(b=2), PerAxis(c=2), PerAxis(k=2)] if t.saves else []
    return tuple(
        PassPlan(tensor, counts, False, t.pass_, t.reuses, t.saves)
        for tensor in stationary
        for counts in (ONES, *single)
    )


@lru_cache(maxsize=512)  # searches over some of the axes, for the named strategies, look at the same grids
def footprints_of(distribution: Distribution) -> Footprints:
    """The footprints of a distribution."""
    return Footprints(distribution)
