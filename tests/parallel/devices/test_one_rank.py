"""Networks on one rank, which exchanges nothing: as fast as the model itself, in its own memory format."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import _foreach_supported_types

import synth
from synth.base.errors import UsageError
from synth.runtime.model.network import Network
from synth.runtime.tensor.operations import dispatch
from synth.runtime.tensor.partitioned import PartitionedTensor


@pytest.fixture(scope="module", autouse=True)
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("dims", [2, 3])
def test_channels_last_stays(dims: int) -> None:
    last: Any = {2: torch.channels_last, 3: torch.channels_last_3d}[dims]
    conv: Any = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
    norm: Any = {2: nn.BatchNorm2d, 3: nn.BatchNorm3d}[dims]
    torch.manual_seed(0)
    layers = conv(4, 8, 3, padding=1), norm(8), nn.ReLU(), conv(8, 6, 3, 2, groups=2), conv(6, 5, 1)
    model = nn.Sequential(*layers).double().to(memory_format=last)
    batch = torch.randn(2, 4, *[8] * dims, dtype=torch.float64).contiguous(memory_format=last)
    net: Any = synth.parallelize(copy.deepcopy(model), batch.shape)
    out, right = net(batch), model(batch)
    assert out.to_local().stride() == right.stride()
    for each in (out, right):
        each.square().mean().backward()
    torch.testing.assert_close(out.full_tensor(), right)
    for ours, theirs in zip(net.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)
        if theirs.dim() == 1:
            continue
        if dims == 3:  # a processor's kernels make 3-D gradients contiguous
            continue
        places = slice(-dims - 2, None)  # a layer with groups has a dimension of them
        assert ours.to_local().stride()[places] == theirs.stride()
        assert ours.grad.to_local().stride()[places] == theirs.grad.stride()


def test_norms_of_all_gradients_are_one_operation(monkeypatch: pytest.MonkeyPatch) -> None:
    """On several ranks one message; on a GPU few kernels. Optimizers on a GPU take lists, too."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).double()
    batch = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    net: Any = synth.parallelize(copy.deepcopy(model), batch.shape)
    for each in (net, model):
        each(batch).square().mean().backward()
    called: list[str] = []
    rule = dispatch.rule_of
    monkeypatch.setattr(
        dispatch, "rule_of", lambda func: called.append(dispatch.short_name(func)) or rule(func)
    )
    ours, theirs = (nn.utils.clip_grad_norm_(each.parameters(), 0.01) for each in (net, model))
    torch.testing.assert_close(ours, theirs)
    assert called.count("_foreach_norm") == 1
    assert not any("vector_norm" in name for name in called)
    for mine, right in zip(net.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), right.grad)
    assert PartitionedTensor in _foreach_supported_types


