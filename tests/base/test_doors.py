"""Remedies are named in the words of the door through which a user came."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import synth
from synth.base.doors import Door, either, entered_by, option
from synth.base.errors import InfeasibleError, UsageError
from synth.cli.main import main

TOP = Path(synth.__path__[0])


def test_each_door_has_its_own_words() -> None:
    ways = ("raise {}", "balance"), ("free a part of {}", "grid"), "wait"
    assert (option("memory", 4096), option("machine", "lassen")) == ("memory=4096", "machine='lassen'")
    with entered_by(Door.COMMAND_LINE):
        assert (option("memory", 4096), option("exact_procs")) == ("--memory 4096", "--exact-procs")
        assert option("classes", {"h": 1, "w": 2}) == "--classes h=1,w=2"
        assert either(*ways) == "raise --balance or free a part of --grid or wait"
    with entered_by(Door.MODEL):  # it has no balance
        assert either(*ways) == "free a part of plan or wait"
    assert option("memory") == "memory"


def test_a_memory_that_is_too_little(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(InfeasibleError, match=r"\(memory=\d+\)"):
        synth.plan("examples/small.yaml", 4, memory=64)
    assert main(["plan", "examples/small.yaml", "--procs", "4", "--memory", "64"]) == 4
    assert re.search(r"\(--memory \d+\)", capsys.readouterr().err)
    with pytest.raises(UsageError, match="as in machine='lassen'"):
        synth.plan("examples/small.yaml", 4, objective="time")


def test_sentences_below_the_doors_name_no_flag() -> None:
    """What a call from Python reaches says options by `option`. A whole command of `synth` may be named."""
    texts = re.compile(r"""f?"(?:[^"\\\n]|\\.)*\"""")
    for folder in ("network", "search", "planning", "parallel", "schedule", "machine", "layer"):
        for file in sorted((TOP / folder).rglob("*.py")):
            source = re.sub(r'""".*?"""|(?m:#.*$)', "", file.read_text(), flags=re.S)
            for text in texts.findall(source):
                flags = re.search(r"(?<![\w-])--[a-z]", text) and "synth " not in text
                assert not flags, f"{file.relative_to(TOP)}: {text}"
