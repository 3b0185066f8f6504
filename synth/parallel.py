"""A user's torch model on the ranks of the default process group: every layer as it is planned.

    net = synth.parallelize(model, (32, 3, 224, 224), plan="data+spatial")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    out = net.gather(net(net.scatter(images)))    # whole on every rank
    criterion(out, labels).backward()             # the same loss everywhere; its gradient is taken once
    optimizer.step()

Convolutions and linear layers run by their plans; between layers whose ownerships differ, words are moved.
Batch normalization has the statistics of the whole batch, pooling fetches the rows of its neighbours.
What cannot be cut is computed by every rank from the gathered whole, and rank 0 says so on stderr.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from synth.errors import InfeasibleError, UsageError
from synth.layer import Layer
from synth.pipeline import plan as plan_layer
from synth.plan import Plan
from synth.strategies import STRATEGIES

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from runtime.module import DistributedLayer
    from runtime.network import Network

How = Plan | Mapping[str, int] | str  # a plan, parts of a grid, or the name of a strategy


def parallelize(
    model: nn.Module,
    input: Sequence[int],
    procs: int | DeviceMesh | None = None,
    plan: Mapping[str, How] | How | None = None,
    *,
    memory: int | str | None = None,
    refuse: bool = False,
    check_finite: bool = False,
) -> Network:
    """The model as a module that takes and gives this rank's shares; all ranks must ask.

    input: shape of the whole batch, fixed for the life of the result.
    procs: ranks or a mesh of them, for a check: they are those of the default process group.
    plan: for every layer, or by the name of a layer as `named_modules` has it ("" for the others): a
        training plan, parts of its grid such as {"h": 4}, or the name of a strategy such as "spatial".
        Layers that a strategy does not fit, and those not named, get the plan that moves the fewest words.
    memory: bytes per process that each plan may take.
    refuse: raise `ValueError` with the name of a layer that would have to be gathered.
    check_finite: look for NaN and infinity in all activations and gradients, at the price of one small
        collective for each; all ranks then raise `FloatingPointError`, which names layer, tensor and ranks.

    Raises `UsageError` for a wrong argument or a name that no layer has.
    """
    import torch.distributed as dist

    from runtime.network import Network

    ranks = dist.get_world_size()
    asked = procs if isinstance(procs, int) or procs is None else procs.size()
    if asked not in (None, ranks):
        raise UsageError(f"the model is asked for {asked} ranks, but {ranks} run; start as many")
    chosen = _by_name(plan)
    known = {name for name, _ in model.named_modules()}
    for name in chosen:
        if name not in known:
            raise UsageError(f"plan names the layer {name}, which the model does not have")
    planner = _Planner(chosen, ranks, memory, check_finite)
    return Network(model, tuple(input), planner.layer, refuse=refuse, check_finite=check_finite)


def _by_name(plan: Mapping[str, How] | How | None) -> dict[str, How]:
    if plan is None:
        return {}
    if isinstance(plan, Plan | str):
        return {"": plan}
    if all(isinstance(parts, int) for parts in plan.values()):
        return {"": plan}  # type: ignore[dict-item]
    return dict(plan)  # type: ignore[arg-type]


class _Planner:
    """Plans every layer once; equal layers are planned alike."""

    def __init__(
        self, chosen: dict[str, How], ranks: int, memory: int | str | None, check_finite: bool
    ) -> None:
        self.chosen, self.ranks, self.memory, self.check_finite = chosen, ranks, memory, check_finite
        self.made: dict[tuple[Layer, str], Plan] = {}

    def layer(self, name: str, module: nn.Module, shape: tuple[int, ...]) -> DistributedLayer | None:
        """The distributed layer that stands for a module, None where there is no plan for its kind."""
        from codegen.module import distributed_conv

        layer = described(name, module, shape)
        if layer is None:
            return None
        how = self.chosen.get(name, self.chosen.get(""))
        plan = how if isinstance(how, Plan) else self.plan(layer, how)
        if name not in self.chosen and isinstance(how, Plan):
            raise UsageError("one plan is of one layer; give plans by the names of layers")
        bias = getattr(module, "bias", None) is not None
        device = next(module.parameters()).device
        return distributed_conv(plan, bias=bias, device=device, check_finite=self.check_finite)

    def plan(self, layer: Layer, how: Mapping[str, int] | str | None) -> Plan:
        """The plan of a layer with some way of cutting it."""
        key = layer, str(how)
        if key not in self.made:
            self.made[key] = self._plan(layer, how)
        return self.made[key]

    def _plan(self, layer: Layer, how: Mapping[str, int] | str | None) -> Plan:
        if isinstance(how, str):
            how = _pinned(how)
        try:
            return self._free(layer, how)
        except (InfeasibleError, UsageError) as error:
            if how is None:  # no even cut: some ranks idle in this layer
                return self._free(layer, None, exact=False)
            found = self._plan(layer, None)
            print(f"{layer.name}: planned freely, grid {found.grid.shown()}: {error}", file=sys.stderr)
            return found

    def _free(self, layer: Layer, grid: Mapping[str, int] | None, exact: bool = True) -> Plan:
        balance = 0.10 if grid is None else 10.0  # who names a grid takes its loads
        return plan_layer(
            layer,
            self.ranks,
            self.memory,
            grid=grid,
            balance=balance,
            exact_procs=exact,
            pass_="training",
        )


def _pinned(name: str) -> dict[str, int]:
    """The axes that a strategy does not cut."""
    for strategy in STRATEGIES:
        if strategy.name == name:
            return {axis: 1 for axis in "bgdhwck" if axis not in strategy.axes}
    names = ", ".join(strategy.name for strategy in STRATEGIES)
    raise UsageError(f"there is no strategy {name!r}; the strategies are {names}")


def described(name: str, module: nn.Module, shape: tuple[int, ...]) -> Layer | None:
    """A convolution or linear layer for the planner; None for all else."""
    from torch import nn

    if type(module) is nn.Linear and len(shape) == 2:
        return Layer.matmul(shape[0], module.out_features, module.in_features, name=name)
    if type(module) is nn.Linear and 3 <= len(shape) <= 5:  # on every position, channels last
        positions = len(shape) - 2
        channels_first = (shape[0], shape[-1], *shape[1:-1])
        make = getattr(Layer, f"conv{positions}d")
        same: Layer = make(channels_first, module.out_features, (1,) * positions, name=name)
        return same
    kinds: dict[type[nn.Module], str] = {nn.Conv1d: "conv1d", nn.Conv2d: "conv2d", nn.Conv3d: "conv3d"}
    back: dict[type[nn.Module], str]
    back = {nn.ConvTranspose1d: "conv1d", nn.ConvTranspose2d: "conv2d", nn.ConvTranspose3d: "conv3d"}
    kind = {**kinds, **back}.get(type(module))
    if kind is None:
        return None
    conv: Any = module
    if conv.padding_mode != "zeros" or len(shape) != len(conv.kernel_size) + 2:
        return None
    padding = conv.padding
    if padding == "valid":
        padding = (0,) * len(conv.kernel_size)
    if padding == "same":
        spans = [d * (k - 1) for d, k in zip(conv.dilation, conv.kernel_size, strict=True)]
        if any(span % 2 for span in spans):
            return None
        padding = tuple(span // 2 for span in spans)
    make = getattr(Layer, kind)
    rest = {"stride": conv.stride, "padding": padding, "dilation": conv.dilation, "groups": conv.groups}
    if type(module) in back:
        if any(more >= step for more, step in zip(conv.output_padding, conv.stride, strict=True)):
            return None
        rest |= {"transposed": True, "output_padding": conv.output_padding}
    made: Layer = make(shape, conv.out_channels, conv.kernel_size, **rest, name=name)
    return made
