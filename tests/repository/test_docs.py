"""The documentation: every `$ synth` command prints what is shown there, every link leads somewhere."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import synth
from synth.analysis.certificate import plan_certificate
from synth.bounds.certificate_check import check
from synth.cli.main import main, parsed, parser
from synth.planning.derive import plan
from synth.prediction.prediction import Comparison

DOCS = sorted(Path("docs").glob("*.md"))
PAGES = sorted(
    [*DOCS, *Path(".").glob("*.md"), *Path("examples").glob("*.md"), *Path("benchmarks").glob("*.md")]
)
BLOCKS = [
    pytest.param(command, shown, id=f"{path.stem}: {command}")
    for path in DOCS
    for command, shown in re.findall(
        r"```console\n\$ ([^\n]*)\n(.*?)```", path.read_text(encoding="utf-8"), re.S
    )
]


@pytest.mark.parametrize(("command", "shown"), BLOCKS)
@pytest.mark.one_in(2)
def test_commands_print_what_is_shown(command: str, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split(command)[1:]) == 0
    printed = capsys.readouterr().out
    if "\n...\n" not in f"\n{shown}":
        assert alike(printed, shown)
        return
    lines = [line for line in printed.splitlines() if line.strip()]
    for part in re.split(r"^\.\.\.\n", shown, flags=re.M):  # "..." stands for any lines
        wanted = [line for line in part.splitlines() if line.strip()]
        found = (i for i in range(len(lines)) if alike("\n".join(lines[i : i + len(wanted)]), part))
        first = next(found, None)
        assert first is not None, part
        lines = lines[first + len(wanted) :]


COMMANDS = [
    pytest.param(line, id=f"{path}:{number}")
    for path in PAGES
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
    if re.match(r"^(?: {4}|\$ )(?:\$ )?synth [a-z]+( |$)", line) and "..." not in line
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_pages_is_one_that_synth_reads(line: str) -> None:
    words = shlex.split(line.strip().removeprefix("$ "), comments=True)
    ends = [words.index(end) for end in ("|", ">", "&&", "&") if end in words]
    parsed(words[1 : min(ends, default=len(words))])


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 40


def alike(printed: str, shown: str) -> bool:
    """Whether two texts have equal words, and numbers that differ by a solver's last digit at most."""
    (text, numbers), (wanted, right) = split(printed), split(shown)
    return text == wanted and numbers == pytest.approx(right, rel=1e-5, abs=0.11)


def split(text: str) -> tuple[list[str], list[float]]:
    """The words of a text with a mark for every number, and the numbers."""
    number = r"-?\d{1,3}(?: \d{3})+(?!\d)|-?\d+(?:\.\d+)?(?:e[+-]?\d+)?"
    values = [float(each.replace(" ", "")) for each in re.findall(number, text)]
    return re.sub(number, "#", text).split(), values


def test_texts_that_differ_are_not_alike() -> None:
    assert alike("a  1 234 words\n", "a 1 234 words")
    assert not alike("a 1 234 words", "a 1 235 words")
    assert not alike("a 1 234 words", "b 1 234 words")
    assert not alike("a 1 234 words", "a 1 234")


def test_certificate_of_the_documentation() -> None:
    lines = check(plan_certificate(plan("examples/conv.yaml", 64)))[:-1]  # the claim is a long line
    assert "\n".join(lines) in Path("docs/laboratory.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_links_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for link, anchor in re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", text):
        target = path.parent / link if link else path
        assert target.exists(), link
        assert not anchor or anchor in anchors(target.read_text(encoding="utf-8")), anchor
    assert text.count("```") % 2 == 0
    assert tables_are_whole(text)


def anchors(text: str) -> set[str]:
    """What the headings of a page can be linked by."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def tables_are_whole(text: str) -> bool:
    """Whether all rows of each table have as many cells as its head."""
    blocks = re.findall(r"(?:^\|.*\n)+", re.sub(r"```.*?```", "", text, flags=re.S), re.M)
    widths = [{len(re.findall(r"(?<!\\)\|", row)) for row in block.splitlines()} for block in blocks]
    return all(len(each) == 1 for each in widths)


def test_tests_named_in_the_documentation_exist() -> None:
    sources = {path.name: path.read_text(encoding="utf-8") for path in Path("tests").rglob("test_*.py")}
    for name in re.findall(r"`(test_\w+)`", Path("docs/robustness.md").read_text(encoding="utf-8")):
        assert any(f"def {name}(" in text for text in sources.values()), name


@pytest.mark.parametrize("path", PAGES, ids=str)
def test_flags_of_commands_exist(path: Path) -> None:
    """A flag that a page names beside a command is one of this command's, so that no page outlives a flag."""
    known = parser()._subparsers
    assert known is not None
    (commands,) = (dict(action.choices or ()) for action in known._group_actions)
    text = path.read_text(encoding="utf-8")
    for name, rest in re.findall(r"(?:`|^\s+\$? ?|&& |\(|-m )synth ([a-z]+)\b([^`\n|&#]*)", text, re.M):
        assert name in commands, f"synth {name}"
        for flag in re.findall(r"(?<=\s)--[a-z][\w-]*", rest):
            assert flag in commands[name]._option_string_actions, f"synth {name} {flag}"


def test_modules_named_in_the_documentation_exist() -> None:
    """What has a dot after `synth`, in backticks, is public, a module, or defined in one."""
    texts = (path.read_text(encoding="utf-8") for path in PAGES if path.name != "CHANGELOG.md")
    named = {name for text in texts for name in re.findall(r"`synth\.([\w.]+)`", text)}
    assert "planning.derive.derive" in named
    assert [name for name in sorted(named) if not (name in synth.__all__ or is_defined(name))] == []


def is_defined(name: str) -> bool:
    """Whether a dotted name below `synth` is a module or folder, or a function or class in one."""
    place = Path("synth", *name.split("."))
    if place.is_dir() or place.with_suffix(".py").is_file():
        return True
    source = place.parent.with_suffix(".py")
    defines = re.compile(rf"^(?:def|class) {place.name}\b", re.M)
    return source.is_file() and bool(defines.search(source.read_text(encoding="utf-8")))


def test_every_table_of_results_names_its_commit() -> None:
    rows = re.findall(
        r"^\| \[.*\]\(\.\./benchmarks/results/(.*)\.md\) \| [0-9a-f]{8} \| \d{4}-\d\d-\d\d \|$",
        Path("docs/evidence.md").read_text(encoding="utf-8"),
        re.M,
    )
    assert sorted(rows) == sorted(path.stem for path in Path("benchmarks/results").glob("*.md"))


@pytest.mark.slow
def test_the_strategies_of_the_page_on_predictions() -> None:
    page = Path("docs/oracle.md").read_text(encoding="utf-8")
    names, numbers = re.findall(r"^\| (plan \| data.*) \|\n\|[-|]*\|\n\| (.*) \|$", page, re.M)[0]
    shown = dict(zip(names.split(" | "), map(float, numbers.split(" | ")), strict=True))
    shards = shown.pop("plan with shards alone")
    network = "examples/networks/resnet50.yaml"
    made = synth.predict(network, 64, "lassen")
    assert isinstance(made, Comparison)
    found = {each.strategy: each.seconds * 1e3 for each in made.predictions}
    assert shown == {name: pytest.approx(found[name], rel=1e-3) for name in shown}
    step = synth.plan(network, 64, pass_="training", objective="time", machine="lassen")
    assert isinstance(step, synth.NetworkPlan)
    assert shards == pytest.approx(step.cost * 1e3, rel=1e-3)
