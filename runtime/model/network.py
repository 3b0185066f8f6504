"""A traced model on shards: a step for each call of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist
from torch import fx, nn

from synth.runtime.comm.gradient_buckets import BYTES, Buckets
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.redistribute import GatherWhole
from synth.runtime.grid.boxes import Box, shape
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.scatter_gather import shard_of
from synth.runtime.kernels.autotune import default_tuner
from synth.runtime.kernels.context import Context
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.layers.finite_check import check_gradient, require_finite
from synth.runtime.layers.planned_layer import PlannedBoxes, PlannedLayer
from synth.runtime.model.build import Builder, Make
from synth.runtime.model.execute import execute, schedule
from synth.runtime.model.state_dict import load_whole, whole_state
from synth.runtime.model.trace import traced


class Network(nn.Module):
    """A model whose activations are shards; see `synth.parallelize`.

    model: the user's, alike on all ranks (the first rank's values are taken).
    make: the planned layer for a name, a module and its input's shape, None for none.
    refuse: raise `ValueError` for a layer that could only be computed from the whole.
    graph: what the model calls; None to trace it here.
    places: by the name of a call, the boxes of all ranks before and after a pooling.
    bucket_bytes: of gradients that are summed in one message; see `Buckets`.
    ahead: layers of which Ker is on its way while one computes; its sums of dKer then
        travel while the gradients of as many are computed.
    ranks: those that run it; None for all ranks of the job. Only they make and call it.
    check_finite: check for NaN and infinity in what every step makes and in every
        gradient; all ranks then raise `FloatingPointError` with layer and ranks.
    """

    def __init__(
        self,
        model: nn.Module,
        whole: tuple[int, ...],
        make: Make,
        dtype: torch.dtype = torch.float32,
        refuse: bool = False,
        graph: fx.Graph | None = None,
        places: Mapping[str, tuple[tuple[Box, ...], tuple[Box, ...]]] | None = None,
        bucket_bytes: int = BYTES,
        check_finite: bool = False,
        ahead: int = 1,
        ranks: Ranks | None = None,
    ) -> None:
        super().__init__()
        self.training = model.training
        self.context = Context(
            tuner=default_tuner(), process_groups=ProcessGroups(ranks)
        )
        self.ranks = self.context.ranks
        self.traffic = self.context.traffic  # of redistributions
        self.dtype, self.check_finite = dtype, check_finite
        for values in (*model.parameters(), *model.buffers()):
            dist.broadcast(
                values.detach(), src=self.ranks.members[0], group=self.ranks.group
            )
        graph = graph or traced(model, whole, dtype)
        placed = {name: PlannedBoxes(*boxes) for name, boxes in (places or {}).items()}
        made = Builder(model, graph, make, self.context, placed, refuse)
        self.steps = nn.ModuleDict(made.steps)
        self.calls, self.layouts = made.calls, made.layouts
        self.detached, self.modes = made.detached, made.modes
        self.owners, self.entries = made.owners, made.entries
        self.input, self.output = made.input, made.output
        self.schedules = {  # by mode; None: without gradients
            mode: schedule(self.calls, [self.output], made.regions.get(mode))
            for mode in (None, False, True)
        }
        self.saved = {  # what the model saves: values that no step has, else shapes
            key: values.detach().clone() if key not in self.entries else values.shape
            for key, values in model.state_dict().items()
        }
        self.names = {step: name for name, step in self.owners.items()}
        self.brings = self._brings(ahead)
        if check_finite:  # before buckets take the gradients
            self._watch_parameters()
        holders: list[Any] = [m for m in self.modules() if hasattr(m, "release_shared")]
        shared = [each for holder in holders for each in holder.release_shared()]
        once = {id(each.parameter): each for each in shared}  # replicas have two steps
        self.buckets = Buckets(once.values(), self.context.process_groups, bucket_bytes)

    def _brings(self, ahead: int) -> dict[str, list[tuple[str, PlannedLayer]]]:
        """Step -> the planned layers of which Ker is brought before it computes."""
        planned = [s for s, _ in self.calls if isinstance(self.steps[s], PlannedLayer)]
        brings = dict[str, list[tuple[str, PlannedLayer]]]()
        for place, step in enumerate(planned if ahead else []):
            before = planned[max(0, place - ahead)]
            layer: Any = self.steps[step]
            brings.setdefault(before, []).append((step, layer))
        return brings

    # -- use ------------------------------------------------------------------------

    def forward(self, shard: torch.Tensor) -> torch.Tensor:
        """This rank's shard of the output, from its shard of the input."""
        if shard.shape != shape(self.layouts[self.input].mine):
            raise ValueError(
                f"rank {self.ranks.rank} owns an input of"
                f" {shape(self.layouts[self.input].mine)}, but was given"
                f" {tuple(shard.shape)}; `scatter(batch)` cuts it"
            )
        self.context.wait_pending()  # what a step that broke off left on its way
        grads = torch.is_grad_enabled()

        def run(
            step: str, given: list[torch.Tensor], again: frozenset[str] | None
        ) -> torch.Tensor:
            for name, later in self.brings.get(step, ()):
                if again is None or name in again:
                    later.prefetch()
            with torch.set_grad_enabled(grads and step not in self.detached):
                return self._looked(step, self.steps[step](*given))

        values = {self.input: self._looked(self.input, shard)}
        scheduled = self.schedules[self.training if grads else None]
        execute(scheduled, values, run, dict(self.steps.named_children()))
        return values[self.output]

    def train(self, mode: bool = True) -> Network:
        """Put all steps into training or evaluation.

        Raises `ValueError` where the model's forward then does otherwise.
        """
        if mode in self.modes:
            raise ValueError(self.modes[mode])
        super().train(mode)
        return self

    def no_sync(self) -> AbstractContextManager[None]:
        """Backward passes in here add up; the next one outside sums them over ranks.

        For batches that are given in parts. It is the sums of shared parameters that
        wait; weights have one owner and their gradients are complete at once.
        """
        return self.buckets.later()

    def _looked(self, step: str, values: torch.Tensor) -> torch.Tensor:
        """What a step made, looked at with its gradient to come where that is asked."""
        if self.check_finite:
            name = self.names.get(step, step)
            require_finite(f"{name}: Out", values, _nowhere, self.ranks)
            check_gradient(f"{name}: dOut", values, _nowhere, self.ranks)
        return values

    def _watch_parameters(self) -> None:
        """Look at the gradients of what is not planned; planned layers do so."""
        for key, step in self.steps.items():
            if not isinstance(step, PlannedLayer):
                for name, parameter in step.named_parameters():
                    what = f"{self.names.get(key, key)}: d{name.rpartition('.')[2]}"
                    check_gradient(what, parameter, _nowhere, self.ranks)

    def scatter(self, batch: torch.Tensor, like: str | None = None) -> torch.Tensor:
        """This rank's shard of a whole batch, or of whole targets like the output.

        like: "input" or "output", where the two have one shape but other owners.
        """
        sides = {"input": self.layouts[self.input], "output": self.layouts[self.output]}
        if like is not None and like not in sides:
            raise ValueError(f"a batch is like input or output, not like {like!r}")
        wanted = sides if like is None else {like: sides[like]}
        fits = [lies for lies in wanted.values() if lies.whole == batch.shape]
        if not fits:
            shapes = " nor ".join(f"{s} of {wanted[s].whole}" for s in wanted)
            raise ValueError(f"a batch of {tuple(batch.shape)} is no {shapes}")
        if fits[0].boxes != fits[-1].boxes:
            raise ValueError(
                f"a batch of {tuple(batch.shape)} may be input or output, which lie"
                " differently; add like='input' or like='output'"
            )
        return shard_of(batch, fits[0].mine)

    def gather(self, shard: torch.Tensor) -> torch.Tensor:
        """The whole output on every rank, from the shards of all.

        Compute the loss from it alike on every rank: its gradient is taken once.
        """
        count = self.traffic.counter("move", 0, self.output)
        whole: torch.Tensor = GatherWhole.apply(shard, self.layouts[self.output], count)  # type: ignore[no-untyped-call]
        return whole

    def received(self) -> int:
        """Words that this rank received, between layers and in them."""
        layers = (m for m in self.modules() if isinstance(m, DistributedLayer))
        inside = sum(layer.traffic.received()["total"] for layer in layers)
        return inside + sum(self.traffic.steps.values())

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What the user's model would save, on every rank."""
        return whole_state(self.steps, self.entries, self.saved)

    def load_full_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Copy the own shards of what the user's model saved.

        Raises `ValueError` with the first key that differs from the model's.
        """
        load_whole(state, self.steps, self.entries, self.saved)


def _nowhere(index: int) -> str:
    """A rank's place on the grid, where there is none."""
    return ""
