"""Every model that `parallelize` or `synth import` takes is taken by both, and seen alike by both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec

import pytest
import test_import_model
import torch
import torch.distributed as dist
import zoo
from small_networks import MODELS
from torch import nn
from wild import wild

import synth
from synth.network.file import parse_network
from synth.network.write import network_text
from synth.parallel.front_end.import_model import import_model
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.operators.table import Operators
from synth.runtime.tracing.expressions import is_computed

SHAPE = 4, 4, 8, 8
needs_models = pytest.mark.skipif(
    find_spec("transformers") is None or find_spec("monai") is None, reason="transformers or monai is absent"
)
Make = Callable[[], tuple[nn.Module, tuple[int, ...]]]
BOTH: dict[str, Make] = {  # before there was one front end, both took these
    **{name: lambda name=name: (MODELS[name][0](), MODELS[name][1]) for name in MODELS},
    "transposed": lambda: zoo.own()["transposed"],
    "skips": lambda: (zoo.Skips(), (2, 3, 8, 8)),
    "drops": lambda: (zoo.Drops(), SHAPE),
    "next": lambda: (test_import_model.Next(), (2, 6, 8, 8)),
    "double": lambda: (test_import_model.double(), (4, 3, 16, 16)),
    **{
        name: lambda name=name: (zoo.as_they_are()[name], SHAPE)
        for name in ("weights", "biases", "first", "last", "evaluated", "averaged")
    },
}
PARALLELIZE_ALONE: dict[str, Make] = {  # slices, pads and the like have no kind of their own in a file
    "mixed": lambda: zoo.own()["mixed"],
    "few": lambda: zoo.own()["few"],
    "partly": lambda: (zoo.as_they_are()["partly"], SHAPE),
    "functions": lambda: (zoo.as_they_are()["functions"], SHAPE),
    "joined rows": lambda: (test_import_model.Joined(), (1, 2, 4, 4)),
}
IMPORT_ALONE: dict[str, Make] = {  # a layer that is called twice
    "twice": lambda: zoo.own()["twice"],
    "twice in a row": lambda: (test_import_model.Twice(), (1, 3, 8, 8)),
}
LIBRARIES = ("resnet", "convnext", "regnet", "unet", "densenet", "segresnet", "unet3", "segresnet3")
MADE: dict[str, Make] = {
    **BOTH,
    **PARALLELIZE_ALONE,
    **IMPORT_ALONE,
    **{f"library {name}": lambda name=name: zoo.tiny()[name] for name in LIBRARIES},
}
NAMES = [pytest.param(n, marks=[needs_models] if n.startswith("library") else []) for n in MADE]


@pytest.fixture(scope="module")
def alone() -> Iterator[None]:
    """A process group of this process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(6)
