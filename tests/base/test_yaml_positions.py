"""The YAML reader: every value with its place and spelling, and nothing that is not plain YAML."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from counted_work import at_most
from hypothesis import given, settings
from hypothesis import strategies as st

from synth.base.errors import InputError
from synth.base.user_files import read_text
from synth.base.yaml_positions import (
    MAX_BYTES,
    Listing,
    Mapping,
    Node,
    Scalar,
    did_you_mean,
    parse,
    shown,
)


def complaint(text: str) -> str:
    with pytest.raises(InputError) as caught:
        parse(text, "conv.yaml")
    return str(caught.value)


def assert_one_line(message: str) -> None:
    assert message.startswith("f.yaml:")
    assert message.isprintable()
    assert "; " in message


def test_values_know_their_place_and_spelling() -> None:
    tree = parse("# first\na:\n  - 010\n  - 'x'\nb: {c: yes}\n", "f.yaml")
    assert isinstance(tree, Mapping)
    key, listing = tree.entries["a"]
    assert (key.line, key.column) == (2, 1)
    assert isinstance(listing, Listing)
    assert listing.items == (Scalar("f.yaml", 3, 5, "010", False), Scalar("f.yaml", 4, 5, "x", True))
    inner = tree.entries["b"][1]
    assert isinstance(inner, Mapping)
    assert inner.entries["c"][1] == Scalar("f.yaml", 5, 8, "yes", False)


@pytest.mark.parametrize("text", ["", "\n\n", "# only this\n# and this\n", "\ufeff", "--- # nothing\n...\n"])
def test_nothing_is_none_or_empty(text: str) -> None:
    tree = parse(text, "f.yaml")
    assert tree is None or (isinstance(tree, Scalar) and tree.text == "")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "conv.yaml:3:1: a is given twice, first on line 1; keep one of the two"),
        (
            "a: &x 1\nb: *x\n",
            "conv.yaml:1:4: &x is an anchor or alias, which is not allowed; write the value out",
        ),
        ("b: *x\n", "conv.yaml:1:4: *x is an anchor or alias, which is not allowed; write the value out"),
        ("a: 1\n---\nb: 2\n", "conv.yaml:2:1: a second document starts here; keep one document per file"),
        (
            "a: !!python/object/apply:os.system [ls]",
            "conv.yaml:1:4: the tag !!python/object/apply:os.system is not allowed; write the plain value",
        ),
        ("a: !!int 3", "conv.yaml:1:4: the tag !!int is not allowed; write the plain value"),
        ("a: ! 3", "conv.yaml:1:4: the tag ! is not allowed; write the plain value"),
        ("? [1, 2]\n: 3", "conv.yaml:1:3: a key is a list; keys are plain words"),
        ("a:\n\tb: 1\n", "conv.yaml:2:1: a tab cannot indent in YAML; use spaces"),
        ("a: 1\nb: \x00\n", "conv.yaml:2:4: holds the unprintable character U+0000; remove it"),
        ("a: \ud800\n", "conv.yaml:1:4: holds the unprintable character U+D800; remove it"),
        ("[" * 5000, "conv.yaml:1:18: is nested deeper than 16 levels; input files are nearly flat"),
        ("{a: " * 5000, "conv.yaml:1:66: is nested deeper than 16 levels; input files are nearly flat"),
        ("- " * 5000, "conv.yaml:1:35: is nested deeper than 16 levels; input files are nearly flat"),
    ],
)
def test_refused_with_place_and_remedy(text: str, message: str) -> None:
    assert complaint(text) == message


@pytest.mark.parametrize(
    "text", ["a: [1, 2", "a: 'x", "a: b: c", "a: 1\n b: 2", "}", "a: @x", "%YAML x\n---\n"]
)
def test_syntax_errors_have_a_place(text: str) -> None:
    assert complaint(text).startswith("conv.yaml:")
    assert "not valid YAML (" in complaint(text)
    assert "\n" not in complaint(text)


@pytest.mark.parametrize("bomb", ["[" + "1," * 500_000 + "]", "- 1\n" * 200_000, "a" * (MAX_BYTES + 1)])
def test_large_input_ends_soon(bomb: str) -> None:
    with at_most(calls=500_000):  # 220 000
        complaint(bomb)


def test_a_long_scalar_is_refused_soon() -> None:
    """A search that goes back for each character would not end before the test's limit of minutes."""
    with at_most(calls=500), pytest.raises(InputError, match="not an integer"):  # 94
        Scalar("f", 1, 1, "1" + "_" * 1_000_000 + "x", False).integer("stride")


