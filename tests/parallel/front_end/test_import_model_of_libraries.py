"""Models of other libraries as network files: every layer, edge, group and parameter against the model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import zoo
from torch import nn

from synth.network.file import parse_network
from synth.network.graph import Network
from synth.parallel.front_end.import_model import import_model

pytest.importorskip("transformers")
pytest.importorskip("monai")


def resnet() -> nn.Module:
    return zoo.resnet()


def convnext() -> nn.Module:
    return zoo.convnext()


def regnet() -> nn.Module:
    return zoo.regnet()


def unet() -> nn.Module:
    return zoo.unet()


def densenet() -> nn.Module:
    return zoo.densenet()


def segresnet() -> nn.Module:
    return zoo.segresnet()


SHAPES = {
    "resnet": (8, 3, 224, 224),
    "unet": (2, 1, 64, 64, 64),
    "segresnet": (2, 1, 64, 64, 64),
    "convnext": (8, 3, 224, 224),
    "regnet": (8, 3, 224, 224),
    "densenet": (8, 1, 224, 224),
}
SLOW = ("convnext", "regnet", "densenet")
CONVS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose2d, nn.ConvTranspose3d, nn.Linear)


def told_of(module: Any) -> tuple[object, ...]:
    """The numbers of a weighted layer as its module has them."""
    if isinstance(module, nn.Linear):
        return module.out_features, module.in_features, module.bias is not None
    more = tuple(module.output_padding) if module.transposed else ()
    steps = tuple(module.kernel_size), tuple(module.stride), tuple(module.padding), tuple(module.dilation)
    return module.out_channels, module.in_channels, *steps, module.groups, module.bias is not None, more


def told_in(network: Network, like: dict[str, Any]) -> dict[str, tuple[object, ...]]:
    """The same of the file's layers, by name."""
    found: dict[str, tuple[object, ...]] = {}
    for name, node in network.nodes.items():
        layer = node.layer
        if not node.weighted or layer is None:
            continue
        if isinstance(like.get(name), nn.Linear):
            found[name] = layer.out_channels, math.prod(node.in_shape[1:2]), node.bias
            continue
        more = layer.output_padding if layer.transposed else ()
        steps = layer.kernel, layer.stride, layer.padding, layer.dilation
        found[name] = layer.out_channels, layer.input[1], *steps, layer.groups, node.bias, more
    return found


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in SHAPES]
)
@pytest.mark.one_in(2)
def test_every_layer_is_there(name: str) -> None:
    model = globals()[name]()
    network = parse_network(import_model(f"test_import_model_of_libraries:{name}", SHAPES[name]), "net.yaml")
    modules = {path: each for path, each in model.named_modules() if isinstance(each, CONVS)}
    expected = sorted(repr(told_of(each)) for each in modules.values())
    found = told_in(network, modules)
    assert sorted(map(repr, found.values())) == expected
    for path in set(found) & set(modules):
        assert found[path] == told_of(modules[path]), path
    assert network.parameters == sum(p.numel() for p in model.parameters())
    kinds = [node.kind for node in network.nodes.values()]
    counts = {
        "batchnorm": (nn.BatchNorm2d, nn.BatchNorm3d),
        "instancenorm": (nn.InstanceNorm3d,),
        "groupnorm": (nn.GroupNorm,),
        "layernorm": (nn.LayerNorm,),
        "prelu": (nn.PReLU,),
        "upsample": (nn.Upsample,),
    }
    for kind, classes in counts.items():
        assert kinds.count(kind) == sum(isinstance(m, classes) for m in model.modules()), kind
    last = list(network.nodes.values())[-1]
    assert last.shape[0] == SHAPES[name][0]
    assert network.parts[last.name][0].node in network.nodes


def test_edges_of_a_unet() -> None:
    """What follows a join reads the skipped and the deep channels from where they lie."""
    network = parse_network(import_model("test_import_model_of_libraries:unet", SHAPES["unet"]), "net.yaml")
    joins = [node for node in network.nodes.values() if node.kind == "cat"]
    assert len(joins) == 4
    for join in joins:
        parts = network.parts[join.name]
        assert sum(part.count for part in parts) == join.shape[1]
        readers = [n.name for n in network.planned if join.name in n.inputs]
        for reader in readers:
            edges = [edge for edge in network.edges if edge.target == reader]
            read = {(c.target, c.target + c.count) for edge in edges for c in edge.channels}
            assert sorted(read)[0][0] == 0
            assert sum(high - low for low, high in read) == join.shape[1]
