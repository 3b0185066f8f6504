"""How models are written: what their modules hold, share and count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from habits_table import Run, habit, sgd
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint


def model_habit(name: str, refused: str = "") -> Any:
    """A habit that is one model of (4, 3, 8, 6), in three steps and an evaluation."""

    def add(kind: type[nn.Module]) -> type[nn.Module]:
        def run(run: Run) -> None:
            model = run.made(kind)
            optimizer = sgd(model, 0.01)
            for _ in range(3):
                optimizer.zero_grad()
                out = model(run.x())
                run.note(out)
                out.pow(2).mean().backward()
                optimizer.step()
            run.note(model.eval()(run.x()), model(run.x()))

        habit(name, refused)(run)
        return kind

    return add


def conv(*channels: int, **more: Any) -> nn.Conv2d:
    return nn.Conv2d(*channels, 3, padding=1, **more)


@model_habit("tied weights of an encoder and a decoder")
class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bias = conv(3, 6), nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.conv_transpose2d(self.conv(x).relu(), self.conv.weight, self.bias, padding=1)


@model_habit("lists and dicts of parameters and modules")
class Lists(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.rand(6, 6, 1, 1)) for _ in range(2)])
        self.gains = nn.ParameterDict(
            {"a": nn.Parameter(torch.rand(1)), "b": nn.Parameter(torch.rand(6, 1, 1))}
        )
        self.ways = nn.ModuleDict({"in": conv(3, 6), "out": conv(6, 3)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.ways["in"](x)
        for weight in self.weights:
            x = x + functional.conv2d(x, weight) * self.gains["a"]
        return self.ways["out"](x * self.gains["b"])


@model_habit("modules in a plain list, which are not trained", refused="register it there")
class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.parts = conv(3, 6), [conv(6, 6).double(), conv(6, 3).double()]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        for part in self.parts:
            x = part(x).tanh()
        return x


@model_habit(
    "a counter that decides what is computed", refused="forward keeps steps from one call to the next"
)
class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.steps = conv(3, 3), 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        return self.conv(x) * min(1.0, self.steps / 2)


@model_habit("a flag of the first call", refused="forward keeps ready from one call to the next")
class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.ready = conv(3, 3), False
        self.scale = nn.Parameter(torch.ones(3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        if not self.ready:
            y, self.ready = y / y.std(), True
        return y * self.scale


@model_habit("a hidden state in an attribute", refused="forward keeps state from one call to the next")
class Hidden(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.state = conv(3, 3), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        if self.state is not None:
            y = y + 0.5 * self.state
        self.state = y.detach()
        return y


@model_habit("counters, caches and features that nobody reads again")
class Stored(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.calls, self.shape, self.grid, self.features = conv(3, 3), 0, None, None, {}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.shape != x.shape:
            self.shape, self.grid = x.shape, torch.linspace(0, 1, x.shape[-1]).to(x)
        y = self.conv(x + self.grid)
        self.features["conv"] = y
        return y


@model_habit("a buffer that counts and warms up")
class Warming(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.steps += 1
        return self.conv(x) * (self.steps / 2).clamp(max=1)


@model_habit("a moving average of activations in a buffer")
class Moving(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(0.1 * x.mean((0, 2, 3)))
        return x - self.mean.view(3, 1, 1)


class Ternary(torch.autograd.Function):
    """Signs, with a straight-through gradient."""

    @staticmethod
    def forward(ctx: Any, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(w)
        return w.sign()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (w,) = ctx.saved_tensors
        return gradient * (w.abs() < 1)


@model_habit("binary weights with a straight-through gradient")
class Binary(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = conv(3, 6), conv(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = functional.conv2d(x, Ternary.apply(self.first.weight), self.first.bias, padding=1)
        w = self.last.weight
        w = w + (w.sign() * w.abs().mean((1, 2, 3), keepdim=True) - w).detach()
        return functional.conv2d(torch.tanh(x), w, padding=1)


@model_habit("weights standardized in forward")
class Standardized(nn.Conv2d):
    def __init__(self) -> None:
        super().__init__(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        w = self.weight
        w = (w - w.mean((1, 2, 3), keepdim=True)) / (w.std((1, 2, 3), keepdim=True) + 1e-5)
        return self._conv_forward(x, w, self.bias)


@model_habit("a shared layer, an unused layer, an unused output")
class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.same, self.unused, self.last = conv(3, 6), conv(6, 6), conv(6, 6), conv(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for _ in range(3):
            x = functional.gelu(self.same(x)) + x
        self.unused(x)
        return self.last(x)


@model_habit("squeeze and excitation, gates, residuals in place")
class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.last = conv(3, 8), nn.Linear(4, 4), conv(4, 3)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = self.first(x).chunk(2, 1)
        y = a * b.sigmoid()
        s = self.gate(y.mean((2, 3))).sigmoid()
        y = y * s[:, :, None, None]
        y += a
        self.act(y)
        return self.last(y).add_(x)


@model_habit("positions, a class token, attention")
class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, 8, 2, stride=2)
        self.token, self.place = nn.Parameter(torch.rand(1, 1, 8)), nn.Parameter(torch.rand(1, 13, 8))
        self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True, norm_first=True)
        self.register_buffer("mask", torch.ones(13, 13).triu(1).bool(), persistent=False)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.block(x, src_mask=self.mask)[:, 0])


@model_habit("checkpoints and nested functions")
class Checkpoints(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            [nn.Sequential(conv(3, 3), nn.BatchNorm2d(3), nn.SiLU()) for _ in range(2)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = checkpoint(part, x, use_reentrant=False) if self.training else part(x)
        return x


@model_habit("numbers of a batch: normalized by its own statistics")
class Normalized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 4)
        self.register_buffer("mean", torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv((x - self.mean) / 0.25)
        low, high = x.amin((1, 2, 3), keepdim=True), x.amax((1, 2, 3), keepdim=True)
        return (x - low) / (high - low + 1e-6) * x.std() + x.shape[0]


@model_habit("a number of a batch, spread over a table")
class Spread(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        table: torch.Tensor = torch.ones(5, 4) * x.mean()
        return table + x.abs().max().permute(())


@model_habit("a coordinate grid, a lookup table, an einsum")
class Coordinates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.table, self.mix = conv(5, 6), nn.Embedding(4, 6), nn.Parameter(torch.rand(6, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, _, h, w = x.shape
        rows, columns = torch.meshgrid(torch.linspace(0, 1, h), torch.linspace(-1, 1, w), indexing="ij")
        grid = torch.stack([rows, columns]).to(x)[None].expand(n, -1, -1, -1)
        y = self.conv(torch.cat([x, grid], 1)) + self.table(torch.arange(n) % 4)[:, :, None, None]
        return torch.einsum("nchw,cd->ndhw", y, self.mix)


@model_habit("a recurrent cell over rows")
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.cell, self.head = conv(3, 4), nn.GRU(24, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x).permute(0, 2, 1, 3).flatten(2)
        return self.head(self.cell(y)[0][:, -1])


@model_habit("python floats and ints from buffers in __init__")
class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.power = conv(3, 3), nn.Parameter(torch.tensor(2.0))
        self.scale = float(torch.tensor(0.5)) ** 0.5
        self.limits = {"low": -1.0, "high": 1.0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.conv(x).abs() + 0.1).pow(self.power).clamp(
            self.limits["low"], self.limits["high"]
        ) * self.scale


@model_habit("auxiliary losses are left in attributes", refused="")
class Leaves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = conv(3, 3), None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv(x)
        self.norm = y.pow(2).mean()
        return y


@model_habit("noise in training only")
class Noisy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            x = x + 0.0 * torch.randn_like(x)
        return self.conv(x)


@model_habit("outputs by a flag of the module")
class Flagged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.logits = conv(3, 3), True

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(x) if self.logits and self.training else self.conv(x).softmax(1)


class Recording(nn.Module):
    """Does otherwise where gradients are recorded: by a checkpoint, or in what it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.gain = conv(3, 3), 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled() and self.conv.weight.requires_grad:
            x = checkpoint(self.conv, x, use_reentrant=False)
            return x if self.gain == 1.0 else self.gain * x
        return self.conv(x)


