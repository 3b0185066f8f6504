"""Machine files: what is shipped loads; what is wrong is refused in one sentence with its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from synth.base.errors import InputError
from synth.machine.file import load_machine, parse_machine, profiles
from synth.runtime.grid.rules.processors import Processor

GOOD = """machine: two
levels:
  - {name: node, ranks: 4, alpha: 1e-6, beta: 1e-11, small: [[1024, 4e-11], [65536, 2e-11]]}
  - {name: system, alpha: 2e-6, beta: 1e-10, links: 2, contention: 1.5, staging_beta: 1e-11}
compute: {rate: 1e12, narrow: [[16, 1e11], [64, 5e11]]}
memory: 16GiB
"""


def test_reads_all_numbers() -> None:
    machine = parse_machine(GOOD, "two.yaml")
    node, system = machine.levels
    assert (node.ranks, system.ranks, machine.limit_bytes) == (4, None, 2**34)
    assert node.message(1000) == pytest.approx(1e-6 + 1000 * 4e-11)
    assert node.message(10**6) == pytest.approx(1e-6 + 1e-5)
    assert system.message(10**6, flows=4) == pytest.approx(2e-6 + 1e6 * (1e-10 * 2 * 1.5 + 1e-11))
    assert [machine.compute.rate_of(n) for n in (1, 15, 16, 63, 64)] == [1e11, 1e11, 5e11, 5e11, 1e12]


def test_rates_by_dtype() -> None:
    text = GOOD.replace("rate: 1e12,", "rate: 1e12, rates: {bfloat16: 8e12},")
    compute = parse_machine(text, "two.yaml").compute
    assert [compute.rate_of(64, each) for each in ("float32", "bfloat16")] == [1e12, 8e12]
    assert compute.rate_of(16, "bfloat16") == pytest.approx(4e12)  # few channels halve each


@pytest.mark.parametrize(("name", "gain"), [("a100", 16), ("h100", 14.8), ("h200", 14.8), ("b200", 28.1)])
def test_half_precision_of_a_gpu_is_faster(name: str, gain: float) -> None:
    compute = load_machine(name).compute
    assert compute.rate_of(64, "bfloat16") / compute.rate_of(64, "float32") == pytest.approx(gain, rel=0.01)


@pytest.mark.parametrize("name", profiles())
def test_shipped_machines_load_and_name_their_source(name: str) -> None:
    machine = load_machine(name)
    assert machine.name == name
    assert machine.source
    assert str(machine).startswith(f"{name}: ")


WRONG = [
    ("", "m.yaml:1:1: the file holds no machine"),
    ("levels: []\ncompute: {rate: 1}", "m.yaml:1:9: levels is a list; write a list of levels"),
    ("compute: {rate: 1e12}", "m.yaml:1:1: the machine lacks levels"),
    (GOOD.replace("alpha: 2e-6, ", ""), "m.yaml:4:5: a level lacks alpha"),
    (GOOD.replace("1e-10", "fast"), "m.yaml:4:39: beta is fast, not a number; write it like 8e-11"),
    (GOOD.replace("1e-10", "-1"), "m.yaml:4:39: beta is -1; it must be at least 0"),
    (GOOD.replace("name: system", "name: node"), "m.yaml:4:5: level node is given twice"),
    (GOOD.replace("name: system,", "name: system, ranks: 6,"), "m.yaml:4:5: level system has 6 ranks, which"),
    (GOOD.replace("name: system,", "name: system, ranks: 4,"), "m.yaml:4:5: level system has 4 ranks, not"),
    (GOOD.replace("ranks: 4, ", ""), "m.yaml:4:5: level system lies outside node, which has no ranks"),
    (
        GOOD.replace("alpha: 1e-6", "alfa: 1e-6"),
        "m.yaml:3:28: unknown key alfa of a level; did you mean alp",
    ),
    (GOOD.replace("rate: 1e12", "rate: 0"), "m.yaml:5:17: rate is 0; it must be more than 0"),
    (GOOD.replace("1.5", "0.5"), "m.yaml:4:68: contention is 0.5; it counts flows"),
    (GOOD.replace("16GiB", "lots"), "m.yaml:6:9: memory: 'lots' is not a size"),
    (GOOD.replace("rate: 1e12,", "rate: 1e12, crowd: 0.5,"), "m.yaml:5:30: crowd is 0.5; computing beside"),
    (GOOD + "overlap: 2\n", "m.yaml:7:10: overlap is 2; it is a share"),
    (GOOD + "algorithms: [rings]\n", "m.yaml:7:14: algorithm rings is unknown; did you mean ring?"),
    (GOOD.replace("[64, ", "[8, "), "m.yaml:5:44: narrow lists 8 channels after 16; list them ascending"),
    (GOOD.replace("5e11", "0"), "m.yaml:5:49: rate of narrow is 0; it must be more than 0"),
    (
        GOOD.replace("[[16, 1e11], [64, 5e11]]", "16"),
        "m.yaml:5:31: narrow is 16; write a list of [channels, rate]",
    ),
    (GOOD.replace("rate: 1e12,", "rate: 1e12, rates: {int8: 1},"), "m.yaml:5:31: unknown key int8 of rates"),
    (GOOD.replace("rate: 1e12,", "rate: 1e12, rates: {float16: 0},"), "m.yaml:5:40: rate of float16 is 0"),
    (
        GOOD + "processor: avx3\n",
        "m.yaml:7:12: processor is avx3; write one of sse41, avx, avx2, avx512, or with",
    ),
    (GOOD + "processor: avx2 32KiB\n", "m.yaml:7:12: processor is avx2 32KiB; write one of"),
    (GOOD + "processor: avx2 lots 2MiB\n", "m.yaml:7:12: processor: 'lots' is not a size"),
    (GOOD + "processor: [[avx2]]\n", "m.yaml:7:13: processor is"),
    (GOOD + "processor: []\n", "m.yaml:7:12: processor is a list; write one of"),
    (GOOD.replace("[65536, ", "[512, "), "m.yaml:3:77: small lists 512 bytes after 1024"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=range(len(WRONG)))
def test_wrong_files_are_refused_with_their_place(text: str, message: str) -> None:
    with pytest.raises(InputError) as fault:
        parse_machine(text, "m.yaml")
    assert str(fault.value).startswith(message)
    assert "\n" not in str(fault.value)


def test_unknown_machine(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no shipped machine lasen; did you mean lassen"):
        load_machine("lasen")
    with pytest.raises(InputError, match="cannot be read"):
        load_machine(tmp_path / "none.yaml")


def test_processors_are_read_with_or_without_caches() -> None:
    assert parse_machine(GOOD, "m.yaml").processors == ()
    one = parse_machine(GOOD + "processor: avx512 48KiB 2MiB\n", "m.yaml").processors
    assert one == (Processor("avx512", 49152, 2**21),)
    usual = parse_machine(GOOD + "processor: avx2\n", "m.yaml").processors
    assert usual
    assert {each.isa for each in usual} == {"avx2"}
    both = parse_machine(GOOD + "processor: [avx2, avx512 48KiB 2MiB]\n", "m.yaml").processors
    assert both == (*usual, *one)
