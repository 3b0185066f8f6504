"""Emitted programs on real gloo ranks: values as torch's, words per rank and step as the simulator's."""

from __future__ import annotations

import itertools
import os
import random
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from cases import CASES
from program_batch import run_programs
from ranks import Outcome, run_ranks
from seeded_problems import random_plan

import synth
from synth.codegen.render import render
from synth.layer.axes import PerAxis
from synth.layer.layer import Layer
from synth.layer.passes import TASKS
from synth.planning.plan import Plan
from synth.schedule.pass_plan import PassPlan
from synth.simulation.interpreter import simulate

pytestmark = pytest.mark.ranks
ROOT = Path(__file__).parents[3]
SMALL = Layer.conv2d((2, 4, 8, 8), 4, 3, padding=1)
RANDOM = 16  # plans
EVERY = 3  # of so many programs one runs without --slow
# what a standalone program decides by, how it comes out otherwise, and the cases that run so
ALTERED = {
    "native collectives": (
        "transport_of(group.handle, values.device).own_collectives",
        "True",
        ["summa_3d", "uneven_3d", "in_stationary", "ker_stationary_tiles", "matrix_3d"],
    ),
    "large pieces": (
        "LARGE = 2**16",
        "LARGE = 0",
        ["summa_3d", "uneven_3d", "in_stationary", "in_stationary_halo", "training_3d"],
    ),
    "host memory": (
        "near(values.device, group) != values.device",
        "True",
        ["uneven_3d", "in_stationary_halo", "training_3d", "training_rotated", "data_halves"],
    ),
}


def some(names: Iterable[object]) -> list[Any]:
    """The names as parameters, of which all are slow but each of `EVERY`."""
    marks = ([pytest.mark.slow] * bool(number % EVERY) for number in itertools.count())
    return [pytest.param(name, marks=mark) for name, mark in zip(names, marks, strict=False)]


def agree(plan: Plan, outcome: Outcome) -> None:
    """All ranks ended well and received what the simulator says, step by step."""
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    passes = [(f"{s.pass_plan.pass_} " * bool(plan.later), simulate(s)) for s in plan.schedules]
    steps = {(part + phase, *key): n for part, s in passes for (phase, *key), n in s.steps.items()}
    assert len(outcome.reports) == len(outcome.codes)
    for rank, report in enumerate(outcome.reports[: plan.used_procs]):
        counted = {(phase, step, tensor): words for phase, step, tensor, words in report["steps"]}
        expected = {key: words[rank] for key, words in steps.items() if words[rank]}
        assert counted == expected, f"rank {rank}"
        assert report["words"]["total"] == sum(s.received["total"][rank] for _, s in passes)
        assert report["check"] is True


class Programs:
    """Programs with which ranks have values as torch's, and words as the simulator's.

    The ranks of each number start once, when the first of their programs is asked for. They run those of
    `some` parameters alone, or all.
    """

    def __init__(self, folder: Path, every: bool) -> None:
        self.folder = folder
        self.lean = synth.plan(SMALL, 4, 4 * 712, grid={"h": 4}, pass_="backward-data")
        self.made: dict[str, tuple[Plan, str]] = {"lean": (self.lean, render(self.lean))}
        step = 1 if every else EVERY
        self.made |= {name: (CASES[name], render(CASES[name])) for name in [*CASES][::step]}
        for seed in range(0, RANDOM, step):
            plan = random_plan(random.Random(seed), TASKS[seed % 4])
            self.made[f"random {seed}"] = plan, render(plan)
        for what, (text, other, names) in ALTERED.items():
            for name in names[::step]:
                program = render(CASES[name], standalone=True)
                altered = program.replace(text, other)
                assert altered != program
                self.made[f"{what} {name}"] = CASES[name], altered
        self.faults: dict[str, str] = {}

    def fault(self, name: str) -> str:
        """What is wrong with a program; "" for nothing."""
        if name not in self.faults:
            procs = self.made[name][0].used_procs
            names = [each for each, (plan, _) in self.made.items() if plan.used_procs == procs]
            plans, texts = zip(*(self.made[each] for each in names), strict=True)
            found = run_programs([*plans], procs, self.folder / f"{procs}", seconds=250, texts=[*texts])
            self.faults |= dict(zip(names, found, strict=True))
        return self.faults[name]


