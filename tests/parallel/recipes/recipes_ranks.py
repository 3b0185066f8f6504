"""The recipes of the documentation on ranks, each beside the same training in one process."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

PAGE = Path(__file__).resolve().parents[3] / "docs" / "recipes.md"


def blocks() -> list[str]:
    """The Python blocks of the page, in order."""
    return re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def page(name: str) -> dict[str, Any]:
    """The names of the first block, and of the block that defines a function."""
    first, *others = blocks()
    block = next(each for each in others if f"def {name}(" in each)
    found: dict[str, Any] = {}
    exec(compile(f"{first}\n{block}", str(PAGE), "exec"), found)
    return found


def alone(names: dict[str, Any]) -> tuple[nn.Module, torch.Tensor]:
    """The model after the same steps in one process, and the last loss."""
    model = names["build"]()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for images, labels in names["batches"]():
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model, loss.detach()


def error(name: str) -> float:
    """How far a recipe's last loss, or its state, is from one process."""
    names = page(name)
    found = names[name]()
    model, loss = alone(names)
    if isinstance(found, torch.Tensor):
        return float((found.detach() - loss).abs())
    state = model.state_dict()
    assert found.keys() == state.keys()
    return max(float((found[key] - state[key]).abs().max()) for key in state)


def trainer() -> str:
    """What the Trainer of transformers meets."""
    import os

    from transformers import Trainer, TrainingArguments

    import synth

    os.environ["LOCAL_RANK"] = os.environ["RANK"]
    names = page("titan")
    net = synth.parallelize(names["build"](), (8, 3, 16, 16))
    rows = [{"input": image, "labels": label} for image, label in zip(*next(names["batches"]()), strict=True)]
    options: dict[str, Any] = {"use_cpu": True, "report_to": [], "max_steps": 1, "save_strategy": "no"}
    try:
        Trainer(net, TrainingArguments("unused", **options), train_dataset=rows).train()
    except Exception as fault:
        return f"{type(fault).__name__}: {fault}"
    return "no error"
