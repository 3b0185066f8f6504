"""Processor seconds of answers under tight memory limits: `python benchmarks/tight_limits.py --count 150`.

Draws layers at random: 1 to 3 dimensions, strides, dilation, groups, transposed ones, 2 and 4 bytes a word,
one pass or a training step, 2 to 1024 processes; every fourth is of a real network. Each layer is asked for
three times: with too little for any plan, which names the least memory; with a little less or a little more
than that; and with up to 3 times as much. Each answer is made in a process of its own.

Prints a line for each answer, the distribution of seconds, and the slowest with a command that repeats it.
The seconds are those of the plan, and of all that `synth plan` prints, named strategies included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import re
import signal
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from synth.base.errors import InfeasibleError
from synth.layer.layer import Layer, LayerError
from synth.layer.passes import TASKS
from synth.planning.derive import plan
from synth.reports.text import stage_text

WANTED = 5.0  # processor seconds of an answer
END = 120.0  # processor seconds after which an answer is given up
PROCS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 61, 64, 96, 127, 128, 256, 360, 512, 1000, 1024)
CHANNELS = (1, 3, 4, 8, 16, 24, 32, 48, 64, 96, 100, 128, 192, 256, 320, 384, 512, 768, 1024)
ROWS = {1: (100, 1000, 3000, 16000, 16384, 65536), 2: (7, 14, 28, 33, 56, 64, 112, 128, 224, 512, 1024),
        3: (4, 7, 8, 16, 18, 32, 48, 64, 96, 128)}  # fmt: skip
MAKE: tuple[Callable[..., Layer], ...] = (Layer.conv1d, Layer.conv2d, Layer.conv3d)
DTYPES = ("bfloat16", "float16", "float32")
FACTORS = (
    (0.9, 1.0, 1.0, 1.02, 1.1, 1.25),
    (1.1, 1.5, 2.0, 3.0),
)  # of the least memory, for two of the answers


def real_layers() -> list[Layer]:
    """Layers of real networks, large ones among them."""
    return [
        Layer.conv2d((32, 3, 224, 224), 64, 7, stride=2, padding=3, name="ResNet-50 conv1"),
        Layer.conv2d((32, 256, 14, 14), 256, 3, padding=1, name="ResNet-50 conv4"),
        Layer.conv2d((32, 512, 7, 7), 2048, 1, name="ResNet-50 conv5 expand"),
        Layer.conv2d((32, 64, 224, 224), 64, 3, padding=1, name="VGG-16 conv1_2"),
        Layer.conv2d((8, 2048, 33, 33), 256, 3, padding=12, dilation=12, name="DeepLab ASPP"),
        Layer.conv2d((1, 512, 128, 128), 512, 3, padding=4, dilation=4, name="DRN"),
        Layer.conv2d((32, 768, 56, 56), 768, 7, padding=3, groups=768, name="ConvNeXt depthwise"),
        Layer.conv2d((32, 256, 56, 56), 256, 3, padding=1, groups=32, name="ResNeXt"),
        Layer.conv2d((1, 64, 1024, 1024), 3, 9, padding=4, name="SRGAN head"),
        Layer.conv2d((1, 512, 1024, 1024), 512, 3, padding=1, name="VAE decoder, 1024 rows"),
        Layer.conv3d((1, 512, 18, 64, 64), 512, 3, padding=(0, 1, 1), name="video VAE"),
        Layer.conv3d((1, 128, 65, 720, 1280), 128, 3, padding=(0, 1, 1), name="video VAE, 720 rows"),
        Layer.conv3d((1, 64, 512, 512, 512), 64, 3, padding=1, name="3-D U-Net, 512"),
        Layer.conv3d((2, 256, 32, 32, 32), 512, 3, padding=1, name="3-D U-Net, depth 4"),
        Layer.conv3d((16, 4, 128, 128, 128), 32, 3, padding=1, name="CosmoFlow conv1"),
        Layer.conv3d((2, 512, 16, 16, 16), 256, 2, stride=2, transposed=True, name="3-D U-Net, upsampling"),
        Layer.conv2d((64, 512, 8, 8), 256, 4, stride=2, padding=1, transposed=True, name="DCGAN generator"),
        Layer.conv1d((1, 64, 16384), 64, 2, dilation=512, name="WaveNet"),
        Layer.conv1d((1, 25, 65536), 25, 7, dilation=64, name="TCN"),
        Layer.conv1d((8, 512, 3000), 512, 3, stride=2, name="wav2vec"),
        Layer.conv1d((8, 80, 3000), 512, 3, padding=1, name="Whisper conv1"),
        Layer.conv1d((4, 512, 400), 256, 16, stride=8, padding=4, transposed=True, name="HiFi-GAN"),
        Layer.matmul(4096, 11008, 4096, name="Llama feed-forward"),
        Layer.matmul(65536, 51200, 8192, name="language head"),
    ]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A layer, what is computed, and by how many processes."""

    layer: Layer
    procs: int
    options: dict[str, Any]

    def __str__(self) -> str:
        asked = ", ".join(f"{key.strip('_')} {value}" for key, value in self.options.items())
        name = "" if self.layer.name.startswith("conv") else f"{self.layer.name}: "
        return f"{name}{self.layer}, {asked}, P = {self.procs}"


