"""The schemas accept what is shipped and refuse what is plainly wrong."""

from __future__ import annotations

from pathlib import Path

import jsonschema
import pytest
import yaml

from synth.machine.file import PROFILES
from synth.network.json_schema import machine_file_schema, network_file_schema

NETWORKS = Path(__file__).resolve().parents[2] / "examples/networks"


def _numbers(data: object) -> object:
    """YAML 1.1 reads 9e-6 as text; YAML 1.2, which editors use, reads a number."""
    if isinstance(data, dict):
        return {key: _numbers(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_numbers(value) for value in data]
    try:
        return float(data) if isinstance(data, str) else data
    except ValueError:
        return data


@pytest.mark.parametrize("path", sorted(NETWORKS.glob("*.yaml")), ids=lambda p: p.stem)
def test_networks(path: Path) -> None:
    check = jsonschema.Draft202012Validator(network_file_schema())
    data = yaml.safe_load(path.read_text())
    check.validate(data)
    assert not check.is_valid({**data, "layers": [{"convv2d": {}}]})
    assert not check.is_valid({**data, "layers": [{"conv2d": {"kernel": 3}}]})


@pytest.mark.parametrize("path", sorted(PROFILES.glob("*.yaml")), ids=lambda p: p.stem)
def test_machines(path: Path) -> None:
    check = jsonschema.Draft202012Validator(machine_file_schema())
    data = _numbers(yaml.safe_load(path.read_text()))
    check.validate(data)
    assert isinstance(data, dict)
    assert not check.is_valid({**data, "compute": {}})