@habit("a checkpoint where gradients are recorded")
def recording(run: Run) -> None:
    model = run.made(Recording)
    model(run.x()).square().mean().backward()
    with torch.no_grad():
        run.note(model(run.x()))


@habit("other calls where gradients are recorded", "forward reads torch.is_grad_enabled() (habits_of_models")
def recording_otherwise(run: Run) -> None:
    model = run.made(Recording)
    model.gain = 2.0
    model(run.x()).square().mean().backward()
    with torch.no_grad():
        run.note(model(run.x()))


class Switched(nn.Module):
    """Computes by a switch of torch."""

    def __init__(self, read: Callable[[nn.Conv2d], Any]) -> None:
        super().__init__()
        self.conv, self.read = conv(3, 3), [read]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return -x if self.read[0](self.conv) else 2 * x


@habit("other calls under autocast")
def autocast_otherwise(run: Run) -> None:
    model = run.made(lambda: Switched(lambda _: torch.is_autocast_enabled("cpu")))
    for low in (False, True, False):
        with torch.autocast("cpu", torch.bfloat16, enabled=low):
            run.note(model(run.x()).float())


@habit("a dtype of autocast")
def autocast_dtypes(run: Run) -> None:
    model = run.made(lambda: Switched(lambda _: torch.get_autocast_dtype("cpu") == torch.float16))
    for low in (torch.bfloat16, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", low):
            run.note(model(run.x()).float())


@habit("other calls by the default dtype", "forward reads torch.get_default_dtype() (habits_of_models")
def default_dtype_otherwise(run: Run) -> None:
    before = torch.get_default_dtype()
    model = run.made(lambda: Switched(lambda _: torch.get_default_dtype() == torch.float16))
    torch.set_default_dtype(torch.float16)
    try:
        run.note(model(run.x()))
    finally:
        torch.set_default_dtype(before)


class Ordered(nn.Module):
    """Computes by how words lie in memory."""

    def __init__(self, read: Callable[[torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.read = conv(3, 3), [read]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.read[0](self.conv(x))


LAST = torch.channels_last


@habit("as_strided of words in another order")
def strided(run: Run) -> None:
    model = run.made(lambda: Ordered(lambda y: 2 * y.mT.as_strided((4, 2, 8, 4), (144, 48, 6, 1), 1)))
    run.note(model(run.x()))


@habit("as_strided of a batch in another order", "forward reads how words lie in memory (habits_of_models")
def strided_otherwise(run: Run) -> None:
    model = run.made(lambda: Ordered(lambda y: 2 * y.as_strided((4, 64), (144, 1))))
    run.note(model(run.x()), model(run.x().to(memory_format=LAST)))


@habit("contiguous() where words lie in another order")
def ordered(run: Run) -> None:
    model = run.made(lambda: Ordered(lambda y: 2 * (y if y.stride(-1) == 1 else y.contiguous())))
    run.note(model(run.x()), model(run.x().to(memory_format=LAST)))


@habit("other calls by the order of words", "forward reads how words lie in memory (habits_of_models")
def ordered_otherwise(run: Run) -> None:
    model = run.made(lambda: Ordered(lambda y: 2 * y if y.is_contiguous() else -y))
    run.note(model(run.x()), model(run.x().to(memory_format=LAST)))


@habit("as_strided of layers of another order", "conv.weight is channels_last, of which")
def weights_otherwise(run: Run) -> None:
    run.made(lambda: Ordered(lambda y: y.as_strided((4, 64), (144, 1))).to(memory_format=LAST))


@habit("as_strided of a part", "forward calls as_strided on a part of a tensor (habits_of_models")
def strided_part(run: Run) -> None:
    run.made(lambda: Ordered(lambda y: y[:, 1:].as_strided((4, 64), (144, 1))))


@habit(
    "other calls for a batch that is computed", "forward reads whether tensors are leaves (habits_of_models"
)
def computed_otherwise(run: Run) -> None:
    model = run.made(lambda: Ordered(lambda y: 2 * y if y.is_leaf else -y))
    run.note(model(run.x().requires_grad_().mul(2.0).detach()), model(run.x().requires_grad_().mul(2.0)))


@habit(
    "other calls where a parameter has a gradient", "forward reads the gradient of a tensor (habits_of_models"
)
def gradients_otherwise(run: Run) -> None:
    run.made(lambda: Switched(lambda part: part.weight.grad is not None))


@habit("other calls where parameters are frozen", "forward reads requires_grad of tensors (habits_of_models")
def frozen_otherwise(run: Run) -> None:
    model = run.made(Recording)
    model.gain = 2.0
    run.note(model(run.x()))
    model.requires_grad_(False)
    run.note(model(run.x()))
