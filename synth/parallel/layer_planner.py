"""Plans the layers of a model, each by itself or as a plan of the whole network says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING

from synth.base.errors import InfeasibleError, UsageError
from synth.base.units import as_bytes
from synth.base.work_balance import BALANCE, MOST_BALANCE
from synth.layer.layer import Layer
from synth.network.grids.owned_boxes import PlacedGrid
from synth.parallel.front_end.torch_layers import layer_of
from synth.parallel.layer_plans import LayerPlans, cheapest_resident_plan, resident_plan
from synth.parallel.planned_words import words_of_layer
from synth.planning.derive import derive
from synth.planning.plan import Plan
from synth.planning.request import PlanRequest
from synth.runtime.grid.log import LOG
from synth.search.strategies import strategy_named

if TYPE_CHECKING:
    from torch import nn

    from synth.runtime.kernels.context import Context
    from synth.runtime.layers.distributed_layer import DistributedLayer

How = Plan | Mapping[str, int] | str  # a plan, parts of a grid, or the name of a strategy


class LayerPlanner:
    """Makes the distributed layers of a model. Equal layers are planned once.

    chosen: module -> what the user wants for it; "" for all others.
    decided: what a plan of the whole network decides about each layer.
    inner: layers that make the gradient of their input. names: call -> its layer in the network, and the
    module that has its weights. inference: plan the forward pass alone, with resident weights.
    """

    def __init__(
        self,
        chosen: dict[str, How],
        ranks: int,
        memory: int | str | None,
        check_finite: bool,
        decided: LayerPlans | None,
        inner: set[str],
        names: Mapping[str, tuple[str, str]],
        inference: bool = False,
    ) -> None:
        self.chosen, self.ranks, self.memory = chosen, ranks, memory
        self.check_finite, self.decided, self.inner, self.names = check_finite, decided, inner, names
        self.inference = inference
        self.made: dict[tuple[Layer, str, bool], Plan] = {}
        self.notes: list[str] = []  # of what was planned in another way than was asked, not told yet

    def layer(
        self, name: str, module: nn.Module, shape: tuple[int, ...], context: Context
    ) -> DistributedLayer | None:
        """The distributed layer for a call of a module; None where the planner has no layer for it."""
        from synth.codegen.module import distributed_conv

        shown, owner = self.names.get(name, ("", ""))
        layer = layer_of(shown, module, shape) if shown else None
        if layer is None:
            return None
        how = self.chosen.get(owner, self.chosen.get(""))
        if isinstance(how, Plan):
            if owner not in self.chosen:
                raise UsageError("one plan is of one layer; give plans by the names of layers")
            _check_given(owner, layer, how)
        if self.decided is not None:
            plan = self.decided.plan(layer, self.ranks, self.inference)
        elif isinstance(how, Plan):
            given = PlacedGrid(how.grid, how.order, how.turned)
            plan = resident_plan(layer, self.ranks, given, None) if self.inference else how
        else:
            plan = self.plan(layer, how)
            self._tell(context)
        bias = getattr(module, "bias", None) is not None
        device = next(module.parameters()).device
        made = distributed_conv(
            plan,
            bias=bias,
            device=device,
            check_finite=self.check_finite,
            context=context,
            parameters=False,
        )
        made.planned_words = partial(words_of_layer, plan)
        return made

    def plan(self, layer: Layer, how: Mapping[str, int] | str | None) -> Plan:
        """The plan of a layer, cut by parts of a grid, by a strategy, or to move the fewest words (None)."""
        key = layer, str(how), layer.name in self.inner
        if key not in self.made:
            self.made[key] = self._plan(layer, how)
        return self.made[key]

    def _plan(self, layer: Layer, how: Mapping[str, int] | str | None) -> Plan:
        if isinstance(how, str):
            how = strategy_named(how).fixed
        try:
            return self._free(layer, how)
        except (InfeasibleError, UsageError) as error:
            if how is None:  # no even cut: some ranks idle in this layer
                return self._free(layer, None, exact=False)
            found = self._plan(layer, None)
            self.notes.append(f"{layer.name}: planned freely, grid {found.grid.shown()}: {error}")
            return found

    def _tell(self, context: Context) -> None:
        """Print the notes once, on the first rank."""
        if context.ranks.reports:
            for note in self.notes:
                LOG.info(note)
        self.notes.clear()

    def _free(self, layer: Layer, grid: Mapping[str, int] | None, exact: bool = True) -> Plan:
        if self.inference:
            return cheapest_resident_plan(layer, self.ranks, grid, as_bytes(self.memory), exact)
        parts = None if grid is None else tuple(grid.items())
        return _planned(layer, self.ranks, self.memory, parts, exact, layer.name in self.inner)


def _check_given(owner: str, layer: Layer, plan: Plan) -> None:
    """Raises `UsageError` where a user's plan is of another layer, or has classes as samples."""
    theirs = replace(plan.layer.nest, dtype=layer.dtype)
    if (theirs, plan.layer.transposed) != (layer.nest, layer.transposed):
        raise UsageError(
            f"plan of {owner} is of the layer {plan.layer}, but the model has {layer}; plan this layer"
        )
    if plan.classes:
        none = dict.fromkeys(dict(plan.classes), 1)
        raise UsageError(
            f"plan of {owner} has residue classes {dict(plan.classes)} as samples, which no layer beside it "
            f"has; plan it with classes={none}"
        )


@lru_cache(maxsize=1024)  # several models of one process have equal layers
def _planned(
    layer: Layer,
    ranks: int,
    memory: int | str | None,
    grid: tuple[tuple[str, int], ...] | None,
    exact: bool,
    inner: bool,
) -> Plan:
    request = PlanRequest(
        layer,
        ranks,
        memory,
        grid=None if grid is None else dict(grid),
        balance=BALANCE if grid is None else MOST_BALANCE,  # a given grid has no work-balance limit
        exact_procs=exact,
        pass_="training",
        gradients=("in", "ker") if inner else ("ker",),
        classes=dict.fromkeys(layer.spatial_axes, 1),  # no layer beside it has the rows of a class
    )
    return derive(request, ghosts=False)
