"""The batch script that runs an emitted program under Slurm."""

from __future__ import annotations

import re

from synth.base.errors import UsageError
from synth.codegen.quoting import in_shell
from synth.codegen.render import environment
from synth.planning.plan import Plan

TIME = re.compile(r"(\d+-)?\d+(:\d{1,2}){0,2}")
WORD = re.compile(r"[\w.+-]+", re.ASCII)


def render_sbatch(
    plan: Plan,
    program: str,
    ntasks_per_node: int,
    time: str = "00:10:00",
    cpus_per_task: int = 1,
    gpus_per_task: int = 0,
    partition: str | None = None,
    account: str | None = None,
) -> str:
    """A script for `sbatch` that starts one rank per process of the grid and passes its arguments on.

    `program` is the path of the emitted program, `time` a time limit as Slurm writes it. Raises
    `UsageError` for numbers that are not positive and for words that Slurm would misread.
    """
    for name, number in (("ntasks-per-node", ntasks_per_node), ("cpus-per-task", cpus_per_task)):
        if number < 1:
            raise UsageError(f"{name} is {number}; take at least 1")
    if gpus_per_task < 0:
        raise UsageError(f"gpus-per-task is {gpus_per_task}; take 0 or more")
    if not TIME.fullmatch(time):
        raise UsageError(f"time {time!r} is no time limit; write minutes, hh:mm:ss or d-hh:mm:ss")
    program = f"./{program}" if program.startswith("-") else program  # python would read it as a flag
    ranks = plan.used_procs
    per_node = min(ntasks_per_node, ranks)
    requests = [f"--time={time}", f"--cpus-per-task={cpus_per_task}"]
    # All GPUs of a node are visible to each of its ranks: the local rank picks one.
    requests += [f"--gpus-per-node={per_node * gpus_per_task}"] if gpus_per_task else []
    requests += [
        f"--{key}={_word(key, w)}" for key, w in (("partition", partition), ("account", account)) if w
    ]
    return (
        environment()
        .get_template("job.sbatch.j2")
        .render(
            program=in_shell(program, "the path of the program"),
            plan=plan.id,
            ranks=ranks,
            nodes=-(-ranks // per_node),
            per_node=per_node,
            job=re.sub(r"[^\w.-]", "_", plan.layer.name, flags=re.ASCII) or "synth",
            requests=requests,
        )
    )


def _word(what: str, text: str) -> str:
    if not WORD.fullmatch(text):
        raise UsageError(f"{what} {text!r} is no Slurm name; use letters, digits and . + - _")
    return text
