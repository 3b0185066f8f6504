"""Torch models as network files: layers, edges, groups; what has no kind is refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from small_networks import Cosmo, Residual
from torch import nn

from synth.base.errors import UsageError
from synth.cli.main import main
from synth.network.file import parse_network
from synth.network.planner.planner import plan_network
from synth.network.request import NetworkRequest
from synth.parallel.front_end.import_model import import_model, make_model
from synth.parallel.front_end.trace_model import trace_model
from synth.parallel.plan_model import plan_model


class Next(nn.Module):
    """Like ConvNeXt: groups, and linear layers where channels are last."""

    def __init__(self) -> None:
        super().__init__()
        self.depth, self.wide = nn.Conv2d(6, 6, 7, padding=3, groups=6), nn.Linear(6, 24)
        self.norm, self.back = nn.LayerNorm(6), nn.Linear(24, 6)
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.depth(x).permute(0, 2, 3, 1))
        y = self.scale * self.back(nn.functional.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


class Joined(nn.Module):
    """A concatenation along rows, and a softmax along them: no kinds of a network file."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.cat([x, x], 2)[:, :, 2:6], 2)


class Twice(nn.Module):
    """One convolution, used two times."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.conv(self.conv(x))


class Branch(Twice):
    """What torch cannot export."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x)
        return x if x.sum() > 0 else -x


def twice() -> nn.Module:
    return Twice()


def branch() -> nn.Module:
    return Branch()


def double() -> nn.Module:
    return Residual().double()


def asking(channels: int) -> nn.Module:
    return nn.Conv2d(3, channels, 3)


def failing() -> nn.Module:
    raise RuntimeError("no weights here\nsecond line")


def factory() -> nn.Module:
    """What the command is given."""
    return Residual()


def next_block() -> nn.Module:
    return Next()


def joined() -> nn.Module:
    return Joined()


def volumes() -> nn.Module:
    return Cosmo()


def test_a_residual_network() -> None:
    network = parse_network(import_model("test_import_model:factory", (4, 3, 16, 16)), "net.yaml")
    assert network.nodes["a.one"].layer is not None
    assert network.nodes["b.short"].shape == (4, 12, 4, 4)
    sums = [node for node in network.nodes.values() if node.kind == "add"]
    assert [len(node.inputs) for node in sums] == [2, 2]
    assert network.parameters == sum(p.numel() for p in Residual().parameters())
    assert network.nodes["head"].shape == (4, 10)


def test_volumes() -> None:
    network = parse_network(import_model("test_import_model:volumes", (2, 2, 8, 8, 8)), "net.yaml")
    assert [node.kind for node in network.nodes.values() if node.weighted] == ["conv3d"] * 2 + ["linear"] * 2
    assert network.parameters == sum(p.numel() for p in Cosmo().parameters())


def test_channels_last_and_groups() -> None:
    text = import_model("test_import_model:next_block", (2, 6, 8, 8))
    network = parse_network(text, "net.yaml")
    depth, wide = network.nodes["depth"].layer, network.nodes["wide"].layer
    assert depth is not None
    assert depth.groups == 6
    assert wide is not None
    assert (wide.kernel, wide.out_channels) == ((1, 1), 24)
    assert "# gelu" in text
    assert network.nodes["norm"].kind == "layernorm"
    assert network.nodes["scale"].kind == "scale"
    assert network.parameters == sum(p.numel() for p in Next().parameters())


def test_what_ranks_compute_from_the_whole_is_written_as_gathered() -> None:
    network = parse_network(import_model("test_import_model:joined", (1, 2, 4, 4)), "net.yaml")
    assert network.nodes["softmax"].kind == "gathered"
    assert network.nodes["softmax"].shape == (1, 2, 4, 4)


class Channels(nn.Module):
    """Vectors of channels are normalized."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.normalize(x, dim=1).softmax(1)


def channels() -> nn.Module:
    return Channels()


def test_what_acts_along_channels_lies_where_its_input_does() -> None:
    network = parse_network(import_model("test_import_model:channels", (1, 2, 4, 4)), "net.yaml")
    assert [each.kind for each in network.nodes.values()] == ["softmax", "softmax"]


class Gated(nn.Module):
    """A gate with one word per position, as attention U-Nets have it, and a function that needs the whole."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.gate = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(3, 1, 1)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.renorm(self.body(x) * self.gate(x).sigmoid(), 2, 0, 1.0)


def gated() -> nn.Module:
    return Gated()


