"""A model and its network side by side in one process: mistakes are found and named, nothing is changed."""

from __future__ import annotations

import gc
import inspect
import itertools
import random
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from small_networks import Residual
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from wild import Deep, Noisy, wild
from zoo import as_they_are, own, tiny

import synth
from synth.cli.main import main
from synth.parallel.front_end.trace_model import trace_model
from synth.parallel.self_check.comparison import Comparison
from synth.runtime.layers.norms import rule_norms
from synth.runtime.layers.norms.batch_norm import BatchNorm
from synth.runtime.layers.steps.dropout import Drop
from synth.runtime.model import execute, network
from synth.runtime.model.network import Network
from synth.runtime.model.self_check.deadline import Deadline
from synth.runtime.operators.call import Call
from synth.runtime.rules.reductions import CutReduction
from synth.runtime.tracing import composed, trace
from synth.runtime.tracing.inputs import Inputs
from synth.runtime.tracing.surroundings import outside

MODELS: dict[str, Callable[[], Any]] = {
    **{
        name: (lambda name=name: tiny()[name])
        for name in ("resnet", "convnext", "regnet", "densenet", "unet3")
    },
    **{name: (lambda name=name: own()[name]) for name in own()},
    **{
        name: (lambda name=name: (as_they_are()[name], (4, 4, 8, 8)))
        for name in ("partly", "first", "averaged")
    },
    **wild(),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.one_in(12)
def test_models_are_as_in_one_process(name: str) -> None:
    found = synth.check(*MODELS[name]())
    assert found.done, found
    assert not found.notes, found
    assert found.modes[:1] + found.modes[-1:] in {
        ("training", "evaluation"),
        ("training of some modules", "evaluation"),
    }
    assert found.dtype == "float64"
    assert found.calls > 1
    assert f"in {found.calls} calls" in str(found)


# -- mistakes ------------------------------------------------------------------------------------------------


class Parts(nn.Module):
    """One of each kind of call that the mistakes below are in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.drop, self.rows = nn.Dropout(0.5), nn.LayerNorm(4)
        self.last = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = self.first(x)
        made = self.norm(made)
        made = self.drop(made)
        made = torch.add(made, x, alpha=0.5)
        made = made.mean(1)
        made = made.mean(2)
        made = self.rows(made)
        made = self.last(made)
        return made + made.var()


def line_of(text: str) -> str:
    """The line of `Parts.forward` with a text, as messages show it."""
    lines, first = inspect.getsourcelines(Parts.forward)
    (number,) = (first + index for index, line in enumerate(lines) if text in line)
    return f"(test_check.py:{number})"


Patch = Callable[[pytest.MonkeyPatch], None]


def argument_dropped(patch: pytest.MonkeyPatch) -> None:
    """Steps call functions without the arguments that are given by name."""
    filled = Call.filled

    def without(self: Call, *args: Any, **kwargs: Any) -> Any:
        given = self.node.kwargs
        self.node.kwargs = {}
        try:
            return filled(self, *args, **kwargs)
        finally:
            self.node.kwargs = given

    patch.setattr(Call, "filled", without)


def wrong_eps(patch: pytest.MonkeyPatch) -> None:
    rule_of = rule_norms.layer_norm
    patch.setattr(rule_norms, "layer_norm", lambda eps, *how: rule_of(lambda: 2 * eps(), *how))


def rows_for_channels(patch: pytest.MonkeyPatch) -> None:
    call = CutReduction.__call__

    def wrong(self: CutReduction, shard: torch.Tensor) -> torch.Tensor:
        return call(self, shard.transpose(1, 2).contiguous() if shard.dim() == 4 else shard)

    patch.setattr(CutReduction, "__call__", wrong)


def gradient_not_dropped(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Drop, "backward", staticmethod(lambda ctx, gradient: (gradient * ctx.scale, None, None)))


def statistics_changed_twice(patch: pytest.MonkeyPatch) -> None:
    forward = BatchNorm.forward

    def wrong(self: Any, shard: torch.Tensor) -> torch.Tensor:
        made = forward(self, shard)
        if self.training:
            self.running_var.data.mul_(1.01)
        return made

    patch.setattr(BatchNorm, "forward", wrong)


def mode_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(network, "follow", lambda *_: None)


def another_function_in_parts(patch: pytest.MonkeyPatch) -> None:
    """A function that is traced as its parts gives something else than in one call."""
    patch.setitem(composed.PARTS, torch.Tensor.var, composed.PARTS[torch.Tensor.std])


MISTAKES: dict[str, tuple[Patch, str, str, str]] = {  # -> what is wrong, the call, its line, the mode
    "argument dropped": (argument_dropped, "add", "torch.add", "training"),
    "wrong eps": (wrong_eps, "rows", "self.rows(", "training"),
    "rows for channels": (rows_for_channels, "mean", "mean(1)", "training"),
    "gradient": (gradient_not_dropped, "drop", "self.drop(", "training"),
    "statistics": (statistics_changed_twice, "norm", "self.norm(", "training"),
    "mode": (mode_ignored, "norm", "self.norm(", "evaluation"),
    "parts": (another_function_in_parts, "reshape", "made.var(", "training"),
}


@pytest.mark.parametrize("name", MISTAKES)
@pytest.mark.one_in(4)
def test_mistakes_are_found_and_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong, call, line, mode = MISTAKES[name]
    assert synth.check(Parts(), (4, 4, 4, 4)).done
    wrong(monkeypatch)
    with pytest.raises(synth.CheckError) as caught:
        synth.check(Parts(), (4, 4, 4, 4))
    sentence = str(caught.value)
    assert sentence.startswith(f"{call} {line_of(line)} gives something else on ranks"), sentence
    assert f"in {mode}: " in sentence
    assert "\n" not in sentence


def test_an_effect_of_a_hook_that_is_dropped_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hooks are refused where a model is traced; here nothing refuses them."""
    model = Parts()
    model.first.register_forward_hook(lambda module, given, made: 1.5 * made)
    monkeypatch.setattr(trace, "check_supported", lambda model: None)
    with pytest.raises(synth.CheckError, match=r"^first ") as caught:
        synth.check(model, (4, 4, 4, 4))
    assert line_of("self.first(") in str(caught.value)


def test_a_network_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: Any, shard: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no such rows")

    monkeypatch.setattr(CutReduction, "__call__", fails)
    with pytest.raises(synth.CheckError, match=r"^mean .* fails on ranks.*: no such rows"):
        synth.check(Parts(), (4, 4, 4, 4))


def test_a_backward_pass_that_fails_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(ctx: Any, gradient: torch.Tensor) -> Any:
        raise RuntimeError("no such rows")

    monkeypatch.setattr(Drop, "backward", staticmethod(fails))
    with pytest.raises(synth.CheckError, match=r"^the backward pass fails on ranks.*: no such rows"):
        synth.check(Parts(), (4, 4, 4, 4))


class Again(nn.Module):
    """Computes statistics again in the backward pass, which changes them again."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = checkpoint(self.part, x, use_reentrant=False)
        return made


def test_statistics_are_those_of_the_forward_pass() -> None:
    assert synth.check(Again(), (2, 4, 8, 8)).modes == ("training", "evaluation")


class Nested(Again):
    """Does so in a checkpoint inside of another one, which torch does not run again."""

    def __init__(self, drop: float) -> None:
        super().__init__()
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = super().forward
        made: torch.Tensor = checkpoint(lambda x: inner(self.drop(x)), x, use_reentrant=False)
        return made


@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_statistics_after_the_backward_pass_are_compared(
    drop: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert synth.check(Nested(drop), (2, 4, 8, 8)).modes == ("training", "evaluation")
    monkeypatch.setattr(execute, "_names", lambda parts: frozenset())
    with pytest.raises(synth.CheckError, match=r"^part\.1 .*in training: part\.1\.[a-z_]+ (is off|differs)"):
        synth.check(Nested(drop), (2, 4, 8, 8))


@pytest.mark.filterwarnings("ignore:.*spectral_norm:FutureWarning")
def test_gradients_are_those_of_weights_that_a_checkpoint_computes_again() -> None:
    model = Again()
    nn.utils.spectral_norm(model.part[0])
    assert synth.check(model, (2, 4, 8, 8)).modes == ("training", "evaluation")


@pytest.mark.parametrize("kind", [nn.Dropout, nn.Dropout2d, nn.AlphaDropout])
@pytest.mark.parametrize("in_place", [False, True])
def test_dropout_is_compared_with_the_mask_of_the_network(kind: Any, in_place: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 40, 3), kind(0.3, in_place), nn.Conv2d(40, 2, 3))
    assert synth.check(model, (4, 3, 12, 12)).modes == ("training", "evaluation")


class Words(nn.Module):
    """A single word times another one that is an input; it may be dropped."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3)

    def forward(self, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return functional.dropout(self.conv(x).mean() * factor, 0.5, self.training)


def test_single_words_are_as_in_one_process() -> None:
    found = synth.check(Words(), synth.Inputs((4, 2, 8), torch.tensor(2.0)))
    assert found.modes == ("training", "evaluation")


def test_a_wrong_share_of_dropped_words_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from synth.runtime.layers.steps.dropout import Dropout

    kept = Dropout._kept
    monkeypatch.setattr(Dropout, "_kept", lambda self, device: torch.ones_like(kept(self, device)))
    with pytest.raises(synth.CheckError, match=r"^drop "):
        synth.check(Parts(), (8, 4, 4, 4))


@pytest.mark.parametrize("model", [Noisy, Deep])
def test_noise_is_that_of_the_network(model: Any) -> None:
    found = synth.check(model(), (4, 4, 8, 8))
    assert found.modes == ("training", "evaluation"), found


# -- nothing is changed --------------------------------------------------------------------------------------


def state_of(model: nn.Module) -> dict[str, Any]:
    """All that a comparison might change."""
    numpy_state: Any = np.random.get_state()
    modules = dict(model.named_modules())
    return {
        "values": {name: (id(each), each._version, each.detach().clone()) for name, each in model.state_dict(
            keep_vars=True).items()},
        "gradients": {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()},
        "trained": {n: p.requires_grad for n, p in model.named_parameters()},
        "modes": {name: each.training for name, each in modules.items()},
        "hooks": {n: (len(m._forward_hooks), len(m._forward_pre_hooks)) for n, m in modules.items()},
        "attributes": {name: sorted(vars(each)) for name, each in modules.items()},
        "torch": torch.get_rng_state(),
        "numpy": (numpy_state[1].tolist(), numpy_state[2:]),
        "python": random.getstate(),
        "settings": (torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads(),
                     torch.are_deterministic_algorithms_enabled(), torch.is_anomaly_enabled()),
        "function modes": torch._C._len_torch_function_stack(),
    }  # fmt: skip


class Draws(Parts):
    """Draws by all generators, counts its calls, and changes a setting of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_made = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls_made += 1
        torch.rand(3), x.is_meta or np.random.rand()  # what draws when it is traced is refused
        return super().forward(x)


def test_model_and_process_stay_as_they_were() -> None:
    model = Draws()
    model(torch.randn(2, 4, 4, 4)).square().sum().backward()
    model.norm.eval()
    model.first.bias.requires_grad_(False)
    before = state_of(model)
    assert synth.check(model, (4, 4, 4, 4)).done
    after = state_of(model)
    for name, values in before.items():
        assert str(values) == str(after[name]), name
    for name, (key, version, values) in before["values"].items():
        assert after["values"][name][:2] == (key, version)
        assert torch.equal(after["values"][name][2], values)
    assert model.calls_made == 1


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.one_in(2)
def test_what_was_compared_is_freed(frozen: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[weakref.ref[Network]]()
    old = Network.__init__

    def noted(self: Network, *given: Any) -> None:
        old(self, *given)
        made.append(weakref.ref(self))

    monkeypatch.setattr(Network, "__init__", noted)
    if frozen:
        gc.freeze()
    before = gc.get_freeze_count()
    try:
        assert synth.check(Residual(), (4, 3, 8, 8)).done
        assert bool(gc.get_freeze_count()) == bool(before)
    finally:
        gc.unfreeze()
    assert made
    assert not any(each() for each in made)


class Segments(nn.Module):
    """Adds rows up, and trusts the lengths that it is given."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        return torch.segment_reduce(self.layer(x), "sum", lengths=lengths, unsafe=True)


def test_a_call_that_trusts_its_indices_runs_on_given_values_alone() -> None:
    values, lengths = torch.randn(6, 4), torch.tensor([2, 4])
    found = synth.check(Segments(), synth.Inputs((6, 4), lengths))
    assert "segment_reduce (test_check.py:" in found.reason
    assert "give inputs with values" in found.reason
    assert synth.check(Segments(), synth.Inputs(values, lengths)).done


class Shorter(nn.Module):
    """Leaves a mask out that hides nothing, but not where it is exported."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3, padding=1)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.layer(x)
        if not torch.compiler.is_exporting() and bool(mask.all()):
            return out
        return out * mask


@pytest.mark.parametrize("hidden", [0, 1])
def test_a_shorter_way_for_some_values_is_left_out(hidden: int) -> None:
    mask = torch.ones(4, 1, 8, 8, dtype=torch.bool)
    mask[:hidden] = False
    assert synth.check(Shorter(), synth.Inputs((4, 3, 8, 8), mask)).done
    assert not torch.compiler.is_exporting()


class Reads(Shorter):
    """Reads other values in Python where it is exported, too."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        out = super().forward(x, mask)
        return out.clamp(max=1.0) if out.isinf().any() else out


def test_what_is_read_where_a_model_is_exported_is_named() -> None:
    mask = torch.ones(4, 1, 8, 8, dtype=torch.bool)
    line = inspect.getsourcelines(Reads.forward)[1] + 2
    with pytest.raises(ValueError, match=rf"or read the values before \(test_check.py:{line}\)"):
        synth.check(Reads(), synth.Inputs((4, 3, 8, 8), mask))


# -- values --------------------------------------------------------------------------------------------------


class Looks(nn.Module):
    """Looks up rows, masks them, and keeps the values that it was given."""

    seen: ClassVar[list[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]] = []

    def __init__(self) -> None:
        super().__init__()
        self.table, self.out = nn.Embedding(7, 8), nn.Linear(8, 2)

    def forward(self, places: torch.Tensor, mask: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        if not places.is_meta:
            self.seen.append((places, mask, scale))
        rows = self.table(places) * scale.unsqueeze(-1)
        return self.out(rows.masked_fill(mask.unsqueeze(-1), 0.0))


@pytest.fixture
def seen() -> Iterator[list[Any]]:
    Looks.seen.clear()
    yield Looks.seen
    Looks.seen.clear()


def test_values_are_chosen_with_care(seen: list[Any]) -> None:
    """Indices are rows of the table, masks have both values, floats are of moderate size."""
    given = torch.zeros(4, 5, dtype=torch.long), torch.zeros(4, 5, dtype=torch.bool), (4, 5)
    assert synth.check(Looks(), given).done
    for places, mask, scale in seen:
        assert places.shape == (2, 5)
        assert 0 <= int(places.min()) < int(places.max()) < 7
        assert mask.any()
        assert not mask.all()
        assert 0.1 < scale.std() < 3


def test_given_values_are_used(seen: list[Any]) -> None:
    places, mask = torch.arange(20).reshape(4, 5) % 7, torch.arange(20).reshape(4, 5) % 3 == 0
    assert synth.check(Looks(), (places, mask, torch.linspace(0, 2, 20).reshape(4, 5))).done
    for one, other, scale in seen:
        assert torch.equal(one, places)
        assert torch.equal(other, mask)
        assert float(scale.detach().max()) == 2


def test_a_model_with_its_own_precision_is_compared_in_it() -> None:
    class Single(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            assert x.dtype == torch.float32, "made for float32"
            return self.conv(x).relu()

    assert synth.check(Single(), (2, 3, 8, 8)).dtype == "float32"
    assert not [name for name in outside(Single()) if "pytest" in name]  # which writes asserts anew


def test_what_cannot_be_compared_says_why() -> None:
    class Never(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.conv(x) / torch.zeros_like(x[:, :1])

    found = synth.check(Never(), (2, 3, 8, 8))
    assert not found.done
    assert str(found) == (
        "Never is not compared with one process: it gives NaN or infinity for the values that were tried;"
        " give inputs with values"
    )


def test_a_mode_in_which_the_model_fails_is_left_out() -> None:
    class OnlyTrains(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = self.conv(x).exp()
            if self.training:
                made = made.clone()
            return made.add_(1)  # which the gradient of exp needs

    found = synth.check(OnlyTrains(), (2, 3, 8, 8))
    assert found.modes == ("training",)
    assert "evaluation is left out, as the model fails in it by itself" in str(found)


# -- time ----------------------------------------------------------------------------------------------------


def comparison(limit: Any, ticks: Any) -> Comparison:
    """Of a network with a clock that goes on by one at each look."""
    model, inputs = Residual(), Inputs((4, 3, 8, 8))
    deadline = Deadline(lambda: float(next(ticks)))
    return Comparison(model, inputs, trace_model(model, inputs), False, False, "global", limit, deadline)


def test_no_call_begins_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is the number of calls of torch. It ends where the limit says, wherever that is."""
    monkeypatch.setattr(Comparison, "_require_time", lambda *_: None)
    every = itertools.count()
    assert comparison(lambda step: 1e9, every).result().done
    total = next(every)
    for most in (1, 40, total // 3, total // 2, total - 40):
        ticks = itertools.count()
        found = comparison(lambda step, most=most: float(most), ticks).result()
        assert "it takes longer than" in str(found)
        assert most <= next(ticks) <= most + 8  # looks that say when it began, and how long it took


def test_a_comparison_that_is_estimated_to_take_longer_is_not_begun() -> None:
    """The estimate follows from the model's own step, which is measured, and from the time to trace it."""
    every = itertools.count()
    assert comparison(lambda step: 1e9, every).result().done
    total, ticks = next(every), itertools.count()
    found = comparison(lambda step: 0.4 * total, ticks).result()
    assert "it would take about" in str(found)
    assert next(ticks) < 0.4 * total


# -- the command ---------------------------------------------------------------------------------------------


def test_the_command_says_what_was_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "small_networks:Residual", "--input", "4,3,8,8"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Residual is as in one process in ")
    assert out.count("\n") == 1


def test_the_command_fails_where_the_two_differ(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    mode_ignored(monkeypatch)
    assert main(["check", "small_networks:Residual", "--input", "4,3,8,8"]) == 5
    assert "gives something else on ranks than in one process, in evaluation" in capsys.readouterr().err


# -- methods -------------------------------------------------------------------------------------------------


class Coder(nn.Module):
    """A model with methods of which one needs nothing that `forward` uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.head = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 3, 3), nn.Linear(8, 2)

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return torch.add(self.first(x), 1.0, alpha=0.5)

    def classify(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self(x).mean(1)).softmax(-1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.last(self.encode(nn.functional.pad(x, (1, 1, 1, 1))))
        return made


@pytest.mark.parametrize("method", ["encode", "classify"])
def test_a_method_is_as_in_one_process(method: str) -> None:
    found = synth.check(Coder(), (4, 3, 8, 8), method=method)
    assert found.done, found
    assert found.modes == ("training", "evaluation")
    assert method in str(found)


def test_a_mistake_in_a_method_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    without = Call.filled

    def filled(call: Call, *args: Any, **kwargs: Any) -> Any:
        made = without(call, *args, **kwargs)
        return (lambda *given: made(*given) * 1.01) if call.word == "softmax" else made

    monkeypatch.setattr(Call, "filled", filled)
    assert synth.check(Coder(), (4, 3, 8, 8)).done
    with pytest.raises(synth.CheckError, match=r"^softmax "):
        synth.check(Coder(), (4, 3, 8, 8), method="classify")


@pytest.mark.parametrize("method", ["decode", "train", "first", "__call__"])
def test_a_method_that_the_model_lacks(method: str) -> None:
    with pytest.raises(
        synth.UsageError, match=f"Coder has no method {method}; name one that its class defines"
    ):
        synth.check(Coder(), (4, 3, 8, 8), method=method)


def test_layers_that_forward_changes_for_a_call_are_compared_as_their_functions() -> None:
    class Changing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.norm(self.conv(x))
            weights = {name: 2 * values for name, values in self.conv.named_parameters()}
            x = torch.func.functional_call(self.conv, weights, (x,))
            self.norm.eps = 0.5
            x = self.norm(x)
            self.norm.eps = 1e-5
            return x

    found = synth.check(Changing(), (4, 4, 8, 8))
    assert found.done, found
    assert not found.notes
    assert found.calls >= 4
