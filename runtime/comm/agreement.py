"""Ranks agree on what they do before they communicate.

All ranks of a network run the same program. A rank that calls something alone, such as
a loss on rank 0 only, would wait for ever, or would add words that do not belong
together. So ranks first exchange what each is about to do, on a process group of its
own, in messages of one size. With them go fingerprints of what must be the same on all
ranks: batches, targets, numbers, gradients of wholes.

Up to 16 ranks tell each other directly. More combine what they say along a tree, in
O(log P) messages of a rank.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from synth.runtime.comm.group_tree import GroupTree, by_tree
from synth.runtime.comm.messages import all_to_all
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.grid.fingerprint import (
    Fingerprint,
    Number,
    OfTensor,
    joint,
    of_numbers,
    of_tensor,
    read,
)
from synth.runtime.grid.forks import require_rank
from synth.runtime.grid.launched_job import reason_of
from synth.runtime.grid.rank_tree import DIRECT, Said
from synth.runtime.grid.spans import waiting
from synth.runtime.grid.transport import near
from synth.runtime.grid.user_lines import UserLine, user_line

TEXT = 168  # bytes for the network and what a rank does with it
NAME = 48  # characters for the network
CHANGED = "a pass after changes"  # of the network; see `runtime.model.live`
TOGETHER = (
    "all ranks must call the same in the same order (compute a loss, a norm or"
    " full_tensor() on every rank; the order of a set differs between ranks)"
)
REFUSED = "what torch refuses, "
FORM = struct.Struct(f"={TEXT}s8sq")


class Note(NamedTuple):
    """What must be the same on all ranks: in words, the user's line, its words."""

    what: str
    line: str
    seen: Fingerprint


class Refused(NamedTuple):
    """What torch refuses on a rank: its error's class, the call, and what it says."""

    kind: type[Exception]
    what: str
    said: str


class Where(NamedTuple):
    """The user's line at which a rank is, and what torch refuses there, if it does."""

    line: str
    refused: Refused | None


class Difference(NamedTuple):
    """What differs between two ranks, which are global, in words.

    asked: whether it was asked for, or noted before.
    """

    said: str
    ranks: tuple[int, int]
    asked: bool


class Told(NamedTuple):
    """What ranks are about to do, their numbers, and digests of their words.

    apart: whether ranks that must have the same words have others, bit by bit.
    words: of ranks of which all must have the same; "" where `apart` says it.
    """

    doing: Said
    number: Said
    words: Said
    apart: bool

    def with_child(self, child: Told) -> Told:
        """The same of this subtree and that of a child."""
        return Told(
            self.doing.with_child(child.doing),
            self.number.with_child(child.number),
            self.words.with_child(child.words),
            self.apart or child.apart,
        )


