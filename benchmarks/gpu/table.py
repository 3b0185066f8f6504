"""The page of what was measured on a GPU."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from benchmarks.gpu.layers import priced
from synth.machine.file import load_machine

HEAD = """# One GPU: our programs and networks beside plain torch and DDP

Made by `make bench-gpu`: one process, world size 1. A ratio is the peer's time by ours, the median over
rounds that take turns; above 1 ours is faster. Times are medians of steps in a row between two
synchronizations. cuDNN tries its kernels for all alike. "launched" is when a step has launched all its
kernels: where that is near the step's time, the GPU waits for the processor. A step of a network is forward,
backward and SGD with momentum; of the decoder it is a forward pass. A step of a layer has In, Ker and dOut
and makes Out, dIn and dKer.
"""


def page(found: dict[str, Any]) -> str:
    """The page of all parts that were measured."""
    parts = [HEAD]
    for name, write in (("networks", _networks), ("layers", _layers), ("rates", _rates)):
        lines = [each for each in found.get(name, []) if "failed" not in each]
        if not lines:
            continue
        facts = found["facts"][name]
        told = ", ".join(f"{key} {value}" for key, value in facts.items() if key not in ("date", "device"))
        parts.append(f"## {name.capitalize()}\n\n{facts['device']}, {told}; {facts['date']}.\n")
        parts.append(write(lines))
        failed = [each for each in found[name] if "failed" in each]
        parts += [f"Failed: {' '.join(each['line'])}: {each['failed']}.\n" for each in failed]
    return "\n".join(parts)


def _networks(lines: Sequence[dict[str, Any]]) -> str:
    heads = (
        "network",
        "batch",
        "mode",
        "ours, ms",
        "torch / ours",
        "DDP / ours",
        "launched, ms: ours",
        "torch",
    )
    rows = []
    for each in lines:
        ratios, launch, memory = each["ratios"], each["launch"], each["memory"]
        rows.append(
            [
                *(each["network"], "x".join(map(str, each["shape"])), each["mode"]),
                f"{each['seconds']['ours'] * 1e3:.2f}",
                *(f"{ratios[peer]:.2f}" if peer in ratios else "" for peer in ("torch", "DDP")),
                *(f"{launch[name] * 1e3:.2f}" for name in ("ours", "torch")),
                *(f"{memory[name] / 2**30:.2f}" for name in ("ours", "torch")),
            ]
        )
    return markdown((*heads, "peak memory, GiB: ours", "torch"), rows)


def _layers(lines: Sequence[dict[str, Any]]) -> str:
    heads = "layer", "pass", "mode", "ours, ms", "torch / ours", "predicted, ms", "error", "Tflop/s"
    rows = []
    for each in lines:
        seconds, predicted = each["seconds"]["ours"], each["predicted"]
        rows.append(
            [
                *(each["layer"], each["work"], each["mode"]),
                *(f"{seconds * 1e3:.3f}", f"{each['ratio']:.2f}", f"{predicted * 1e3:.3f}"),
                *(f"{predicted / seconds - 1:+.0%}", f"{each['flops'] / seconds / 1e12:.1f}"),
                *(f"{each['planned'] / 2**20:.1f}", f"{each['peak']['ours'] / 2**20:.1f}"),
            ]
        )
    note = "Predicted: by the machine file h100, with a rate for TF32. Planned: the plan's memory.\n"
    return note + "\n" + markdown((*heads, "planned, MiB", "peak, MiB"), rows)


def _rates(lines: Sequence[dict[str, Any]]) -> str:
    compute = load_machine("h100").compute
    rows = []
    for each in lines:
        dtype, by = each["dtype"], each["rate"]
        known = ""
        if dtype:
            mode = priced(load_machine("h100"), dtype).compute
            rate = mode.rate_of(1024, "" if dtype in ("TF32", "float32") else dtype)
            known = f"{rate / 1e12:.0f}"
        elif "bytes" in each["job"]:
            known = f"{(compute.bandwidth or 0) / 1e12:.2f}"
        rows.append([each["job"], dtype, f"{each['seconds'] * 1e3:.3f}", f"{by / 1e12:.2f}", known])
    return markdown(("job", "dtype", "ms", "Tflop/s or TB/s", "machine file h100"), rows)


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(heads) + " |", "|---" * len(heads) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"
