"""What a model's class does in its own way: modes, states, parameters; and what it gives out."""

from __future__ import annotations

from typing import Any

import torch
from habits_table import Run, habit, sgd, steps
from torch import nn, optim
from torch.nn import functional
from torch.nn.utils import prune


def conv(*channels: int) -> nn.Conv2d:
    return nn.Conv2d(*channels, 3, padding=1)


class Plain(nn.Module):
    """Images of images, with a batch normalization."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn, self.last = conv(3, 4), nn.BatchNorm2d(4), conv(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.bn(self.first(x)).relu())


def trained(run: Run, model: Any, count: int = 1) -> None:
    """Steps of squares."""
    optimizer = sgd(model, 0.01)
    steps(run, model, optimizer, count, loss=lambda out, y: out.square().mean())


def whole_state(run: Run, model: Any) -> dict[str, Any]:
    """What the model would save in one process."""
    return model.full_state_dict() if run.on_ranks else model.state_dict()


class Frozen(Plain):
    """Keeps its normalization in evaluation."""

    def train(self, mode: bool = True, all_of_it: bool = False) -> Any:
        super().train(mode)
        self.bn.train(mode and all_of_it)
        return self


@habit("train() of the model's own keeps a normalization frozen")
def frozen(run: Run) -> None:
    model = run.made(Frozen)
    model.train()
    trained(run, model)
    model.eval()
    run.note(model(run.x()))
    assert not model.training
    assert model.train() is model
    assert model.training
    trained(run, model)
    model.train(True, all_of_it=True)
    trained(run, model)
    run.note(model.bn.training)


class Partly(Plain):
    """Only its last layer is trained."""

    def parameters(self, recurse: bool = True) -> Any:
        return self.last.parameters(recurse)

    def requires_grad_(self, requires_grad: bool = True) -> Any:
        self.first.requires_grad_(requires_grad)
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.last.zero_grad(set_to_none)


@habit("parameters(), zero_grad() and requires_grad_() of the model's own")
def partly(run: Run) -> None:
    model = run.made(Partly)
    trained(run, model, 2)
    model.zero_grad()
    run.note(*(p.grad is None for _, p in model.named_parameters()))
    model.requires_grad_(False)
    trained(run, model)


class Extra(Plain):
    """With a state that is no tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.factor

    def get_extra_state(self) -> Any:
        return torch.tensor(self.factor)

    def set_extra_state(self, state: Any) -> None:
        self.factor = int(state)


@habit("an extra state of the model")
def extra(run: Run) -> None:
    model, other = run.made(Extra), run.made(Extra)
    state = model.state_dict()
    model.factor = 3
    run.note(model(run.x()), model.get_extra_state())
    other.load_state_dict(model.state_dict())
    model.load_state_dict(state)
    run.note(model(run.x()), other(run.x()))
    one = Extra().double()
    one.load_state_dict(whole_state(run, other))
    run.note(one.factor)


class Adapted(Plain):
    """Saves some of its tensors, and loads them under other names."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {k: v for k, v in super().state_dict(*args, **kwargs).items() if "bn" not in k}

    def load_state_dict(self, state: Any, strict: bool = True) -> Any:  # type: ignore[override]
        return super().load_state_dict({k.removeprefix("module."): v for k, v in state.items()}, strict=False)


@habit("a state of the model's own keys")
def adapted(run: Run) -> None:
    model = run.made(Adapted)
    trained(run, model)
    state = {f"module.{k}": v * 2 for k, v in model.state_dict().items()}
    found = model.load_state_dict(state)
    run.note(len(state), len(found.missing_keys))
    trained(run, model)


class Part(nn.Module):
    """A factor, which older versions had ten times smaller."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain

    def _load_from_state_dict(self, state: Any, prefix: str, versions: Any, *rest: Any) -> None:
        if (versions.get("version") or 1) < 2:
            state[f"{prefix}gain"] = state[f"{prefix}gain"] * 10
        super()._load_from_state_dict(state, prefix, versions, *rest)


