"""Long lines are broken as `ruff format` breaks them."""

from __future__ import annotations

import random
import subprocess
import sys

from synth.codegen.line_breaks import WIDTH, fit

NAMES = ("at", "block", 'panels["In"]', "touched_in(work(at))", '("d", "h", "w")', "context", "owned_out")
HEADS = ("run(", "total = reduce(", 'pending["dOut"] = gather(', "return reference(", "a.b(c).counted(")


def test_calls_are_broken_as_a_formatter_does() -> None:
    rng, lines = random.Random(0), []
    for _ in range(300):
        arguments = ", ".join(rng.choice(NAMES) for _ in range(rng.randint(1, 12)))
        lines.append(f"    {rng.choice(HEADS)}{arguments})")
    text = fit("def function():\n" + "\n".join(lines))
    assert max(map(len, text.splitlines())) <= WIDTH
    done = subprocess.run(
        [sys.executable, "-m", "ruff", "format", "--isolated", "--no-cache", "-"],
        input=text,
        text=True,
        capture_output=True,
        check=True,
    )
    assert done.stdout == text


def test_comments_are_wrapped_and_short_lines_stay() -> None:
    assert fit("x = f(a, b)\n") == "x = f(a, b)\n"
    text = fit("    # " + "word " * 30)
    assert all(line.startswith("    # word") and len(line) <= WIDTH for line in text.splitlines())
    assert text.split().count("word") == 30


def test_a_bracket_in_a_string_opens_nothing() -> None:
    arguments = ", ".join(['"("', *["argument"] * 6, '")"'])
    assert (
        fit(f"a_function_of_some_length({arguments})") == f"a_function_of_some_length(\n    {arguments}\n)\n"
    )
