"""What the ranks of the accelerate tests do: its usual loop around a network."""

from __future__ import annotations

import copy
import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import synth

SHAPE = (4, 3, 8, 8)


def model_of() -> nn.Sequential:
    """A small model, alike on all ranks."""
    torch.manual_seed(0)
    first = nn.Conv2d(3, 8, 3, padding=1, bias=False)
    layers = first, nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(*layers).double()


def accelerator_of(**options: Any) -> Any:
    """An accelerator on the ranks that are here."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    AcceleratorState._reset_state(True)
    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    return Accelerator(cpu=True, **options)


def loop(plan: Any) -> float:
    """Prepared optimizer and schedule, accumulation of two batches, clipping: beside the same by hand."""
    whole = model_of()
    net = synth.parallelize(copy.deepcopy(whole), SHAPE, plan=plan)
    accelerator = accelerator_of(gradient_accumulation_steps=2)
    assert accelerator.num_processes == dist.get_world_size()
    optimizers = [torch.optim.AdamW(m.parameters(), lr=0.05) for m in (net, whole)]
    schedules = [torch.optim.lr_scheduler.ExponentialLR(each, 0.8) for each in optimizers]
    prepared, schedule = accelerator.prepare(optimizers[0], schedules[0])
    errors = [0.0]
    for step in range(4):
        batch = torch.randn(SHAPE, dtype=torch.float64)
        labels = torch.randint(4, SHAPE[:1])
        with accelerator.accumulate(net):
            loss = nn.functional.cross_entropy(net(batch), labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 0.1)
            prepared.step()
            schedule.step()
            prepared.zero_grad()
        right = nn.functional.cross_entropy(whole(batch), labels)
        (right / 2).backward()
        if step % 2:
            nn.utils.clip_grad_norm_(whole.parameters(), 0.1)
            optimizers[1].step()
            for _ in range(dist.get_world_size()):  # as accelerate counts steps of all processes
                schedules[1].step()
            optimizers[1].zero_grad()
        errors.append(float((loss.detach() - right.detach()).abs()))
    state = net.full_state_dict()
    return max(*errors, *(float((state[k] - v).abs().max()) for k, v in whole.state_dict().items()))


def refused(what: str) -> str:
    """What is said where the network or a loader is prepared."""
    net = synth.parallelize(model_of(), SHAPE)
    accelerator = accelerator_of()
    try:
        if what == "network":
            accelerator.prepare(net)
        samples = TensorDataset(torch.randn(16, *SHAPE[1:], dtype=torch.float64))
        for (batch,) in accelerator.prepare(DataLoader(samples, batch_size=4)):
            net(batch)
    except (ValueError, RuntimeError) as error:
        return str(error)
    return ""