@pytest.fixture(scope="module")
def programs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Programs:
    return Programs(tmp_path_factory.mktemp("programs"), bool(request.config.getoption("--slow")))


@pytest.mark.parametrize("name", some(CASES))
@pytest.mark.one_in(4)
def test_values_and_words(name: str, programs: Programs) -> None:
    assert programs.fault(name) == ""


def test_a_plan_of_no_more_memory_than_it_holds(programs: Programs) -> None:
    """Rows of dIn return to their owners beside what was read last."""
    assert max(simulate(programs.lean.schedule).peak) == programs.lean.used_words == 712
    assert programs.fault("lean") == ""


TELLING = """
import synth.runtime.comm.collectives
from memory_probe import telling

synth.runtime.comm.collectives.LARGE = 0  # small pieces are sent from copies, which no plan counts
"""


@pytest.mark.parametrize(
    ("layer", "grid", "pass_plan", "words", "planned"),
    [
        (Layer.matmul(8, 8, 8), PerAxis(c=4), PassPlan("Out", PerAxis(c=2)), 208, 208),
        (Layer.matmul(8, 8, 8), PerAxis(b=4), PassPlan("Out", PerAxis(c=4)), 96, 96),
        (Layer.matmul(8, 8, 8), PerAxis(b=2, c=2), PassPlan("Out", PerAxis(c=4)), 112, 112),
        (Layer.matmul(8, 8, 8), PerAxis(c=4), PassPlan("In", PerAxis(k=4)), 128, 128),
        (Layer.matmul(8, 8, 8), PerAxis(k=4), PassPlan("In", PerAxis(k=2), pass_="backward-data"), 208, 208),
        (SMALL, PerAxis(h=4), PassPlan("In", PerAxis(c=2, k=2), pass_="backward-data"), 676, 676),
    ],
)
@pytest.mark.one_in(3)
def test_tensors_take_what_is_planned(
    layer: Layer, grid: PerAxis, pass_plan: PassPlan, words: int, planned: int, tmp_path: Path
) -> None:
    plan = Plan(layer, grid.size, grid, pass_plan)
    told = render(plan).replace("partial(run,", "partial(telling(run),")
    told = told.replace("if __name__ ==", f"{TELLING}\n\nif __name__ ==")
    outcome = run_ranks(told, grid.size, tmp_path)
    assert set(outcome.codes) == {0}, "\n".join(outcome.output)
    held = [int(n) for output in outcome.output for n in re.findall(r"^held (\d+) words", output, re.M)]
    assert len(held) == grid.size
    assert max(held) == words
    assert plan.used_words == planned


@pytest.mark.parametrize("name", some(ALTERED["native collectives"][2]))
def test_the_collectives_of_a_backend_that_has_good_ones(name: str, programs: Programs) -> None:
    """All-gather and reduce-scatter, as on nccl, give the same values and words; gloo has them, too."""
    assert programs.fault(f"native collectives {name}") == ""


@pytest.mark.parametrize("name", some(ALTERED["large pieces"][2]))
def test_large_pieces_are_messages_of_their_own(name: str, programs: Programs) -> None:
    """The way of pieces of 64 KiB and more, taken here by all."""
    assert programs.fault(f"large pieces {name}") == ""


@pytest.mark.parametrize("name", some(ALTERED["host memory"][2]))
def test_messages_through_host_memory(name: str, programs: Programs) -> None:
    """The way of tensors on a GPU that ranks share, taken here by tensors of the host."""
    assert programs.fault(f"host memory {name}") == ""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("name", ["uneven_3d", "in_stationary_halo", "training_3d", "matrix_3d"])
