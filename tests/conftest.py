"""Options of a test run, how hypothesis searches, and the end of every process that a test starts."""

from __future__ import annotations

import math
import os
import zlib
from collections import defaultdict
from collections.abc import Iterator

import pytest
from effort import ALL
from hypothesis import Phase, settings
from processes import SESSION, Processes, end_marked, new_mark

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", derandomize=True, deadline=None, max_examples=25)
settings.register_profile("ci, all", derandomize=True, deadline=None)
# `make mutants`: whether a test fails is all that counts, so failing cases are not made smaller
settings.register_profile(
    "mutants", derandomize=True, deadline=None, max_examples=40, phases=[Phase.explicit, Phase.generate]
)
# one test at a time on a core: threads of torch that wait for each other there take four times as long
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("SYNTH_CHECK", "never")  # tests compare with one process themselves
os.environ.setdefault("SYNTH_OBJECTIVE", "words")  # plans of tests do not depend on the machine
# a look for GPUs starts nothing of CUDA's, which ranks that are forked later could not use
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="run the tests that take minutes, too")
    parser.addoption("--update-golden", action="store_true", help="rewrite the golden files")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--slow"):
        return
    tests = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        if item.get_closest_marker("slow"):  # not keywords: folders of that name are among them
            item.add_marker(pytest.mark.skip(reason="takes minutes; run with --slow"))
        elif item.get_closest_marker("one_in"):
            tests[item.nodeid.partition("[")[0]].append(item)
    for cases in tests.values():
        for item in left_out(cases):
            item.add_marker(pytest.mark.skip(reason="one of many cases; run with --slow"))


def left_out(cases: list[pytest.Item]) -> list[pytest.Item]:
    """Cases of a test that is marked `one_in(n)` that do not run without --slow.

    The digests of their names choose, so that every parameter varies among those that run, and a new case
    does not exchange the others.
    """
    (every,) = next(mark.args for mark in cases[0].iter_markers("one_in"))
    ordered = sorted(cases, key=lambda item: zlib.crc32(item.nodeid.encode()))
    return ordered[math.ceil(len(cases) / every) :]


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Three for two cores with `-n auto`: nearly half of the time tests wait, for ranks or for a deadline."""
    return math.ceil(1.5 * (os.cpu_count() or 1))


class FailuresAtOnce:
    """Names a failed test when it fails, so that a run that is stopped has told which."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Print the name of a failed test."""
        terminal = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and terminal is not None:
            terminal.ensure_newline()
            terminal.write_line(f"failed: {report.nodeid}", red=True)


def pytest_configure(config: pytest.Config) -> None:
    os.environ.pop(ALL, None)
    if config.getoption("--slow"):  # before the tests are imported, which ask for it
        os.environ[ALL] = "1"
        if os.environ.get("CI"):
            settings.load_profile("ci, all")
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailuresAtOnce(config))


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written instead of compared."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture
def one_thread() -> Iterator[None]:
    """torch computes on one thread, as a rank does."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def processes() -> Iterator[Processes]:
    """Starts processes that end with the test, however it ends."""
    made = Processes()
    try:
        yield made
    finally:
        made.end()


@pytest.fixture(scope="session", autouse=True)
def _nothing_outlives_the_run() -> Iterator[None]:
    """Kills what is left when all tests are done: the fork server of the ranks and its children, too."""
    mark = os.environ[SESSION] = new_mark()
    try:
        yield
    finally:
        del os.environ[SESSION]
        end_marked(SESSION, mark)