class Versions(Plain):
    """Of which older versions had another name for a factor."""

    _version = 2

    def __init__(self) -> None:
        super().__init__()
        self.part, self.scale = Part(), nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(super().forward(x)[:, :1]) * self.scale

    def _load_from_state_dict(self, state: Any, prefix: str, versions: Any, *rest: Any) -> None:
        if (versions.get("version") or 1) < 2:
            state[f"{prefix}scale"] = state.pop(f"{prefix}old") * 3
        super()._load_from_state_dict(state, prefix, versions, *rest)


@habit("states of older versions, and of this one")
def versions(run: Run) -> None:
    model = run.made(Versions)
    model.load_state_dict(model.state_dict())
    run.note(model(run.x()))
    one = Versions().double()
    one.load_state_dict(whole_state(run, model))
    run.note(one.scale, one.part.gain)
    model.load_state_dict(whole_state(run, model))
    run.note(model(run.x()))
    old = dict(model.state_dict())
    old["old"] = old.pop("scale")
    model.load_state_dict(old)
    run.note(model(run.x()))


def shortened(module: nn.Module, state: Any, prefix: str, versions: Any) -> None:
    del state[f"{prefix}last.bias"]


class Hooked(Plain):
    """With hooks of its state."""

    def __init__(self) -> None:
        super().__init__()
        self._register_load_state_dict_pre_hook(self.renamed)
        self.bn.register_load_state_dict_pre_hook(self.doubled)
        self.register_state_dict_post_hook(shortened)
        self.register_load_state_dict_post_hook(lambda model, found: found.missing_keys.clear())

    def renamed(self, state: Any, prefix: str, *rest: Any) -> None:
        if f"{prefix}head.weight" in state:
            state[f"{prefix}first.weight"] = state.pop(f"{prefix}head.weight")

    def doubled(self, module: nn.Module, state: Any, prefix: str, *rest: Any) -> None:
        state[f"{prefix}weight"] = state[f"{prefix}weight"] * 2


@habit("hooks of states")
def hooked(run: Run) -> None:
    model = run.made(Hooked)
    state = dict(model.state_dict())
    state["head.weight"] = state.pop("first.weight") * 2
    model.load_state_dict(state)
    run.note(len(state), model(run.x()))


@habit("a state without counts of batches")
def countless(run: Run) -> None:
    model = run.made(Plain)
    trained(run, model)
    model.load_state_dict({k: v * 2 for k, v in model.state_dict().items() if "num_batches" not in k})
    trained(run, model)


class Renamed(Plain):
    """Shows some of its parameters."""

    def named_parameters(self, *args: Any, **kwargs: Any) -> Any:
        return (pair for pair in super().named_parameters(*args, **kwargs) if "last" in pair[0])


@habit("named_parameters() of the model's own", refused="named_parameters of Renamed leaves out or renames")
def renamed(run: Run) -> None:
    run.made(Renamed)


class Switched(Plain):
    """Scales in training, and has a method that ends it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * (2 if self.training else 1)

    def freeze(self) -> None:
        self.first.requires_grad_(False)
        self.eval()


@habit("a function of all modules, methods that set modes")
def switched(run: Run) -> None:
    model = run.made(Switched)

    def start(module: nn.Module) -> None:
        if isinstance(module, Switched):
            nn.init.constant_(module.first.weight, 0.1)
        if isinstance(module, nn.BatchNorm2d):
            nn.init.constant_(module.weight, 0.5)

    assert model.apply(start) is model
    trained(run, model)
    model.freeze()
    run.note(model.training, model(run.x()))
    model.training = True
    run.note(model.training, model(run.x()))
    model.train()
    trained(run, model)


@habit("whole outputs are changed in place")
def whole_outputs(run: Run) -> None:
    model = run.maps()
    out = model(run.x())
    out = out.full_tensor() if run.on_ranks else out
    out.mul_(2).clamp_(-0.5, 0.5)
    out[:, 1] += run.randn(4, 8, 6)
    out.square().mean().backward()
    held = [p.full_tensor() if run.on_ranks else p.detach().clone() for p in model.parameters()]
    with torch.no_grad():
        for each in held:
            each.zero_()


# -- pruning ----------------------------------------------------------------------------------------------


@habit("pruning: more and more weights, made permanent")
def pruned(run: Run) -> None:
    model = run.classes()
    for part in (0.3, 0.5):
        prune.l1_unstructured(model.conv, "weight", part)
        prune.ln_structured(model.head, "weight", 0.4, 2, 1)
        steps(run, model, sgd(model))
    prune.remove(model.conv, "weight")
    steps(run, model, sgd(model))
    run.note(model.conv.weight, model.head.weight, (model.conv.weight == 0).sum())


@habit("pruning: all weights at once, and a mask by hand")
def pruned_at_once(run: Run) -> None:
    model = run.classes()
    prune.custom_from_mask(model.grouped, "weight", (run.randn(8, 4, 3, 3) > 0).double())
    both = [(model.conv, "weight"), (model.head, "weight")]
    prune.global_unstructured(both, prune.L1Unstructured, amount=0.3)
    steps(run, model, sgd(model))
    run.note(model.eval()(run.x()))


@habit("pruning before parallelize")
def pruned_before(run: Run) -> None:
    class Pruned(Plain):
        def __init__(self) -> None:
            super().__init__()
            prune.l1_unstructured(self.first, "weight", 0.4)
            prune.random_unstructured(self.last, "bias", 1)

    trained(run, run.made(Pruned), 2)


# -- embeddings, dtypes, outputs --------------------------------------------------------------------------


class Words(nn.Module):
    """Places of a small and of a large table."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.small, self.last = nn.Embedding(10, 4, **settings), conv(4, 3)
        self.large = nn.EmbeddingBag(3000, 4, mode="sum", **settings)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        places = (x[:, 0].abs() * 3).long().clamp(max=9)
        bag = self.large(places.flatten(1))
        return self.last(self.small(places).permute(0, 3, 1, 2) + bag[:, :, None, None])


