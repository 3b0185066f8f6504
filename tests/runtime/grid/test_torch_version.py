"""A torch that is too old is refused with the version that is needed, which is the declared one."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

import synth
from synth.runtime.grid.torch_version import OLDEST, require_torch

PROJECT = Path(__file__).parents[3] / "pyproject.toml"


@pytest.mark.parametrize("version", ["2.5.1", "2.8.0", "2.12.1+cu126", "1.13.1", "2.7.1a0+git12"])
def test_an_old_torch_is_refused(version: str) -> None:
    with pytest.raises(
        ImportError, match=r"torch .* is too old for synth, which needs 2\.13 or later; run pip"
    ):
        require_torch(version)


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.14.1", "2.15.0a0", "3.0", "unknown"])
def test_a_newer_one_is_not(version: str) -> None:
    require_torch(version)


def test_it_is_refused_where_a_name_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(__version__="2.5.1"))
    monkeypatch.delitem(vars(synth), "load_layer", raising=False)
    with pytest.raises(ImportError, match=r"torch 2\.5\.1 is too old"):
        _ = synth.load_layer


def test_the_declared_version_is_the_same() -> None:
    extras = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert f"torch>={OLDEST[0]}.{OLDEST[1]}" in extras["torch"]
