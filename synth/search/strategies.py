"""The named strategies of the literature, each as the set of axes that it may split.

The search finds the best plan of a strategy on a layer, like any plan, but over these axes only.
"""

from __future__ import annotations

from dataclasses import dataclass

from synth.base.errors import UsageError
from synth.layer.axes import AXES, Tensor


@dataclass(frozen=True)
class Strategy:
    """A named strategy: the axes it may split, the stationary tensor (None: any), and its source."""

    name: str
    axes: str
    stationary: Tensor | None
    source: str

    @property
    def fixed(self) -> dict[str, int]:
        """Axis -> 1, for every axis that the strategy does not split."""
        return {axis: 1 for axis in AXES if axis not in self.axes}


STRATEGIES: tuple[Strategy, ...] = (
    Strategy("data", "b", None, "samples are split; the kernel is gathered, as in FSDP"),
    Strategy("spatial", "dhw", None, "rows are split; halos are exchanged"),
    Strategy("channel", "gc", None, "input channels are split; partial sums are reduced"),
    Strategy("filter", "gk", None, "output channels are split; the input is gathered"),
    Strategy("data+filter", "bgk", None, "Kahira et al., HPDC'21"),
    Strategy("data+spatial", "bdhw", None, "Kahira et al., HPDC'21"),
    Strategy("stationary-x", "bgdhwc", "In", "Dryden et al., SC'19: x is stationary, so k is not split"),
    Strategy("stationary-y", "bgdhwk", "Out", "Dryden et al., SC'19: y is stationary, so c is not split"),
    Strategy("stationary-w", "bgdhwck", "Ker", "Dryden et al., SC'19: w is stationary"),
    Strategy("2D", "bgdhwk", "Out", "Li et al., SPAA'21: SUMMA, c is not split"),
    Strategy("2.5D", "bgdhwck", "Out", "Li et al., SPAA'21: c is split as far as memory allows"),
    Strategy("3D", "bgdhwck", "Out", "Li et al., SPAA'21: c is split freely"),
)


def strategy_named(name: str) -> Strategy:
    """The strategy with a name, in upper or lower case. Raises `UsageError` for an unknown name."""
    known = {each.name.lower(): each for each in STRATEGIES}
    if str(name).lower() not in known:
        names = ", ".join(each.name for each in STRATEGIES)
        raise UsageError(f"strategy is {name!r}; it must be one of {names}")
    return known[name.lower()]
