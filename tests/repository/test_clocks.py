"""No deadline reads the time of day, which jumps and differs between hosts."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
OF_DAY = re.compile(r"\btime\.time(_ns)?\(|\bdatetime\.(now|utcnow|today)\(|\bdate\.today\(")
READS = {"synth/parallel/machine_here.py"}  # the age of kept measurements, which may be negative


def test_only_the_age_of_measurements_is_of_the_time_of_day() -> None:
    folders = ("runtime", "codegen", "synth/launch", "synth/parallel", "synth/base")
    found = {
        str(path.relative_to(ROOT))
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if OF_DAY.search(path.read_text(encoding="utf-8"))
    }
    assert found == READS
