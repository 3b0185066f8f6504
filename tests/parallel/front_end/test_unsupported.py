"""What a model does that its graph would not show is refused in a sentence, before anything is planned."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import synth
from synth.base.errors import UsageError
from synth.parallel.front_end.import_model import import_model
from synth.runtime.tracing.trace import traced

SHAPE = 4, 8, 8, 8


def conv(size: int = 3) -> nn.Conv2d:
    return nn.Conv2d(8, 8, size, padding=size // 2)


def model() -> nn.Sequential:
    return nn.Sequential(conv(), nn.BatchNorm2d(8), nn.ReLU(), conv())


def hooked(place: int, register: str) -> nn.Module:
    made = model()
    getattr(made[place], register)(lambda *given: None)
    return made


def parameter_hooked(register: str) -> nn.Module:
    made = model()
    getattr(made[3].weight, register)(lambda *given: None)
    return made


def tied(what: str) -> nn.Module:
    made = model()
    if what == "memory":
        made[3].weight = nn.Parameter(made[0].weight.detach())
    else:
        made[3] = nn.ConvTranspose2d(8, 8, 3, padding=1)
        made[3].weight = nn.Parameter(made[0].weight.detach().transpose(0, 1))
    return made


def replaced() -> nn.Module:
    made = model()
    right = made[0].forward
    made[0].forward = lambda x: 2 * right(x)  # type: ignore[method-assign]
    return made


class Does(nn.Module):
    """Something after a convolution."""

    def __init__(self, what: Callable[[Any, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.conv, self.scale, self.what = conv(), nn.Parameter(torch.ones(8, 1, 1)), what
        self.register_buffer("mean", torch.zeros(8, 8, 8))
        self.norm = nn.InstanceNorm2d(8, track_running_stats=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.what(self, self.conv(x))


def writes(self: Any, x: torch.Tensor) -> torch.Tensor:
    x[:, torch.arange(8, device=x.device) > 3] = x[:, :4].clone()  # how many words is not known
    return x


def reads_before_it_writes(self: Any, x: torch.Tensor) -> torch.Tensor:
    part = x[:, :2]
    x[:, 0] = 0
    return part + 1


def writes_another_part(self: Any, x: torch.Tensor) -> torch.Tensor:
    part = x[:, 1]
    part += 1
    x[:, 0] = part  # of which x[:, 1] is another part that has changed
    return x


def writes_the_base(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.flatten(2)[:, 0] = 0
    return x


def writes_a_part(self: Any, x: torch.Tensor) -> torch.Tensor:
    x[:, :2].mul_(2)
    return x


def reads_a_changed_part(self: Any, x: torch.Tensor) -> torch.Tensor:
    part = x[:, :2]
    x.relu_()
    return part + 1


def writes_unseen(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x[:, 0] = 0  # its gradient goes on
    return x


def doubles_unseen(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        x.mul_(2)
    return x


def writes_data(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.data[:, 0] = 0
    return x


def changes_a_view_of_data(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.data[:, :2].mul_(2)
    return x


def sets_an_entry(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.mean[0] = x.mean((0, 1))
    return x


def follows(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.mean.lerp_(x.mean(0), 0.1)
    return x


def follows_anew(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.mean = self.mean.lerp(x.mean(0), 0.1)
    return x


def doubles_a_view(self: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        self.scale.view(-1).mul_(2)
    return x * self.scale


def mixes(self: Any, x: torch.Tensor) -> torch.Tensor:
    out = torch.zeros(x.shape, device=x.device)
    part = out[:, :4]
    out[:, :2] = x[:, :2]
    return out + part.sum()


def by_chance(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * random.random()


def by_chance_of_numpy(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if np.random.rand() < 2 else x


OWN_CHANCE, COUNTED = np.random.default_rng(0), itertools.count(1)


def by_chance_of_its_own(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * 2 if OWN_CHANCE.random() < 2 else x


def evaluates(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.norm.train(not self.training)
    made: torch.Tensor = self.norm(x)
    return made


def freezes(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.scale.requires_grad_(not self.scale.requires_grad)
    return x * self.scale


def counts_on(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x * next(COUNTED)


def checkpointed(self: Any, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(self.conv, x, use_reentrant=True)


def sets_data(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.data = x * 2
    return x


def changes_data(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.data.mul_(2)
    return x


def clamps(self: Any, x: torch.Tensor) -> torch.Tensor:
    self.scale.data.clamp_(0, 1)
    return x * self.scale


def asks_for_no_gradient(self: Any, x: torch.Tensor) -> torch.Tensor:
    part = x.detach()
    part.requires_grad = False
    return x + part


def hooks(self: Any, x: torch.Tensor) -> torch.Tensor:
    x.register_hook(lambda gradient: 2 * gradient)
    return x


def keeps_statistics_in_parts(self: Any, x: torch.Tensor) -> torch.Tensor:
    mean, spread = self.mean[0, 0], self.mean[1, 1]
    return nn.functional.batch_norm(x, mean, spread, training=True)


def keeps_statistics_in_copies(self: Any, x: torch.Tensor) -> torch.Tensor:
    mean, spread = self.norm.running_mean.clone(), self.norm.running_var.clone()
    x = torch.batch_norm(x, None, None, mean, spread, True, 0.1, 1e-5, False)
    return x - mean[:, None, None]


def keeps_statistics_of_samples(self: Any, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.instance_norm(x, self.mean[0, 0], self.mean[1, 1])


CASES: list[tuple[nn.Module, str]] = [
    (hooked(0, "register_forward_hook"), "the module 0 has a forward hook, which the ranks would not run;"),
    (hooked(2, "register_forward_pre_hook"), "the module 2 has a forward pre-hook, which"),
    (hooked(3, "register_full_backward_hook"), "the module 3 has a backward hook, which"),
    (hooked(1, "register_full_backward_pre_hook"), "the module 1 has a backward pre-hook, which"),
    (parameter_hooked("register_hook"), "the parameter 3.weight has a gradient hook, which"),
    (parameter_hooked("register_post_accumulate_grad_hook"), "3.weight has a hook after its gradient, which"),
    (replaced(), "the module 0 has a forward that is not its class's, which the ranks would not run; make"),
    (tied("memory"), "0.weight and 3.weight share their memory, but are two tensors, which the ranks would"),
    (tied("view"), "0.weight and 3.weight share their memory, but are two"),
    (Does(writes), "forward changes a tensor of (4, 8, 8, 8) in place by setitem, which the ranks would not"),
    (Does(writes_a_part), "a tensor of (4, 8, 8, 8) from conv is used after another call changed it in"),
    (Does(reads_before_it_writes), "a tensor of (4, 2, 8, 8) from getitem is used after another call"),
    (Does(writes_another_part), "a tensor of (4, 8, 8, 8) from conv is used after another call changed"),
    (Does(writes_the_base), "a tensor of (4, 8, 8, 8) from conv is used after another call"),
    (Does(writes_unseen), "a tensor of (4, 8, 8, 8) in place by setitem without gradients, which the ranks"),
    (Does(doubles_unseen), "a tensor of (4, 8, 8, 8) in place by mul without gradients, which the ranks"),
    (Does(reads_a_changed_part), "a tensor of (4, 2, 8, 8) from getitem is used after another call changed"),
    (
        Does(checkpointed),
        "forward calls CheckpointFunction, a torch.autograd.Function that takes a function, as",
    ),
    (Does(sets_data), "forward changes a tensor of (4, 8, 8, 8) in place by set, which"),
    (Does(changes_data), "forward changes a tensor of (4, 8, 8, 8) in place by mul, which"),
    (Does(writes_data), "forward changes a tensor of (4, 8, 8, 8) in place by setitem, which"),
    (Does(changes_a_view_of_data), "forward changes a tensor of (4, 2, 8, 8) in place by mul, which"),
    (Does(clamps), "forward changes scale in place by clamp, which"),
    (Does(asks_for_no_gradient), "forward changes a tensor of (4, 8, 8, 8) in place by set, which"),
    (Does(hooks), "forward changes a tensor of (4, 8, 8, 8) in place by register_hook, which"),
    (
        Does(sets_an_entry),
        "forward updates mean by setitem of values that have gradients, so that it would keep",
    ),
    (Does(follows), "forward updates mean by lerp of values that have gradients, so that it would keep the"),
    (Does(follows_anew), "forward updates mean by copy of values that have gradients, so that it would keep"),
    (Does(doubles_a_view), "scale in place by mul, which the ranks would not do; compute with a new tensor,"),
    *(
        (Does(what), f"a tensor of (8,) in place by {name}, which the ranks would not do; give it whole")
        for what, name in (
            (keeps_statistics_in_parts, "batch_norm"),
            (keeps_statistics_in_copies, "batch_norm"),
            (keeps_statistics_of_samples, "instance_norm"),
        )
    ),
    (Does(mixes), "forward changes a tensor of (4, 8, 8, 8) in place by setitem, which the ranks would not"),
    (
        Does(lambda self, x: self.scale.exp()),
        "the model gives exp as output, which is no result of its input;",
    ),
    (Does(by_chance), "Does draws from random numbers of Python or numpy in forward, which would be"),
    (Does(by_chance_of_numpy), "Does draws from random numbers of Python or numpy in forward, which would"),
    (Does(by_chance_of_its_own), "Does draws from random numbers of Python or numpy in forward, which would"),
    (Does(counts_on), "forward reads COUNTED, a count, whose next values the ranks would not take: they"),
    (
        Does(evaluates),
        "forward puts norm into another mode and calls it, which the ranks would not do;",
    ),
    (
        Does(freezes),
        "forward changes requires_grad of scale, which the ranks would not do; set it outside, or",
    ),
    (Does(lambda self, x: None), "the model gives no tensor; let its forward return one"),
    (Does(lambda self, x: {x}), "the model gives a set, of which the ranks cannot make another; give its"),
    (
        Does(lambda self, x: x if x.sum() > 0 else -x),
        "on meta tensors; forward reads the values of tensors in Python, which a graph does not show: compute"
        " with tensors instead, as by torch.where, or read the values before (test_unsupported.py:",
    ),
    (
        Does(lambda self, x: x.view(3, -1)),
        "; if the model runs on such an input in one process, make this call outside of it, on what the"
        " network gives (test_unsupported.py:",
    ),
]


@pytest.mark.parametrize(("made", "said"), CASES, ids=[said[:50] for _, said in CASES])
def test_it_is_refused(made: nn.Module, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the planner of models and by `synth import`, with one sentence."""
    with pytest.raises(ValueError, match=r"; |cannot be called") as caught:
        synth.plan_model(made, SHAPE, 4)
    sentence = str(caught.value)
    assert said in sentence
    assert "\n" not in sentence
    monkeypatch.setattr("synth.parallel.front_end.import_model.make_model", lambda factory: made)
    with pytest.raises(UsageError) as same:
        import_model("models:made", SHAPE)
    assert str(same.value) == sentence