def test_a_file_has_the_network_that_is_planned(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, shape = MADE[name]()
    traced = trace_model(model.eval(), shape)
    monkeypatch.setattr("synth.parallel.front_end.import_model.make_model", lambda factory: model)
    imported = parse_network(import_model("models:made", shape), "net.yaml")
    assert imported.nodes == traced.network.nodes
    assert imported.dtype == traced.network.dtype
    assert parse_network(network_text(imported), "net.yaml").nodes == imported.nodes


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.one_in(6)
def test_parallelize_gives_the_outputs_of_the_model(name: str, alone: None) -> None:
    model, shape = MADE[name]()
    model.eval()
    net = synth.parallelize(model, shape)
    batch = torch.randn(shape, dtype=net.program.dtype)
    right = model(batch)
    out = net.gather(net(net.scatter(batch, "input")))
    assert type(out) is type(right)
    pair = (getattr(each, "logits", each) for each in (out, right))
    torch.testing.assert_close(*pair, rtol=1e-3, atol=1e-4)


def test_layers_have_the_names_of_their_modules() -> None:
    model, shape = MADE["residual"]()
    named = {node.name: node.kind for node in trace_model(model, shape).network.nodes.values()}
    assert {"stem": "conv2d", "norm": "batchnorm", "pool": "pool", "a.relu": "relu"}.items() <= named.items()
    assert {"b.short": "conv2d", "mean": "globalpool", "head": "linear"}.items() <= named.items()
    assert {"a.relu_1", "add", "relu"} <= named.keys()  # a second call, and functions


def test_a_name_that_is_too_long_keeps_its_end() -> None:
    model: nn.Module = nn.Conv2d(3, 3, 1)
    for _ in range(12):
        holder = nn.Sequential()
        holder.add_module("a_long_name", model)
        model = holder
    (name,) = trace_model(model, (2, 3, 4, 4)).network.nodes
    assert name == ".".join(["a_long_name"] * 4)


def test_every_reader_of_a_concatenation_has_its_own() -> None:
    """Of all parts, those of a concatenation among them, so that words go straight to the reader."""

    class Dense(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = nn.ModuleList(nn.Conv2d(n, 4, 1) for n in (4, 4, 8))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.convs[0](x)
            for conv in self.convs[1:]:
                x = torch.cat([x, conv(x)], 1)
            return torch.relu(x)

    graph = trace_model(Dense(), SHAPE).graph
    joins = [node for node in graph.nodes if node.name.startswith("cat")]
    assert [[part.name for part in node.args[0]] for node in joins] == [
        ["convs_0", "convs_1"],
        ["convs_0", "convs_1", "convs_2"],
    ]
    assert all(len(node.users) == 1 for node in joins)


def test_the_results_of_a_call_read_one_concatenation() -> None:
    class Sorted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            joined = torch.cat([self.a(x), self.b(x)], 1)
            values, places = joined.topk(3, 1)
            return joined + 1, values, places

    graph = trace_model(Sorted(), SHAPE).graph
    joins = [node for node in graph.nodes if node.name.startswith("cat")]
    assert sorted(len(node.users) for node in joins) == [1, 2]


def test_the_file_of_a_model_counts_its_parameters() -> None:
    for name in ("residual", "next", "transposed", "mixed", "partly", "twice"):
        model, shape = MADE[name]()
        used = sum(p.numel() for n, p in model.named_parameters() if not n.startswith("unused"))
        assert trace_model(model, shape).network.parameters == used, name


def test_functions_of_single_words_run_on_shards() -> None:
    model, shape = wild()["pointwise"]()
    operators = Operators(dict(model.named_modules()), dict(model.named_parameters()))
    calls = [each for each in trace_model(model, shape).graph.nodes if each.op == "call_function"]
    kinds = {each.name: operators.operator(operators.call(each)).kind for each in calls if is_computed(each)}
    assert len(kinds) > 20
    assert set(kinds.values()) <= {"elementwise", "same"}, kinds


def test_other_forms_of_such_functions_are_told_apart() -> None:
    class Forms(nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            return x.max(), x.max(1)[0], torch.frexp(x)[0], torch.fmax(x, x + 1)

    graph = trace_model(nn.Sequential(nn.Conv2d(4, 4, 1), Forms()), SHAPE).graph
    operators = Operators({}, {})
    calls = [operators.call(each) for each in graph.nodes if each.op == "call_function"]
    kinds = [(each.word, operators.operator(each).kind == "elementwise") for each in calls]
    assert ("fmax", True) in kinds
    assert ("max_0", False) in kinds
    assert not {("max", True), ("frexp", True)} & set(kinds)


def test_a_model_keeps_what_a_forward_pass_has_left_in_it() -> None:
    """`copy.deepcopy` alone refuses computed tensors."""

    class Keeps(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(4, 4, 1)
            self.pyramid = list[torch.Tensor]()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.pyramid = [self.conv(x)]
            return self.pyramid[0].relu()

    model = Keeps()
    model(torch.ones(SHAPE))
    left = model.pyramid[0]
    assert trace_model(model, SHAPE).network.planned[0].name == "conv"
    assert model.pyramid[0] is left
    assert left.requires_grad


class Kept(nn.Module):
    """A backbone of transformers, whose hooks hand maps to its forward, and layers behind it."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        sizes = {"num_stages": 2, "depths": [1, 1], "hidden_sizes": [8, 16]}
        config = transformers.ConvNextConfig(**sizes, out_features=["stage1", "stage2"])  # type: ignore[arg-type]
        self.backbone = transformers.ConvNextBackbone(config)
        self.heads = nn.ModuleList(nn.Conv2d(extent, 3, 1) for extent in (8, 16))

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        maps = self.backbone(x).feature_maps
        return [head(each) for head, each in zip(self.heads, maps, strict=True)]


@needs_models
def test_hooks_of_a_library_that_keep_nothing_are_followed(alone: None) -> None:
    from transformers.utils import output_capturing

    made, batch = Kept(), torch.randn(2, 3, 32, 32)
    hooked = [name for name, each in made.named_modules() if each._forward_hooks]
    assert hooked
    assert synth.check(made, (2, 3, 32, 32)).done
    net = synth.parallelize(made, (2, 3, 32, 32))
    torch.testing.assert_close([each.full_tensor() for each in net(batch)], made(batch))
    for each in made, net:  # as what asks for attentions does
        output_capturing.install_output_capuring_hook(each.get_submodule(hooked[0]), "attentions", 0)
    torch.testing.assert_close([each.full_tensor() for each in net(batch)], made(batch))
    net.get_submodule(hooked[0]).register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match=f"{hooked[0]} has hooks"):
        net(batch)
    made.get_submodule(hooked[0]).register_forward_hook(lambda *given: None)
    with pytest.raises(ValueError, match=f"{hooked[0]} has a forward hook"):
        synth.parallelize(made, (2, 3, 32, 32))
