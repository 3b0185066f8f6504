"""What one rank of the tests of real networks does: ten steps beside one process, which is on rank 0.

argv: network, plan, optimizer, memory in bytes or -, folder.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import synth
from examples.models import CosmoFlow, ResNet

Factory = Callable[[], nn.Module]
NETWORKS: dict[str, tuple[Factory, tuple[int, ...], int]] = {  # and outputs
    "resnet50": (lambda: ResNet(classes=10), (8, 3, 32, 32), 10),
    "wrn50_4": (lambda: ResNet(base=16, wide=4, classes=10), (8, 3, 32, 32), 10),
    "cosmoflow": (lambda: CosmoFlow(32, norms=0), (2, 4, 32, 32, 32), 4),
    "cosmoflow64": (lambda: CosmoFlow(64, norms=4), (2, 4, 64, 64, 64), 4),
}
MIXED: dict[str, Any] = {  # by what the names of layers begin with
    "conv1": {"h": 2, "w": 2},
    "stages.0": {"b": 4},
    "stages.1": {"b": 2, "h": 2},
    "stages.2": {"c": 2, "k": 2},
    "stages.3": {"k": 4},
    "fc": {"b": 2, "k": 2},
}
PLANS: dict[str, Any] = {
    "planned": None,
    "data": {"b": 4},
    "spatial": {"h": 2, "w": 2},
    "channel": {"c": 4},
    "filter": {"k": 4},
    "hybrid": {"b": 2, "k": 2},
    "mixed": MIXED,
    "volume": {"d": 2, "h": 2},
}
STEPS = 10


def given(how: str, model: nn.Module, shape: tuple[int, ...], memory: int | None) -> Any:
    """The plan, by the names of layers where they differ."""
    if how == "volume" and memory:
        return synth.plan_model(model, shape, 4, memory=memory, axes="dh")
    if how != "mixed":
        return PLANS[how]
    layers = [n for n, m in model.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    return {name: next(grid for start, grid in MIXED.items() if name.startswith(start)) for name in layers}


def trained(model: nn.Module, optimizer: str, batch: Callable[[int], Any], run: Any) -> list[float]:
    """The losses of some steps."""
    kinds = {
        "sgd": (torch.optim.SGD, {"lr": 1e-5, "momentum": 0.9}),
        "adam": (torch.optim.Adam, {"lr": 1e-5}),
    }
    kind, options = kinds[optimizer]
    steps = kind(model.parameters(), **options)
    losses = []
    for step in range(STEPS):
        values, targets = batch(step)
        loss = nn.functional.mse_loss(run(values), targets)
        steps.zero_grad()
        loss.backward()
        steps.step()
        losses.append(float(loss.detach()))
    return losses


def main() -> None:
    """Trains on the ranks; rank 0 also alone, and writes how far they are apart."""
    name, how, optimizer, memory, folder = sys.argv[1:6]
    dist.init_process_group("gloo")
    factory, shape, outputs = NETWORKS[name]
    torch.manual_seed(0)
    whole = factory().double()

    def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
        noise = torch.Generator().manual_seed(step)
        draw = {"generator": noise, "dtype": torch.float64}
        return torch.randn(shape, **draw), torch.randn(shape[0], outputs, **draw)  # type: ignore[call-overload]

    begin = time.time()
    limit = None if memory == "-" else int(memory)
    net = synth.parallelize(whole, shape, plan=given(how, whole, shape, limit), memory=limit)
    made = time.time()
    losses = trained(net, optimizer, batch, lambda values: net.gather(net(net.scatter(values))))
    seconds = time.time() - made
    state = net.full_state_dict()
    if dist.get_rank() == 0:
        alone = trained(whole, optimizer, batch, whole)
        end = whole.state_dict()
        apart = {k: float((state[k] - v).abs().max() / v.abs().max().clamp(min=1e-6)) for k, v in end.items()}
        result = {
            "loss": max(abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=True)),
            "weights": max(apart.values()),
            "by_step": [abs(a - b) / abs(b) for a, b in zip(losses, alone, strict=True)],
            "where": max(apart, key=apart.__getitem__),
            "losses": [alone[0], alone[-1]],
            "parameters": sum(p.numel() for p in whole.parameters()),
            "messages": net.program.buckets.messages / STEPS,
            "shared": sum(len(b.shared) for b in net.program.buckets.buckets),
            "seconds": [made - begin, seconds],
        }
        Path(folder, "apart.json").write_text(json.dumps(result))
        print(name, how, optimizer, json.dumps(result), flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