class Agreement:
    """The channel on which the ranks of a network agree.

    members: their global ranks, ascending. groups: where networks of these ranks have a
        process group of torch for these messages.
    name: of the network, for messages.
    alike: the sets of places in `members` of which the tensors must be the same; None
        for all. device: of the messages: the host, but a GPU where nothing carries
        tensors of the host.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        groups: ProcessGroups,
        alike: Sequence[Sequence[int]] | None = None,
        name: str = "",
    ) -> None:
        self.members, self.groups, self.network = members, groups, name[:NAME]
        self.group = self._shared_group(groups)
        self.alike = [range(len(members))] if alike is None else alike
        host = torch.device("cpu")
        self.device = host if len(members) == 1 else near(host, self.group)
        # a number of this rank; then that of the first, and whether another has another
        self.number, self.first_number, self.numbers_differ = 0, 0, False
        self.refused: Refused | None = None  # here, in the call that ends now
        # what, where, its fingerprint: of what goes with the next message
        self.noted: list[tuple[str, UserLine | None, OfTensor | Fingerprint]] = []

    def _shared_group(self, groups: ProcessGroups) -> Any:
        """A group for these messages alone; along the tree, that of all ranks."""
        size = len(self.members)
        if size > DIRECT and by_tree(groups.ranks.group, size):
            return groups.ranks.group
        return groups.of_networks()

    def note(self, what: str, values: torch.Tensor | Sequence[Number]) -> None:
        """Compare what must be the same on all ranks when they next agree.

        what: it is, for messages. values: a tensor, or numbers.
        """
        if len(self.members) == 1:
            return
        seen: OfTensor | Fingerprint
        if isinstance(values, torch.Tensor):
            seen = of_tensor(values)
        else:
            seen = of_numbers(*values)
        self.noted.append((what, user_line(), seen))

    def require(self, what: str) -> None:
        """Raise `RuntimeError` on all ranks unless all are about to do `what`.

        And if something that was noted differs between ranks.
        """
        self.apart(what)

    def require_done(self, what: str, fault: Exception | None) -> None:
        """Raise on all ranks what torch says of a call on the words of one.

        what: the call. fault: what this rank has; None if it has a result.
        """
        if fault is None:
            self.apart(what)
            return
        self.refused = Refused(type(fault), what, str(fault))
        try:
            self.apart(f"{REFUSED}{what}")
            tree = by_tree(self.group, len(self.members))  # every rank has a fault
            self._raise_refused(self._at_places([0], tree))
        finally:
            self.refused = None

    def _raise_refused(self, found: Mapping[int, Where]) -> None:
        """Raise on all ranks the error of the first of some places that has one."""
        for place, (_, refused) in found.items():
            if refused is not None:
                kind, what, said = refused
                raise kind(
                    f"{what} refuses the words of rank {self.members[place]} ({said}),"
                    " so no rank goes on with the pass; give it other words, as where()"
                    " or clamp() make them"
                )

    def apart(
        self, what: str, tensors: Iterable[torch.Tensor] = ()
    ) -> tuple[int, int] | None:
        """Two ranks whose tensors must be the same, but are not.

        Raises `RuntimeError` on all ranks as `require` does.
        """
        if len(self.members) == 1:
            self.first_number = self.number
            return None
        require_rank(self.group)
        noted, self.noted = self.noted, []
        asked = [("", None, of_tensor(each)) for each in tensors]
        seen = read(each for _, _, each in (*noted, *asked))
        names = [name for name, _, _ in (*noted, *asked)]
        digest = joint(zip(names, seen, strict=True))
        tree = by_tree(self.group, len(self.members))
        tell = self._told_by_tree if tree else self._told
        try:
            told = tell(f"{self.network}\0{what}".encode()[:TEXT], digest)
        except RuntimeError as error:
            raise RuntimeError(
                f"this rank is at {what}{_line()}, where not every rank came:"
                f" {reason_of(error)}; {TOGETHER}"
            ) from error
        self._require_same_call(told.doing, tree)
        self.first_number = int(told.number.text)
        self.numbers_differ = told.number.other >= 0
        if not told.apart and told.words.other < 0:
            return None
        lines = ["" if line is None else str(line) for _, line, _ in (*noted, *asked)]
        notes = list(map(Note, names, lines, seen))
        differs = self._difference_by_tree if tree else self._difference
        found = differs(notes, len(asked))
        if found is None or found.asked:
            return found and found.ranks
        batches = any(each.startswith("batch") for each in names)
        loader = "; load batches with synth.feed or synth.sampler" if batches else ""
        raise RuntimeError(
            f"{what}: {found.said}; plain tensors and numbers must be the same on"
            " all ranks where they meet a partitioned tensor; compute, draw or"
            " broadcast them alike, or give each rank its own part by"
            f" PartitionedTensor.from_local (to_local() gives the own part){loader}"
        )

    def _told(self, text: bytes, digest: bytes) -> Told:
        """What all ranks say, from each directly: one sees at once that any is gone."""
        sent = bytearray(FORM.pack(text.ljust(TEXT), digest, self.number))
        mine = torch.frombuffer(sent, dtype=torch.uint8).to(self.device)
        rows = mine.new_empty(len(self.members), len(sent))
        with waiting("wait until all ranks agree"):
            to_all = mine.expand(len(rows), -1).flatten()
            all_to_all(rows.view(-1), to_all, None, None, self.group).wait()
        told = [FORM.unpack(bytes(row)) for row in rows.cpu().numpy()]
        bits = [bits for _, bits, _ in told]
        apart = any(bits[at] != bits[each[0]] for each in self.alike for at in each)
        first, *others = (
            _own(place, text, number, "", apart)
            for place, (text, _, number) in enumerate(told)
        )
        for other in others:
            first = first.with_child(other)
        return first

    def _told_by_tree(self, text: bytes, digest: bytes) -> Told:
        """The same along trees: of the ranks with the same words, then of all."""
        words, apart = digest.hex(), False
        if len(self.alike) > 1:
            said = Said(words, self.me)
            apart = self._column.combined(said, Said.with_child).other >= 0
            words = ""
        own = _own(self.me, text, self.number, words, apart)
        with waiting("wait until all ranks agree"):
            told: Told = self._tree.combined(own, Told.with_child)
        return told

    @cached_property
    def me(self) -> int:
        """The place of this rank among the members."""
        return self.members.index(dist.get_rank())

    @cached_property
    def _tree(self) -> GroupTree:
        return GroupTree(self.group, self.members, self.me)

    @cached_property
    def _column(self) -> GroupTree:
        """The tree of the members whose tensors must be the same as this rank's."""
        places = next(each for each in self.alike if self.me in each)
        ranks = [self.members[place] for place in places]
        return GroupTree(self.group, ranks, list(places).index(self.me))

    def _require_same_call(self, told: Said, tree: bool) -> None:
        if told.other < 0:
            return
        said = [each.split("\0", 1) for each in (told.text, told.other_text)]
        places, ours = (0, told.other), said[0][0] == said[1][0]
        doing = [what if ours else f"{what} of {network}" for network, what in said]
        found = self._at_places(places, tree)
        self._raise_refused(found)
        changes = any(each.startswith(CHANGED) for each in doing)
        one, other = (
            f"rank {self.members[place]} {word}at {text}{found[place].line}"
            for place, word, text in zip(places, ("is ", ""), doing, strict=True)
        )
        remedy = "make the same changes on every rank" if changes else TOGETHER
        raise RuntimeError(f"{one}, but {other}: {remedy}")

    def _at_places(self, places: Sequence[int], tree: bool) -> dict[int, Where]:
        """Where some ranks are. All ranks call this."""
        own = Where(_line(), self.refused)
        if tree:
            mine = {self.me: own} if self.me in places else {}
            found: dict[int, Where] = self._tree.combined(mine, lambda a, b: a | b)
            return found
        told = [own] * len(self.members)
        dist.all_gather_object(told, own, group=self.group)
        return {place: told[place] for place in places}

    def _difference(self, notes: list[Note], asked: int) -> Difference | None:
        """The first that differs by more than rounding. All ranks call this."""
        told: list[tuple[list[Note], int]] = [([], 0)] * len(self.members)
        dist.all_gather_object(told, (notes, asked), group=self.group)
        for places in self.alike:
            first, *others = places
            mine, count = told[first]
            for place in others:
                at = self.members[first], self.members[place]
                for index, pair in enumerate(zip_longest(mine, told[place][0])):
                    found = _apart(*pair, at)
                    if found is not None:
                        return Difference(found, at, index >= len(mine) - count)
        return None

    def _difference_by_tree(self, notes: list[Note], asked: int) -> Difference | None:
        """The same: each rank compares its notes with those of its tree's first."""
        first, count = self._column.from_root((notes, asked))
        number = next(n for n, each in enumerate(self.alike) if self.me in each)
        at = self.members[self.alike[number][0]], self.members[self.me]
        pairs = enumerate(zip_longest(first, notes))
        apart = ((index, _apart(*pair, at)) for index, pair in pairs)
        found = next(
            (
                (number, self.me, Difference(said, at, index >= len(first) - count))
                for index, said in apart
                if said is not None
            ),
            None,
        )
        lowest = self._tree.combined(
            found, lambda a, b: min((e for e in (a, b) if e is not None), default=None)
        )
        return None if lowest is None else lowest[2]


def _line() -> str:
    """The user's line that is now running, as messages have it."""
    line = user_line()
    return "" if line is None else str(line)


def _own(place: int, text: bytes, number: int, words: str, apart: bool) -> Told:
    """What one rank tells."""
    doing = text.decode(errors="replace").rstrip()
    told = Said(doing, place), Said(str(number), place), Said(words, place)
    return Told(*told, apart)


def _apart(one: Note | None, other: Note | None, ranks: tuple[int, int]) -> str | None:
    """In words, how what two ranks were given differs; None where it does not."""
    if one is not None and other is not None and one.what == other.what:
        if one.seen.is_like(other.seen):
            return None
        return (
            f"rank {ranks[1]} was given another {other.what} than rank"
            f" {ranks[0]}{other.line}"
        )
    given = [f"the {e.what}{e.line}" if e else "nothing" for e in (one, other)]
    pairs = zip(ranks, given, strict=True)
    return ", but ".join(f"rank {rank} was given {what}" for rank, what in pairs)
