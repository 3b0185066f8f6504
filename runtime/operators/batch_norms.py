"""Batch normalizations of a network, with the statistics that the user chose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from synth.runtime.comm.layout import Layout
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.kernels.context import Context
from synth.runtime.layers.norms.batch_norm import BatchNorm
from synth.runtime.layers.steps.step import OnShards
from synth.runtime.operators.call import Call

Statistics = Literal["global", "local"]
REMEDY = 'parallelize with batch_norm="global"'


class BatchNorms:
    """Makes the steps of batch normalizations.

    context: of the network; it counts the words of the exchanges as "statistics".
    statistics: over the whole batch, or over the samples of some ranks; see
        `ChannelMoments`.
    """

    def __init__(self, context: Context, statistics: Statistics) -> None:
        self.context, self.local = context, statistics == "local"
        self.samples = set[int]()  # extents of dimension 0 of the network's inputs

    @property
    def groups(self) -> ProcessGroups:
        """The process groups of the network."""
        return self.context.process_groups

    def add_input(self, shape: Iterable[int]) -> None:
        """Take notice of an input of the network."""
        self.samples.update([*shape][:1])

    def step(
        self, call: Call, module: Any, source: Layout, owned: Layout | None = None
    ) -> OnShards:
        """The step of a batch normalization of a value that lies as `source`.

        owned: the words of which statistics are made, if ranks hold others, too.

        Raises `ValueError` for local statistics of a value without samples.
        """
        if self.local and source.whole[0] not in self.samples:
            raise ValueError(
                f'{call.name}: batch_norm="local" divides the samples of the batch'
                f" ({_listed(self.samples)}), but dimension 0 of its input"
                f" {source.whole} is not these samples{_place(call)}; {REMEDY}"
            )
        count = self.context.counter("statistics", 0, call.name)
        norm = BatchNorm(module, source, self.groups, self.local, count, owned)
        return OnShards(norm, source)

    def check_gathered(self, call: Call, module: Any) -> None:
        """Raise `ValueError` for local statistics of what every rank computes whole."""
        parts = [] if module is None else module.modules()
        tracked = any(getattr(each, "track_running_stats", False) for each in parts)
        if self.local and (tracked or call.word in ("instance_norm", "batch_norm")):
            raise ValueError(
                f'{call.name}: batch_norm="local" has no meaning for running'
                f" statistics of the gathered batch{_place(call)}; {REMEDY}"
            )


def _place(call: Call) -> str:
    return str(call.node.meta.get("place", ""))


def _listed(extents: Iterable[int]) -> str:
    return " or ".join(map(str, sorted(extents)))
