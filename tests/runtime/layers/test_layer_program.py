"""What an emitted module declares is checked: another version of the protocol is refused with a remedy."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
from cases import CASES

from synth.codegen.lower import PROTOCOL as EMITTED
from synth.codegen.module import imported
from synth.codegen.render import render
from synth.runtime.layers.distributed_layer import DistributedConv2d
from synth.runtime.layers.layer_program import PROTOCOL, LayerProgram, layer_program

TEXT = render(CASES["training_3d"], module=True)


def declared() -> dict[str, Any]:
    """The fields that an emitted module declares."""
    return dict(vars(imported(TEXT, "emitted").PROGRAM))


def test_modules_are_emitted_for_this_runtime() -> None:
    assert EMITTED == PROTOCOL
    program = imported(TEXT, "emitted").PROGRAM
    assert isinstance(program, LayerProgram)
    assert program.name == CASES["training_3d"].layer.name
    assert program.plan == CASES["training_3d"].id


def test_another_version() -> None:
    text = TEXT.replace(f"protocol={PROTOCOL},", "protocol=2,")
    with pytest.raises(ValueError, match=r"has protocol 2, this runtime reads 1: .* emit it anew"):
        imported(text, "emitted")


def test_a_missing_field() -> None:
    text = TEXT.replace("    windows=WINDOWS,\n", "")
    assert text != TEXT
    with pytest.raises(ValueError, match=r"does not declare windows: .* emit it anew"):
        imported(text, "emitted")


def test_an_unknown_field() -> None:
    with pytest.raises(ValueError, match=r"declares colour: .* emit it anew"):
        layer_program(PROTOCOL, **declared(), colour="red")


def test_a_module_from_before_the_protocol() -> None:
    module = ModuleType("emitted")
    module.NAME = "stem"  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"stem does not declare a LayerProgram: .* emit it anew"):
        DistributedConv2d(module)  # type: ignore[arg-type]