def random_layer(rng: random.Random, dtype: str) -> Layer:
    """Any kind of layer; the words of its largest tensor are at most 2^30."""
    while True:
        dims = rng.choice((1, 2, 2, 3, 3))
        groups = rng.choice((1, 1, 1, 1, 1, 2, 4, 32))
        sizes = [rng.choice(ROWS[dims])] * dims
        if rng.random() < 0.4:
            sizes = [rng.choice(ROWS[dims]) for _ in range(dims)]
        kernel = [rng.choice((1, 2, 3, 3, 3, 4, 5, 7))] * dims
        if rng.random() < 0.2:
            kernel = [rng.choice((1, 3, 5)) for _ in range(dims)]
        dilation = [rng.choice((1, 1, 1, 2, 3, 4, 16))] * dims
        numbers = {
            "stride": rng.choice((1, 1, 1, 2, 3)),
            "padding": rng.choice((0, [d * (k - 1) // 2 for d, k in zip(dilation, kernel, strict=True)])),
            "dilation": dilation,
            "dtype": dtype,
            "groups": groups,
            "transposed": rng.random() < 0.25,
        }
        shape = (rng.choice((1, 1, 2, 4, 8, 32, 256)), _channels(rng, groups), *sizes)
        try:
            layer = MAKE[dims - 1](shape, _channels(rng, groups), kernel, **numbers)
        except LayerError:
            continue
        if 10**4 < layer.nest.total_words < 2**30:
            return layer


def _channels(rng: random.Random, groups: int) -> int:
    return -(-rng.choice(CHANNELS) // groups) * groups


def case(seed: int, number: int) -> Case:
    """One of the cases of a seed."""
    rng = random.Random(f"{seed}:{number}")
    dtype = rng.choice(DTYPES)
    real = real_layers()
    layer = random_layer(rng, dtype) if number % 4 else rng.choice(real)
    task = rng.choice((*TASKS, "training"))
    options: dict[str, Any] = {"pass_": task}
    if task == "training" and rng.random() < 0.2:
        options["gradients"] = ("ker",)
    return Case(layer, rng.choice(PROCS), options)


@dataclass(frozen=True)
class Answer:
    """One answer: seconds of the plan and with all that is printed; what was answered, in a few words."""

    limit: int
    plan_seconds: float
    seconds: float
    text: str
    least: int | None = None  # bytes that a refusal names


def answer(asked: Case, limit: int) -> Answer:
    """The answer to a case with `limit` bytes, in this process."""
    start = time.process_time()
    try:
        made = plan(asked.layer, asked.procs, limit, **asked.options)
    except InfeasibleError as fault:
        least = re.search(r"--memory (\d+)", str(fault))
        seconds = time.process_time() - start
        said = ("" if fault.proven else "not proven, ") + str(fault).partition("; ")[2][:60]
        return Answer(limit, seconds, seconds, f"refused, {said}", int(least[1]) if least else None)
    seconds = time.process_time() - start
    stage_text(made, "plan")
    words, bound = made.words["total"], made.bound.words
    ratio = f"{words / bound:.2f}" if bound else "-"
    text = f"{made.grid.shown()}, {words} words, {ratio} of the bound"
    text += "" if made.proven_words is None else f", not proven the fewest: {made.proven_words}"
    return Answer(limit, seconds, time.process_time() - start, text)


def _send(pipe: Connection, asked: Case, limit: int) -> None:
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, END)
    pipe.send(answer(asked, limit))


def measured(asked: Case, limit: int) -> Answer:
    """The answer of a new process, whose caches are empty; it ends after `END` seconds."""
    mine, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("fork").Process(target=_send, args=(theirs, asked, limit))
    process.start()
    theirs.close()
    try:
        return mine.recv()  # type: ignore[no-any-return]
    except EOFError:
        process.join()
        if process.exitcode != -signal.SIGPROF:
            raise RuntimeError(f"{asked}, {limit} bytes: exit code {process.exitcode}") from None
        return Answer(limit, END, END, "none in time")
    finally:
        process.join()


def answers(seed: int, number: int) -> Iterator[tuple[str, Case, Answer]]:
    """The three answers to one case, each with its command."""
    asked, rng = case(seed, number), random.Random(f"limits {seed}:{number}")
    command = f"python benchmarks/tight_limits.py --seed {seed} --case {number}"
    word = asked.layer.nest.word_bytes
    first = measured(asked, word)
    yield f"{command} --limit {word}", asked, first
    for factors in FACTORS if first.least else ():
        limit = max(word, int((first.least or 0) * rng.choice(factors)))
        yield f"{command} --limit {limit}", asked, measured(asked, limit)


def _told(found: list[tuple[str, Case, Answer]]) -> Iterator[str]:
    """The distribution and the slowest."""
    for name in ("plan_seconds", "seconds"):
        seconds = sorted(getattr(each, name) for *_, each in found)
        within = sum(each <= WANTED for each in seconds)
        yield (
            f"{name}: {len(seconds)} answers, median {statistics.median(seconds):.2f} s, "
            f"p90 {seconds[len(seconds) * 9 // 10]:.2f} s, p99 {seconds[len(seconds) * 99 // 100]:.2f} s, "
            f"most {seconds[-1]:.2f} s; {within} within {WANTED:g} s"
        )
    for command, asked, each in sorted(found, key=lambda entry: -entry[2].seconds)[:12]:
        yield f"{each.plan_seconds:.2f} {each.seconds:.2f} s  {asked}: {each.text}\n    {command}"


def main() -> None:
    """Asks, and prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=100, help="layers")
    parser.add_argument("--first", type=int, default=0, help="number of the first layer")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="the number of one layer")
    parser.add_argument("--limit", type=int, help="bytes, for --case")
    args = parser.parse_args()
    if args.case is not None and args.limit:
        asked = case(args.seed, args.case)
        each = measured(asked, args.limit)
        print(f"{asked}\n{each.plan_seconds:.2f} s, printed {each.seconds:.2f} s: {each.text}")
        return
    numbers = [args.case] if args.case is not None else range(args.first, args.first + args.count)
    found = []
    for number in numbers:
        for entry in answers(args.seed, number):
            found.append(entry)
            _, asked, each = entry
            seconds = f"{each.plan_seconds:.2f} {each.seconds:.2f} s"
            print(f"{number}, {seconds}, {each.limit} bytes, {asked}: {each.text}", flush=True)
    print("\n".join(_told(found)))


if __name__ == "__main__":
    main()
