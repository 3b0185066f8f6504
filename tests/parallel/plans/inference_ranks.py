"""Networks on ranks that only infer, beside one process."""

from __future__ import annotations

import copy
from collections import defaultdict
from typing import Any

import torch
from network_words import between_layers, in_layers, most
from shared_plan import shared_plan
from torch import nn

import synth
from synth.base.errors import SynthError
from synth.runtime.comm import agreement
from synth.runtime.grid.allocation_counter import least_peak, live_bytes
from synth.runtime.layers.distributed_layer import DistributedLayer
from synth.runtime.model.network import Network
from synth.runtime.tensor.partitioned import PartitionedTensor

SHAPE = (1, 4, 10, 7)


class Block(nn.Module):
    """Group norms, convolutions and a sum."""

    def __init__(self, channels: int, out: int) -> None:
        super().__init__()
        self.norm, self.one = nn.GroupNorm(2, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.two, self.short = nn.Conv2d(out, out, 3, padding=1, groups=2), nn.Conv2d(channels, out, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.short(x) + self.two(nn.functional.silu(self.one(self.norm(x))))


def decoder(width: int = 8) -> nn.Module:
    """A small decoder: upsampling, a transposed and a grouped convolution, batch norm and dropout."""
    torch.manual_seed(0)
    layers = [
        *(nn.Conv2d(4, width, 3, padding=1), Block(width, 2 * width), nn.Upsample(scale_factor=2)),
        *(nn.BatchNorm2d(2 * width), nn.Dropout(0.5), nn.ConvTranspose2d(2 * width, width, 2, 2)),
        *(Block(width, width), nn.Conv2d(width, 3, 3, padding=1)),
    ]
    return nn.Sequential(*layers).double().eval()


def batch(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> torch.Tensor:
    """The same words on all ranks."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).double()


def apart(net: Any, whole: nn.Module, shape: tuple[int, ...] = SHAPE) -> float:
    """The largest difference of outputs."""
    given = batch(shape)
    with torch.no_grad():
        return float((net(given).full_tensor() - whole(given)).abs().max())


def refusal(run: Any) -> str:
    """The sentence with which something is refused; "" where it is not."""
    try:
        run()
    except (SynthError, ValueError, RuntimeError) as fault:
        return str(fault)
    return ""


def traffic(net: Network) -> dict[str, int]:
    """Words of Ker by layer, and of weights that were moved to where they are used."""
    layers = [m for m in net.program.modules() if isinstance(m, DistributedLayer)]
    words = {layer.name: layer.traffic.received()["Ker"] for layer in layers}
    fetched = {name: n for name, n in between_layers(net).items() if name.startswith("weights of")}
    return {name: n for name, n in {**words, **fetched}.items() if n}


def as_planned(memory: int | None, axes: str) -> dict[str, Any]:
    """A plan as it runs: words by layer and by edge, values, and what the ranks hold of the weights."""
    whole = decoder()
    plan = shared_plan(whole, SHAPE, memory=memory, axes=axes, mode="inference")
    net = synth.parallelize(whole, SHAPE, plan=plan, mode="inference")
    shard = net.scatter(batch(), "input")
    net(shard)
    counters = [m.traffic for m in net.program.modules() if isinstance(m, DistributedLayer)]
    for counter in (net.program.context.traffic, *counters):
        counter.steps.clear()
    with torch.inference_mode():
        net(shard)
    planned: dict[str, int] = defaultdict(int)
    for edge, words in plan.edge_words.items():
        planned["edges"] += words if edge.role == "in" else 0
    between = most(between_layers(net), net.ranks)
    layers = most(in_layers(net), net.ranks)
    costs = dict(zip((node.name for node in plan.network.planned), plan.layer_costs, strict=True))
    weights = [p for name, p in net.named_parameters() if name.endswith("weight") and p.dim() > 1]
    return {
        "error": apart(net, whole),
        "edges": (sum(n for name, n in between.items() if name in costs), planned["edges"]),
        "layers": ({k: v for k, v in layers.items() if v}, {k: int(v) for k, v in costs.items() if v}),
        "ker": traffic(net),
        "held": sum(p.to_local().numel() for p in weights),
        "planned": plan.resident_words,
        "weights": sum(p.numel() for p in weights),
        "most": plan.held_bytes,
    }


def loaded(plan: Any) -> dict[str, Any]:
    """New weights after the first passes, in every way that a user may give them."""
    whole, shapes = decoder(), (SHAPE, (2, 4, 6, 9))
    net = synth.parallelize(copy.deepcopy(whole), SHAPE, plan=plan, mode="inference")
    errors = [apart(net, whole, shape) for shape in shapes]
    for way in ("load_state_dict", "state_dict", "copy_", "data", "full"):
        with torch.no_grad():
            for values in whole.parameters():
                values.mul_(1.1).add_(0.01)
        for name, values in whole.named_parameters():
            match way:
                case "copy_":
                    with torch.no_grad():
                        net.get_parameter(name).copy_(values)
                case "data":
                    net.get_parameter(name).data.copy_(values.data)
        if way == "load_state_dict":
            net.load_state_dict(whole.state_dict())
        elif way == "full":
            net.load_full_state_dict(whole.state_dict())
        elif way == "state_dict":  # from a network with other slices
            other = synth.parallelize(copy.deepcopy(whole), SHAPE, plan="spatial", mode="inference")
            net.load_state_dict(other.state_dict())
        errors += [apart(net, whole, shape) for shape in shapes]
    state = net.full_state_dict()
    same = all(torch.equal(values, state[key]) for key, values in whole.state_dict().items())
    synth.check_replicas(net)
    boxes = {p.box for p in net.parameters() if isinstance(p, PartitionedTensor)}
    return {"error": max(errors), "same": same, "ker": traffic(net), "boxes": len(boxes)}


def refused() -> list[str]:
    """What would train."""
    whole = decoder()
    net = synth.parallelize(whole, SHAPE, mode="inference")
    said = [
        refusal(lambda: net(batch()).sum().backward()),
        refusal(lambda: net(batch()).full_tensor().sum().backward()),
        refusal(lambda: net.train()),
        refusal(lambda: synth.parallelize(whole.train(), SHAPE, mode="inference")),
        refusal(lambda: synth.parallelize(whole.eval(), SHAPE, mode="serve")),
        refusal(lambda: synth.parallelize(whole, SHAPE, mode="inference", memory=20_000)),
    ]
    frozen = synth.parallelize(decoder().requires_grad_(False), SHAPE, mode="inference")
    said.append(refusal(lambda: frozen.train().eval()))  # nothing of it trains
    with torch.no_grad():
        said.append(str(net(batch()).requires_grad))
    return said


def messages() -> list[int]:
    """How often the ranks agree in one pass: of the first shape, of another, of partitioned batches."""
    net = synth.parallelize(decoder(), SHAPE, mode="inference")
    told, before = [], agreement.all_to_all
    count = [0]

    def counted(*args: Any) -> Any:
        count[0] += 1
        return before(*args)

    shapes = [SHAPE, (1, 4, 6, 6)]
    for given in (*map(batch, shapes), net.scatter(batch(), "input")):
        net(given)
        agreement.all_to_all, count[0] = counted, 0
        try:
            net(given)
        finally:
            agreement.all_to_all = before
        told.append(count[0])
    return told


def lower_precision() -> dict[str, float]:
    """Errors beside float64, over those of one process: under autocast, and of a model in bfloat16."""
    right, found = decoder()(batch()), {}
    for name in ("autocast", "bfloat16"):
        kind = torch.float32 if name == "autocast" else torch.bfloat16
        whole = decoder().to(kind)
        net = synth.parallelize(copy.deepcopy(whole), SHAPE, mode="inference")
        given = batch().to(kind)
        with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16, enabled=name == "autocast"):
            one, other = whole(given), net(given).full_tensor()
        assert other.dtype == one.dtype == torch.bfloat16
        sizes = [float((each.double() - right).square().mean().sqrt()) for each in (other, one)]
        found[name] = sizes[0] / sizes[1]
    return found


def memory(axes: str) -> tuple[float, float]:
    """(bytes at most, as measured; as planned) of one pass on this rank, weights included."""
    shape, before = (1, 4, 48, 48), live_bytes()
    whole = decoder(16).float()
    plan = shared_plan(whole, shape, axes=axes, mode="inference")
    net = synth.parallelize(whole, shape, plan=plan, mode="inference")
    del whole
    shard = net.scatter(batch(shape).float(), "input")
    besides = before + shard.to_local().untyped_storage().nbytes()
    with torch.inference_mode():
        net(shard)
        resident = live_bytes() - besides
        measured = resident + least_peak(lambda: net(shard))
    return float(measured), 4.0 * plan.memory.peak[net.ranks.me]