@pytest.mark.parametrize("norm", [nn.GroupNorm(2, 4), nn.GroupNorm(4, 4, affine=False), nn.InstanceNorm2d(4)])
def test_group_norms_are_those_of_torch(norm: nn.Module, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), norm, nn.SiLU()).double()
    batch = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    net: Any = synth.parallelize(copy.deepcopy(model), batch.shape)
    monkeypatch.setattr("synth.runtime.rules.group_norm.NormalizeGroups", None)  # several kernels
    out, right = net(batch), model(batch)
    torch.testing.assert_close(out.full_tensor(), right)
    for each in (out, right):
        each.square().mean().backward()
    for ours, theirs in zip(net.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad)


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, 0.01, amsgrad=True, weight_decay=0.01, foreach=True),
    "adamw": lambda p: torch.optim.AdamW(p, 0.01, foreach=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, 0.01, momentum=0.5, centered=True, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.01, lr_decay=0.1, foreach=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, 0.5, foreach=True),
    "adamax": lambda p: torch.optim.Adamax(p, 0.01, foreach=True),
    "nadam": lambda p: torch.optim.NAdam(p, 0.01, foreach=True),
    "radam": lambda p: torch.optim.RAdam(p, 0.1, foreach=True),
    "asgd": lambda p: torch.optim.ASGD(p, 0.01, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_take_lists(name: str) -> None:
    """As they do on a GPU by default."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Conv2d(4, 2, 1)).double()
    batch = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    net: Any = synth.parallelize(copy.deepcopy(model), batch.shape)
    for each in (net, model):
        optimizer = OPTIMIZERS[name](each.parameters())
        for _ in range(7):  # RAdam adapts from the sixth step on
            optimizer.zero_grad()
            each(batch).square().mean().backward()
            optimizer.step()
    state = net.full_state_dict()
    for key, values in model.state_dict().items():
        if key != "0.bias":  # its gradient is nothing but rounding
            torch.testing.assert_close(state[key], values, msg=f"{name}: {key}")


def test_two_threads_that_make_networks_at_once_are_refused() -> None:
    entered, go_on = threading.Event(), threading.Event()

    class Slow(nn.Conv2d):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            entered.set()
            assert go_on.wait(60)
            return super().forward(x)

    def parallelized(model: nn.Module) -> Any:
        return synth.parallelize(model, (2, 3, 6, 6), check=False)

    with ThreadPoolExecutor(1) as other:
        first = other.submit(parallelized, Slow(3, 4, 3))
        assert entered.wait(60)
        with pytest.raises(UsageError, match="two threads of this process make networks at once"):
            parallelized(nn.Conv2d(3, 4, 3))
        go_on.set()
        with pytest.raises(UsageError, match="call parallelize in one thread"):
            first.result()
    assert parallelized(nn.Conv2d(3, 4, 3))(torch.zeros(2, 3, 6, 6)).shape == (2, 4, 4, 4)


def test_a_network_and_its_copies_are_of_the_class_of_the_model() -> None:
    class Model(nn.Sequential):
        def extents(self) -> int:
            return len(self)

    net: Any = synth.parallelize(Model(nn.Conv2d(3, 4, 3), nn.ReLU()), (2, 3, 6, 6), check=False)
    for each in (net, copy.deepcopy(net)):
        assert isinstance(each, Model)
        assert isinstance(each, Network)
        assert not isinstance(each, nn.Conv2d)
        assert each.extents() == 2
        assert isinstance(each[0], nn.Conv2d)
        assert [type(part) for part in each.modules() if isinstance(part, Model)] == [type(net)]
        assert each(torch.zeros(2, 3, 6, 6)).shape == (2, 4, 4, 4)
        with pytest.raises(ValueError, match="parallelized already"):
            synth.parallelize(each, (2, 3, 6, 6))


SAVED: dict[str, Any] = {  # name -> a call whose gradient reads its operand `a`, or its result
    "product": lambda net, a: (a, a * a),
    "quotient": lambda net, a: (a, 1 / (a * a + 1)),
    "power": lambda net, a: (a, a**3),
    "gelu": lambda net, a: (a, functional.gelu(a)),
    "convolution": lambda net, a: (a, net.conv(a)),
    "transposed": lambda net, a: (a, functional.conv_transpose2d(a, net.conv.weight, padding=1)),
    "batch norm": lambda net, a: (a, net.batch(a)),
    "group norm": lambda net, a: (a, net.group(a)),
    "pool": lambda net, a: (a, functional.max_pool2d(a, 3, 1, 1)),
    "matrices": lambda net, a: (a, a @ a.mT @ a),
    "exponential": lambda net, a: [a.exp()] * 2,
    "relu": lambda net, a: [a.relu()] * 2,
    "softmax": lambda net, a: [a.softmax(1)] * 2,
}


class Saved(nn.Module):
    """A model that changes what autograd has saved: in place, or not."""

    def __init__(self, name: str, in_place: bool) -> None:
        super().__init__()
        self.name, self.in_place = name, in_place
        self.first, self.conv = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.batch, self.group = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        a, b = SAVED[self.name](self, self.first(x) * 2)
        result = b + 0
        if self.in_place:
            a += 1
            a.mul_(3)
        return self.conv(result)


@pytest.mark.parametrize("name", SAVED)
def test_what_autograd_saved_keeps_its_values(name: str) -> None:
    """Torch refuses to differentiate these; a network makes new tensors, whose gradients are right."""
    model = Saved(name, True).double()
    right = Saved(name, False).double()
    right.load_state_dict(model.state_dict())
    batch = torch.randn(2, 3, 8, 6, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        model(batch).square().sum().backward()
    net: Any = synth.parallelize(Saved(name, True).double(), batch.shape)
    net.load_state_dict(right.state_dict())
    for each in (net, right):
        each(batch).square().sum().backward()
    for (key, ours), theirs in zip(net.named_parameters(), right.parameters(), strict=True):
        if theirs.grad is not None:
            torch.testing.assert_close(ours.grad.full_tensor(), theirs.grad, msg=key)