def test_billion_laughs_is_refused_at_the_first_anchor() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 60)]
    assert complaint("\n".join(lines)).startswith("conv.yaml:1:5: &a0 is an anchor or alias")


@pytest.mark.parametrize(
    ("spelling", "reason"),
    [
        ("yes", "which YAML reads as true or false; write an integer"),
        ("True", "which YAML reads as true or false; write an integer"),
        ("1:30", "which YAML 1.1 reads in base 60; write the number in decimal digits"),
        ("1_000", "which has underscores in it; write the digits alone"),
        ("0x10", "which is hexadecimal; write it in decimal digits"),
        ("0b11", "which is binary; write it in decimal digits"),
        ("010", "which YAML 1.1 reads in base 8; write it without the leading 0"),
        ("0o10", "which YAML 1.1 reads in base 8; write it without the leading 0"),
        ("1e3", "which is a fraction or a float; write it in decimal digits alone"),
        ("3.0", "which is a fraction or a float; write it in decimal digits alone"),
        (".nan", "not an integer; write it in decimal digits"),
        ("~", "not an integer; write it in decimal digits"),
        ("three", "not an integer; write it in decimal digits"),
        ("٣", "not an integer; write it in decimal digits"),
    ],
)
def test_yaml_traps_are_no_integers(spelling: str, reason: str) -> None:
    tree = parse(f"- {spelling}", "conv.yaml")
    assert isinstance(tree, Listing)
    item = tree.items[0]
    assert isinstance(item, Scalar)
    with pytest.raises(InputError) as caught:
        item.integer("stride")
    assert str(caught.value) == f"conv.yaml:1:3: stride is {spelling}, {reason}"


@pytest.mark.parametrize(
    ("spelling", "message"),
    [
        ("'3'", "stride is the text '3'; write 3 without quotes"),
        ("", "stride is empty; write an integer"),
        ("9" * 5000, "stride has 5000 digits; write an integer of at most 2**40"),
    ],
)
def test_other_non_integers(spelling: str, message: str) -> None:
    tree = parse(f"stride: {spelling}", "f.yaml")
    assert isinstance(tree, Mapping)
    value = tree.entries["stride"][1]
    assert isinstance(value, Scalar)
    with pytest.raises(InputError, match=r"^f\.yaml:1:\d+: ") as caught:
        value.integer("stride")
    assert str(caught.value).endswith(": " + message)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-0", 0), ("+7", 7), ("-12", -12), ("1024", 1024)])
def test_plain_digits_are_integers(text: str, value: int) -> None:
    assert Scalar("f", 1, 1, text, False).integer("x") == value


def test_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    path = tmp_path / "dos.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    tree = parse(read_text(path), "dos.yaml")
    assert isinstance(tree, Mapping)
    assert (tree.entries["b"][1].line, tree.entries["b"][1].column) == (2, 4)


def test_user_text_in_messages_is_one_printable_line() -> None:
    assert shown("a\nb\x1b[31m\u202e") == "a\\nb\\x1b[31m\\u202e"
    assert shown("x" * 50) == "x" * 37 + "..."
    assert complaint('"\\e[31m": 1\n"\\e[31m": 2').endswith(
        "\\x1b[31m is given twice, first on line 1; keep one of the two"
    )


def test_did_you_mean() -> None:
    assert did_you_mean("kernal", ["kernel", "stride"]) == "; did you mean kernel?"
    assert did_you_mean("zzz", ["kernel", "stride"]) == "; known are kernel, stride"
    assert did_you_mean("zzz", map(str, range(30))).endswith(", 22, 23 and 6 more")


YAMLISH = st.text(
    st.sampled_from(list("abc:- \n\t[]{},'\"&*!|>%@?#0123456789.~\\\u2028\u0085\ufeffUx")), max_size=60
)


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@settings(deadline=None)
@given(text=st.one_of(st.text(max_size=60), YAMLISH))
def test_garbage_raises_nothing_but_input_errors(loader: str, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "CSafeLoader", getattr(yaml, loader), raising=False)
        try:
            tree = parse(text, "f.yaml")
        except InputError as error:
            assert_one_line(str(error))
        else:
            assert tree is None or isinstance(tree, Node)


@pytest.mark.parametrize("loader", ["CSafeLoader", "SafeLoader"])
@pytest.mark.parametrize(
    "text", ['a: "\\UFFFFFFFF"', f"%YAML {'9' * 5000}.1\n---\na: 1", 'a: "\\xZZ"', 'a: "\\ud800"']
)
def test_escapes_and_versions_out_of_range(loader: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(yaml, "CSafeLoader", getattr(yaml, loader), raising=False)
    try:
        parse(text, "f.yaml")
    except InputError as error:
        assert_one_line(str(error))