def test_ranks_that_share_a_gpu(name: str, tmp_path: Path) -> None:
    plan = CASES[name]
    agree(plan, run_ranks(render(plan), plan.used_procs, tmp_path, "--check", "--device", "cuda"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU here")
def test_a_gpu_that_is_not_there(tmp_path: Path) -> None:
    outcome = run_ranks(render(CASES["data"]), CASES["data"].used_procs, tmp_path, "--device", "cuda")
    assert outcome.codes[0] == 2
    assert set(outcome.codes) <= {
        2,
        6,
    }  # 6: rank 0, which keeps the store, was gone before this one had looked
    assert "rank 0 has no GPU, but --device is cuda; use --device cpu" in outcome.output[0]


@pytest.mark.parametrize("seed", some(range(RANDOM)))
def test_random_plans(seed: int, programs: Programs) -> None:
    assert programs.fault(f"random {seed}") == ""


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_many_random_plans(tmp_path: Path) -> None:
    for seed in range(100, 400):
        plan, folder = random_plan(random.Random(seed), TASKS[seed % 4]), tmp_path / str(seed)
        folder.mkdir()
        agree(plan, run_ranks(render(plan), plan.used_procs, folder, "--check"))


def test_idle_ranks_wait(tmp_path: Path) -> None:
    plan = CASES["idle"]
    outcome = run_ranks(render(plan), plan.procs, tmp_path, "--check", "--bench", "2")
    agree(plan, outcome)
    assert outcome.reports[-1]["at"] is None
    assert "bench: 2 runs, slowest rank: median" in outcome.output[0]
    assert "bytes received per rank and run" in outcome.output[0]


def test_an_idle_rank_of_two_waits(tmp_path: Path) -> None:
    """Two ranks tell each other where they are, also where one of them has no work."""
    plan = synth.plan(Layer.conv2d((1, 1, 3, 3), 1, 3), 2)
    assert (plan.used_procs, plan.procs) == (1, 2)
    agree(plan, run_ranks(render(plan), 2, tmp_path, "--check", seconds=60))


def test_saved_shares_make_the_whole_result(tmp_path: Path) -> None:
    from synth.runtime.program.sample_data import sample

    plan = CASES["uneven_3d"]
    outcome = run_ranks(render(plan), plan.used_procs, tmp_path, "--save")
    assert set(outcome.codes) == {0}
    layer = plan.layer
    whole = torch.full(layer.output_shape, torch.nan)
    for path in sorted(tmp_path.glob("rank-*.pt")):
        saved = torch.load(path)["Out"]
        whole[tuple(slice(*interval) for interval in saved["box"])] = saved["values"]
    cpu = torch.device("cpu")
    ker_shape = (layer.out_channels, layer.input[1], *layer.kernel)
    inputs, ker = (
        sample(name, shape, [range(n) for n in shape], torch.float32, cpu)
        for name, shape in (("In", layer.input), ("Ker", ker_shape))
    )
    assert torch.equal(whole, torch.nn.functional.conv2d(inputs, ker, padding=layer.padding))


def test_wrong_values_and_words_are_told(tmp_path: Path) -> None:
    plan = CASES["summa_3d"]
    text = render(plan).replace(
        "    return wait_reduce(pending_sum)\n",
        '    total = wait_reduce(pending_sum)\n    total[:, 0] += at["k"]\n    return total\n',
    )
    text = text.replace('"Ker": 288', '"Ker": 289')
    outcome = run_ranks(text, plan.used_procs, tmp_path, "--check")
    assert set(outcome.codes) == {5}
    assert "rank 1 (h=0 c=0 k=1): Out differs in 128 of 512 words of its box" in outcome.output[1]
    assert "rank 0 (h=0 c=0 k=0): received 288 words of Ker instead of 289" in outcome.output[0]
    assert "check: failed on 8 of 8 ranks" in outcome.output[0]


def test_a_lost_rank_is_named_by_the_others(tmp_path: Path) -> None:
    plan = CASES["summa"]
    text = render(plan).replace(
        "        wait_gathers(pending, panels)\n",
        "        wait_gathers(pending, panels)\n"
        "        if step == 1 and at == {'b': 1, 'k': 2}:\n"
        "            sys.exit(9)\n",
    )
    outcome = run_ranks(text, plan.used_procs, tmp_path)
    assert outcome.codes[6] == 9
    assert outcome.codes[5] == 6
    assert "rank 5 (b=1 k=1): failed, last started" in outcome.output[5]


@pytest.mark.slow
def test_a_hung_rank_is_not_waited_for(tmp_path: Path) -> None:
    text = render(CASES["data_panels"]).replace(
        "        wait_gathers(pending, panels)\n",
        "        wait_gathers(pending, panels)\n"
        "        if step == 1 and at['b'] == 2:\n"
        "            __import__('time').sleep(24)\n"
        "            sys.exit(9)\n",
    )
    outcome = run_ranks(text, 3, tmp_path, timeout=6)
    assert outcome.codes == [6, 6, 6]
    assert "rank 0 (b=0): failed, last started Ker, loop step 2" in outcome.output[0]


@pytest.mark.slow
def test_a_wrong_world_is_refused_in_one_line(tmp_path: Path) -> None:
    outcome = run_ranks(render(CASES["summa_3d"]), 3, tmp_path)
    assert outcome.codes == [2, 2, 2]
    assert outcome.output == [
        "this program is for 8 ranks, a grid h=2 x c=2 x k=2, but was started with 3;"
        " use torchrun --nproc-per-node=8\n",
        "",
        "",
    ]


def test_different_plans_are_refused(tmp_path: Path) -> None:
    text = render(CASES["data"]).replace('PLAN = "', 'import os\n\nPLAN = os.environ["RANK"] + "')
    outcome = run_ranks(text, 4, tmp_path)
    assert outcome.codes == [2] * 4
    assert outcome.output[0] == "rank 1 runs another plan than rank 0; start all ranks with one program\n"


def torchrun(program: Path, ranks: int, cwd: Path, python_path: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": python_path}
    return subprocess.run(
        [*command, "--standalone", str(program), "--check"],
        cwd=cwd,
        env=environment,
        text=True,
        capture_output=True,
        timeout=200,
        check=False,
    )


@pytest.mark.slow
def test_torchrun_runs_a_program(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(render(Plan(SMALL, 2, PerAxis(k=2), PassPlan())))
    done = torchrun(program, 2, tmp_path, str(ROOT))
    assert done.returncode == 0, done.stderr
    assert "every word count is as it should be" in done.stdout


def test_a_standalone_program_needs_torch_alone(tmp_path: Path) -> None:
    plan = CASES["strided_shared"]
    text = render(plan, standalone=True)
    assert "synth.runtime" not in text
    assert "import synth" not in text
    agree(plan, run_ranks(text, plan.used_procs, tmp_path, "--check"))


def test_run_can_be_imported() -> None:
    import torch

    from synth.runtime.kernels.context import Context

    names: dict[str, Any] = {"__name__": "program"}
    exec(compile(render(CASES["alone"]), "program.py", "exec"), names)
    inputs, ker = torch.randn(4, 16, 8, 8), torch.randn(16, 16, 3, 3)
    out = names["run"](inputs, ker, {}, {}, Context())
    torch.testing.assert_close(out, torch.nn.functional.conv2d(inputs, ker, padding=1))


@pytest.mark.slow
def test_without_a_launcher_a_program_is_alone(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(render(CASES["alone"], standalone=True))
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-I", str(program), "--check"],
        cwd=tmp_path,
        env=environment,
        text=True,
        capture_output=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "check: every shard" in done.stdout