def test_what_ranks_divide_is_divided_in_the_plan_of_a_file_too() -> None:
    network = parse_network(import_model("test_import_model:gated", (4, 3, 8, 8)), "net.yaml")
    assert [each.divided for each in network.nodes.values() if each.kind == "gathered"][:2] == ["parts", ""]
    plan = plan_network(network, NetworkRequest(procs=4, training=True))
    counted = plan_model(gated(), (4, 3, 8, 8), procs=4)
    words = {call.what: call.words for call in plan.calls}
    assert words["in parts"] == 0
    assert words["gathered"] == {call.what: call.words for call in counted.calls}["gathered"] > 0


def test_a_model_of_another_dtype() -> None:
    text = import_model("test_import_model:double", (4, 3, 16, 16))
    assert "\ndtype: float64\n" in text
    assert parse_network(text, "net.yaml").dtype == "float64"
    assert "dtype" not in import_model("test_import_model:factory", (4, 3, 16, 16))


def test_a_layer_that_is_called_twice_is_planned_for_each_call() -> None:
    """Its weights count once in the model; a file has two layers, and says that they share them."""
    text = import_model("test_import_model:twice", (1, 3, 8, 8))
    network = parse_network(text, "net.yaml")
    assert [(node.name, node.kind) for node in network.nodes.values()] == [
        ("conv", "conv2d"),
        ("conv_1", "conv2d"),
    ]
    assert text.count("  # with the weights of conv") == 1
    assert trace_model(Twice(), (1, 3, 8, 8)).network.parameters == 84


def test_a_failing_export_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["import", "test_import_model:branch", "--input", "1,3,8,8"]) == 2
    told = capfd.readouterr()
    assert told.out == ""
    assert len(told.err.splitlines()) == 1
    assert "Branch has no graph for an input of (1, 3, 8, 8): Tensor.item() cannot be called" in told.err


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("asking", r"asking\(\) missing 1 required positional argument: 'channels'"),
        ("failing", "no weights here"),
    ],
)
def test_a_factory_that_fails(name: str, why: str) -> None:
    sentence = rf"^test_import_model:{name} makes no model: {why}; name a function that needs no argument$"
    with pytest.raises(UsageError, match=sentence):
        import_model(f"test_import_model:{name}", (1, 3, 8, 8))


@pytest.mark.parametrize("where", ["nowhere", "nowhere:at_all", "test_import_model:nothing"])
def test_no_factory(where: str) -> None:
    with pytest.raises(UsageError, match=r"no factory|cannot be imported"):
        import_model(where, (1, 2, 4, 4))


def test_the_command_writes_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "net.yaml"
    command = ["import", "test_import_model:factory", "--input", "4,3,16,16", "-o", str(file)]
    assert main(command) == 0
    assert "network: factory" in file.read_text()
    assert main([*command[:3], "4,x", *command[4:]]) == 2
    assert "write 2 to 5 whole numbers" in capsys.readouterr().err


@pytest.mark.parametrize("where", ["sys.exit(0)", "def make(): sys.exit(0)"])
def test_a_module_that_exits_is_an_error(where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "exiting.py").write_text(f"import sys\n{where}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "exiting", raising=False)
    with pytest.raises(UsageError, match=r"exiting:make .*: it calls sys\.exit\(0\)"):
        import_model("exiting:make", [1, 3, 8, 8])


def test_what_a_module_prints_is_not_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text(
        "import atexit, os\nfrom torch import nn\nprint('at import')\nos.write(1, b'raw\\n')\n"
        "atexit.register(lambda: print('at exit'))\n"
        "def make():\n    print('in make')\n    return nn.Sequential(nn.Conv2d(3, 4, 3))\n"
    )
    command = [sys.executable, "-m", "synth", "import", "loud:make", "--input", "1,3,8,8"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert parse_network(done.stdout, "n.yaml").planned
    assert all(text in done.stderr for text in ("at import", "raw", "in make", "at exit"))
    assert not any(text in done.stdout for text in ("at import", "raw", "in make", "at exit"))


@pytest.mark.parametrize(
    ("where", "remedy"),
    [
        ("test_import_model:factori", "did you mean factory?"),
        ("test_import_model.py:factory", "write test_import_model:factory, without .py"),
        ("folder/my_model.py:build", "write folder.my_model:build, without .py"),
        ("no_such_model:build", "run synth in the folder of the file, or name its folder in PYTHONPATH"),
    ],
)
def test_a_mistyped_factory_gets_a_remedy(where: str, remedy: str) -> None:
    with pytest.raises(UsageError) as caught:
        make_model(where)
    assert str(caught.value).endswith(f"; {remedy}")