@pytest.mark.filterwarnings("ignore:Complex modules")
def test_a_complex_model_says_that_a_shape_is_real() -> None:
    made = conv().to(torch.complex128)
    with pytest.raises(ValueError, match=r"give a complex example tensor instead$"):
        traced(made, SHAPE, torch.float64)
    assert traced(made, (torch.zeros(SHAPE, dtype=torch.complex128),), torch.float64)


def test_what_may_be_done_in_place() -> None:
    """A result that is given back, and what a layer does to itself."""

    def works(self: Any, x: torch.Tensor) -> torch.Tensor:
        x = x.add_(1).relu_()
        x *= self.scale
        return nn.functional.leaky_relu(x, 0.1, True)

    made = nn.Sequential(Does(works), nn.ReLU(inplace=True), nn.BatchNorm2d(8, momentum=None))
    names = [node.name for node in traced(made, SHAPE, torch.float32).nodes if node.op.startswith("call")]
    assert names == ["_0_conv", "add", "relu", "mul", "leaky_relu", "_1", "_2"]


def test_calls_without_gradients_are_known() -> None:
    def detaches(self: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = torch.relu(x)
        return x * self.scale

    with torch.no_grad():  # where a user asks does not matter
        graph = traced(Does(detaches), SHAPE, torch.float32)
    assert {node.name: node.meta["grad"] for node in graph.nodes if node.op.startswith("call")} == {
        "conv": True,
        "relu": False,
        "mul": True,
    }