@habit("sparse gradients of embeddings")
def sparse(run: Run) -> None:
    model = run.made(lambda: Words(sparse=True))
    trained(run, model, 3)
    for p in model.parameters():
        p.grad = None  # of which one process has the other layout


@habit("embeddings that keep their rows short", refused="small has max_norm=1.0, by which forward changes")
def short(run: Run) -> None:
    run.made(lambda: Words(max_norm=1.0))


class Converting(Plain):
    """Converts to the dtypes of its layers, and makes maps like its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.first(x.to(self.first.weight.dtype)))
        x = self.last(x.to(next(self.last.parameters()).dtype))
        return x * (2 * torch.ones_like(x)) + torch.full((), 0.5, dtype=x.dtype)


@habit("layers of other dtypes, which forward reads")
def converting(run: Run) -> None:
    model = run.made(Converting)
    trained(run, model)
    model.last.float()
    out = model(run.x())
    run.note(out.dtype == torch.float32)
    model.float()
    out = model(run.x().float())
    run.note(out.dtype == torch.float32)
    model.double()
    trained(run, model)


class Giving(nn.Module):
    """Gives parameters, buffers, and what it makes of no input, beside what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv(3, 4), conv(4, 3)
        self.scale, self.codes = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.rand(5, 3))
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("numbers", torch.arange(4))

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        before = self.mean.clone()
        if self.training:
            self.mean.mul_(0.9).add_(0.1 * x.detach().mean((0, 2, 3)))
        rows, columns = torch.meshgrid(*map(torch.arange, x.shape[2:]), indexing="ij")
        held = self.codes, self.mean, self.numbers, self.numbers > 2
        made = self.scale.exp(), before, torch.stack([rows, columns], -1), torch.tensor(3)
        return {"maps": self.last(x - self.mean[:, None, None]), "held": held, "made": made}


@habit("outputs that are no results of the input: a scale, anchors, a codebook")
def giving(run: Run) -> None:
    model = run.made(Giving)
    optimizer = optim.SGD(model.parameters(), 0.01, momentum=0.9, weight_decay=0.1)
    for number in range(3):
        out = model(run.x())
        run.note(out["maps"], *out["held"], *out["made"])
        loss = out["maps"].square().mean() * out["made"][0]
        if number:
            loss = loss + functional.mse_loss(out["held"][0], run.randn(5, 3))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    out = model.eval()(run.x())
    run.note(out["maps"], *out["held"], *out["made"])


@habit("several gradients at once", refused="several gradients of (4, 5) at once")
def at_once(run: Run) -> None:
    model, x = run.classes(), run.x().requires_grad_()
    one = torch.eye(5).double()
    torch.autograd.grad(model.eval()(x).square().sum(0), x, one, is_grads_batched=True)
