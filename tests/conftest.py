"""Options of a test run, and how hypothesis searches."""

from __future__ import annotations

import os

import pytest
from hypothesis import Phase, settings

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None)
# `make mutants`: whether a test fails is all that counts, so failing cases are not made smaller
settings.register_profile(
    "mutants", derandomize=True, deadline=None, max_examples=40, phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes, too")
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with --slow"))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))
