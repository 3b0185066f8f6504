"""The received words of the tilings of one pass on one distribution, whatever the memory.

Tilings with equal visits move equal words, so the words of each kind of visits are counted once.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

from synth.layer.axes import SPATIAL, PerAxis, Tensor
from synth.schedule.memory import Footprints
from synth.schedule.memory_of_tilings import Array, XTilings, integers
from synth.schedule.pass_plan import PassPlan
from synth.schedule.pass_program import lowered
from synth.schedule.volume import VisitForm, Visits, received_by
from synth.search.tile_counts import x_counts

Split = tuple[bool, ...]  # per axis, whether it has several tiles


class BlockTilings:
    """What the passes on one distribution share: the tilings along x of its blocks, and known words.

    words: visits -> the words that the most receiving process receives.
    """

    def __init__(self, footprints: Footprints) -> None:
        self.footprints, self.distribution = footprints, footprints.distribution
        self.words: dict[Visits, int] = {}
        self._panels: dict[tuple[int, bool], XTilings] = {}

    @cached_property
    def x_counts(self) -> list[PerAxis]:
        """Tile counts along x, those that read the fewest rows first."""
        nest, grid = self.distribution.nest, self.distribution.grid
        spatial = tuple((nest.windows[a], getattr(nest.extents, a), getattr(grid, a)) for a in SPATIAL)
        counts = x_counts(self.distribution.most_work.b, spatial)
        return [PerAxis(b=b, d=d, h=h, w=w) for b, d, h, w in counts]

    def x_panels(self, samples: int, alone: bool) -> XTilings:
        """Panels along x in the order of preference: `samples` parts of the samples `alone`, or then others.

        The others have more parts of the samples, and then fewer.
        """
        if (samples, alone) not in self._panels:
            best, most = PerAxis(b=samples), self.distribution.most_work.b
            others = [] if alone else self.x_counts
            finer = [n for n in others if n.b >= samples or n.b == most]
            known = set(finer)
            panels = [best, *finer, *(n for n in others if n not in known)]
            self._panels[samples, alone] = XTilings(self.footprints, panels)
        return self._panels[samples, alone]


@lru_cache(maxsize=64)  # as of `footprints_of`; few grids are tiled
def block_tilings(footprints: Footprints) -> BlockTilings:
    """What the passes on a distribution share."""
    return BlockTilings(footprints)


class TilingWords:
    """The words of tilings that communicate what `template` does."""

    def __init__(self, footprints: Footprints, template: PassPlan) -> None:
        self.blocks, self.distribution = block_tilings(footprints), footprints.distribution
        self.template = template
        self._forms: dict[tuple[Tensor, bool, Split], VisitForm] = {}
        self._of_panels: dict[tuple[Any, ...], Array] = {}

    def plan(self, tensor: Tensor, counts: PerAxis, swapped: bool = False) -> PassPlan:
        """The plan with a stationary tensor, tile counts and an order of the inner loops."""
        t = self.template
        return PassPlan(tensor, counts, swapped, t.pass_, t.reuses, t.saves)

    def visits(self, tensor: Tensor, counts: PerAxis, swapped: bool = False) -> Visits:
        """The visits of tiles, which determine the words of a plan."""
        key = tensor, swapped, _split(counts)
        if key not in self._forms:
            d, structure = self.distribution, self.plan(tensor, counts, swapped).structure
            tree = lowered(structure, d.groups, d.row_axes, turned=d.nest.turned)
            self._forms[key] = VisitForm.of(tree, structure, d.nest.turned)
        return self._forms[key].visits(counts)

    def most(self, visits: Visits) -> int:
        """The words that the most receiving process receives."""
        known = self.blocks.words
        if visits not in known:
            known[visits] = received_by(self.distribution, visits).most_in_all()
        return known[visits]

    def of(self, tensor: Tensor, counts: PerAxis, swapped: bool = False) -> int:
        """`most` of the plan with these tile counts."""
        return self.most(self.visits(tensor, counts, swapped))

    def of_panels(self, tensor: Tensor, panels: XTilings, inner: PerAxis, swapped: bool) -> Array:
        """`of` the plans with each of some panels along x and the tiles `inner` along c and k.

        Loops along x are outermost, so no panel moves again because of them. So the axes that are split and
        the loads of one plan for each of these decide the words.
        """
        split = [panels.counts[places[0]] for places in panels.splits]
        loads = [self.visits(tensor, merge(each, inner), swapped).loads for each in split]
        key = tensor, swapped, id(panels), _split(inner), *loads
        if key not in self._of_panels:
            words = [self.of(tensor, merge(each, inner), swapped) for each in panels.counts]
            self._of_panels[key] = integers(words)
        return self._of_panels[key]


def merge(one: PerAxis, other: PerAxis) -> PerAxis:
    """Tiles along all axes that either tiles."""
    return PerAxis(*[a * b for a, b in zip(one, other, strict=True)])


def _split(counts: PerAxis) -> Split:
    return tuple([n > 1 for n in counts])
