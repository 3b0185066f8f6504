"""Methods and attributes of the user's model, on real ranks beside one process."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.utils.checkpoint import checkpoint

import synth

SHAPE = 4, 3, 8, 8


class Coder(nn.Module):
    """An encoder, a decoder, and what users write beside `forward`."""

    downsampling = 1

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.SiLU())
        self.decoder = nn.Conv2d(6, 3, 3, padding=1)
        self.head, self.norm = nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.shift = nn.Parameter(torch.randn(4, 1, 1))
        self.config, self.factor = {"channels": 6}, 0.5

    def encode(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return self.encoder(x) * scale

    def decode(self, z: torch.Tensor, size: tuple[int, int] = (8, 8)) -> dict[str, Any]:
        return {"sample": self.decoder(z) * self.factor, "size": size}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.decode(self.encode(x))["sample"]
        return made

    def probabilities(self, x: torch.Tensor) -> torch.Tensor:
        return self(x).softmax(1)

    def loss(self, x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(self(x), target)

    @torch.no_grad()
    def frozen(
        self, x: torch.Tensor, *, mask: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.encode(x if mask is None else x * mask)
        return z, self.decode(z)["sample"]

    def other(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.head(x) + self.shift)

    def words(self) -> int:
        return sum(each.numel() for each in self.parameters())

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    @staticmethod
    def version() -> int:
        return 3


CALLS: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "encode": lambda net, x: net.encode(x),
    "a value": lambda net, x: net.encode(x, scale=3.0),
    "another shape": lambda net, x: net.encode(x[:, :, :6]),
    "a dict": lambda net, x: net.decode(net.encode(x))["sample"],
    "calls forward": lambda net, x: net.probabilities(x),
    "other weights than forward": lambda net, x: net.other(x),
    "a number": lambda net, x: net.loss(x, x),
    "two, one with a mask": lambda net, x: net.frozen(x, mask=x > 0)[0] + net.frozen(x)[1].sum(),
    "an attribute that changes": lambda net, x: _changed(net, x),
    "twice in a pass": lambda net, x: net.decode(net.encode(x) + net.encode(x * 2))["sample"] + net(x),
}


def _changed(net: Any, x: torch.Tensor) -> Any:
    first = net.decode(net.encode(x))["sample"]
    net.factor = 2.5
    later = net.decode(net.encode(x))["sample"]
    net.factor = 0.5
    return first - later


def model() -> Coder:
    torch.manual_seed(0)
    return Coder().double()


def whole(out: Any) -> torch.Tensor:
    values: torch.Tensor = out.full_tensor() if hasattr(out, "full_tensor") else out
    return values


def batch() -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def distances(name: str, plan: Any, check: bool = False) -> tuple[float, ...]:
    """From one process: of the output, of buffers, and of the gradients of weights and of the batch."""
    right, net = model(), synth.parallelize(model(), SHAPE, plan=plan, check=check)
    call, x, y = CALLS[name], batch().requires_grad_(), batch().requires_grad_()
    wanted, found = call(right, x), call(net, y)
    far = float((whole(found) - wanted).detach().abs().max())
    state = net.full_state_dict()
    buffers = max(float((state[key] - each).abs().max()) for key, each in right.named_buffers())
    if not wanted.requires_grad:
        assert not whole(found).requires_grad
        return far, buffers
    for each in (wanted, found):
        each.square().sum().backward()
    grads = {key: each.grad for key, each in right.named_parameters()}
    assert {key for key, each in net.named_parameters() if each.grad is not None} == {
        key for key, each in grads.items() if each is not None
    }
    pairs = [(each.grad, grads[key]) for key, each in net.named_parameters() if each.grad is not None]
    inward = float((whole(y.grad) - x.grad).abs().max()) if x.grad is not None else 0.0
    return far, buffers, max(float((whole(a) - b).abs().max()) for a, b in pairs), inward


def input_gradient() -> tuple[float, int, int]:
    """The gradient of a batch that was not asked for at first: distance, and words received and planned."""
    right, net = model(), synth.parallelize(model(), SHAPE, plan="spatial", check=False)
    x, y = batch().requires_grad_(), batch().requires_grad_()
    right(x).square().sum().backward()
    planned = net.planned_words(input_gradient=True).step[dist.get_rank()]
    before = net.received()
    out = net(y)
    out.square().sum().backward()
    counted = net.received() - before
    again = net(batch())  # without it
    again.square().sum().backward()
    assert y.grad is not None
    assert x.grad is not None
    return float((whole(y.grad) - x.grad).abs().max()), counted, planned


def attributes() -> list[Any]:
    """What is read from a network: of the instance, of the class, and by methods without tensors."""
    net: Any = synth.parallelize(model(), SHAPE, check=False, objective="words")
    names = {"encode", "config", "dtype", "parameters"} <= set(dir(net))
    read = [net.config, net.downsampling, net.dtype, net.device.type, net.words(), net.version(), names]
    made = copy.deepcopy(net)
    return [
        *read,
        hasattr(net, "nothing"),
        float((whole(made.encode(batch())) - net.encode(batch()).full_tensor()).abs().max()),
    ]


def refused(name: str) -> str:
    """What is said of a wrong call, and whether the network then still works."""
    net: Any = synth.parallelize(model(), SHAPE, check=False, objective="words")
    rank = dist.get_rank()
    calls: dict[str, Callable[[], Any]] = {
        "unknown": lambda: net.nothing(batch()),
        "no argument": lambda: net.encode(),
        "another method": lambda: (net.encode if rank else net.probabilities)(batch()),
        "another value": lambda: net.encode(batch(), scale=1.0 + rank),
        "mesh and procs": lambda: synth.parallelize(
            model(), SHAPE, procs=2, mesh=init_device_mesh("cpu", (dist.get_world_size(),))
        ),
    }
    said = "accepted"
    try:
        calls[name]()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
    assert float((whole(net(batch())) - model()(batch())).detach().abs().max()) < 1e-12
    return said


def meshed() -> float:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    net = synth.parallelize(model(), SHAPE, mesh=mesh, check=False, objective="words")
    return float((whole(net(batch())) - model()(batch())).detach().abs().max())


def checkpointed(name: str) -> tuple[float, float]:
    """The first call of a kind inside of a checkpoint: distances of the output and of gradients."""
    right, net = model(), synth.parallelize(model(), SHAPE, plan={"h": 2}, check=False)
    x = batch()[:, :, :6] if name == "another shape" else batch()
    calls: Any = (right.encode, net.encode) if name == "a method" else (right, net)
    wanted, found = (checkpoint(call, x, use_reentrant=False) for call in calls)
    far = float((whole(found) - wanted).detach().abs().max())
    for each in (wanted, found):
        each.square().sum().backward()
    grads = {key: each.grad for key, each in right.named_parameters()}
    pairs = [(each.grad, grads[key]) for key, each in net.named_parameters() if each.grad is not None]
    return far, max(float((whole(a) - b).abs().max()) for a, b in pairs if b is not None)


def under_autocast() -> tuple[float, bool]:
    """A method that is given what another one made in bfloat16: distance, and whether dtypes are alike."""
    right, net = model().float(), synth.parallelize(model().float(), SHAPE, plan={"h": 2}, check=False)
    x, made = batch().float(), list[torch.Tensor]()
    for each in (right, net):
        with torch.autocast("cpu", torch.bfloat16):
            made.append(each.decode(each.encode(x))["sample"])
    wanted, found = made
    return float((whole(found).float() - wanted.float()).detach().abs().max()), found.dtype == wanted.dtype


def parts() -> dict[str, Any]:
    """A network of a sequence has its parts by number, as the model has."""
    torch.manual_seed(0)
    right = nn.Sequential(nn.Conv2d(3, 5, 3, padding=1), nn.ReLU(), nn.Conv2d(5, 3, 3, padding=1)).double()
    net: Any = synth.parallelize(copy.deepcopy(right), SHAPE, check=False, objective="words")
    found: dict[str, Any] = {
        "kinds": [type(each).__name__ for each in net],
        "length": len(net),
        "weight": tuple(net[0].weight.shape),
        "last": net[-1] is net.get_submodule("2"),
        "in": net[1] in net,
        "copy": len(copy.deepcopy(net)),
        "true": bool(net),
    }
    new = nn.Conv2d(5, 2, 1).double()
    right[2], net[2] = copy.deepcopy(new), new
    found["replaced"] = float((whole(net(batch())) - right(batch())).detach().abs().max())
    plain = synth.parallelize(model(), SHAPE, check=False, objective="words")
    found["no parts"] = hasattr(type(plain), "__len__")
    return found


def saved_in_the_background(folder: str) -> dict[str, float]:
    """`async_save` saves the words of its call; later steps do not change them."""
    right, net = model(), synth.parallelize(model(), SHAPE, check=False, objective="words")
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    wanted = {key: each.clone() for key, each in net.full_state_dict().items()}
    own = dist.new_group(backend="gloo")  # of the thread that saves: messages of two threads would mix
    pending: Any = dcp.async_save({"net": net.state_dict()}, checkpoint_id=folder, process_group=own)
    net(batch()).square().sum().backward()
    optimizer.step()
    pending.result()
    moved = max(float((each - wanted[key]).abs().max()) for key, each in net.full_state_dict().items())
    state = {"net": net.state_dict()}
    dcp.load(state, checkpoint_id=folder)
    net.load_state_dict(state["net"])
    again = net.full_state_dict()
    right.eval(), net.eval()
    out = float((whole(net(batch())) - right(batch())).detach().abs().max())
    return {
        "moved": moved,
        "state": max(float((again[k] - v).abs().max()) for k, v in wanted.items()),
        "out": out,
    }


def other_batches() -> str:
    """What is said where each rank loads batches of its own."""
    net = synth.parallelize(model(), SHAPE, check=False, objective="words")
    try:
        net(batch() + dist.get_rank())
    except RuntimeError as error:
        return str(error)
    return "accepted"


class Named(nn.Module):
    """Has names that a network has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.own, self.entry, self.ranks = nn.Conv2d(3, 4, 3), 2, 3
        self.received = nn.Parameter(torch.full((4, 1, 1), 3.0))
        self.register_buffer("gather", torch.full((4, 1, 1), 5.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.own(x) * self.received * self.get_buffer("gather")
        return made * self.entry * self.ranks

    def metrics(self) -> int:
        return 5


def hidden_names() -> list[Any]:
    """What is said of them; whether the others are those of the model, and can be set."""
    with redirect_stderr(StringIO()) as lines:
        model = Named()
        net: Any = synth.parallelize(copy.deepcopy(model), SHAPE, check=False)
    said = [each for each in lines.getvalue().splitlines() if "cannot be reached" in each]
    try:
        net.ranks = 4
    except AttributeError as error:
        said.append(str(error))
    x = torch.ones(SHAPE)
    model(x).square().mean().backward()
    net(x).square().mean().backward()
    step = [each.grad.full_tensor() for each in net.parameters()]
    pairs = zip(model.parameters(), step, strict=True)
    right = all(torch.allclose(own.grad, each) for own, each in pairs if own.grad is not None)
    before = net(torch.ones(SHAPE)).full_tensor()
    net.entry = 6
    after = net(torch.ones(SHAPE)).full_tensor()
    near = torch.allclose(before, model(x)) and torch.allclose(after, 3 * before)
    return [*said, net.own.kernel_size, near, right]
