"""A store of one process that plays all ranks, and counts the calls and bytes of each."""

from __future__ import annotations

from collections import Counter
from typing import Any


class CountingStore:
    """What torch's stores do, for the rank `now`. A key that is waited for must be there.

    calls, sent, received: rank -> calls, bytes of what it wrote, with keys; and of what it read.
    """

    def __init__(self) -> None:
        self.held: dict[str, bytes] = {}
        self.now = 0
        self.calls, self.sent, self.received = Counter[int](), Counter[int](), Counter[int]()

    def set(self, key: str, value: str) -> None:
        """Write."""
        self._count(len(key) + len(value), 0)
        self.held[key] = value.encode()

    def get(self, key: str) -> bytes:
        """Read."""
        self._count(len(key), len(self.held[key]))
        return self.held[key]

    def add(self, key: str, by: int) -> int:
        """Add to a number."""
        self._count(len(key) + 8, 8)
        found = int(self.held.get(key, b"0")) + by
        self.held[key] = str(found).encode()
        return found

    def compare_set(self, key: str, expected: str, value: str) -> bytes:
        """Write if the store holds what is expected; what it holds then."""
        there = self.held.get(key)
        if (there is None and not expected) or there == expected.encode():
            there = self.held[key] = value.encode()
        there = expected.encode() if there is None else there
        self._count(len(key) + len(expected) + len(value), len(there))
        return there

    def check(self, keys: list[str]) -> bool:
        """Whether keys are there."""
        self._count(sum(map(len, keys)), 1)
        return all(key in self.held for key in keys)

    def wait(self, keys: list[str], _limit: Any = None) -> None:
        """The keys are there, as nobody else would write them."""
        self._count(sum(map(len, keys)), 1)
        missing = [key for key in keys if key not in self.held]
        assert not missing, missing

    def delete_key(self, key: str) -> bool:
        """Remove."""
        self._count(len(key), 1)
        return self.held.pop(key, None) is not None

    def most(self) -> tuple[int, int]:
        """Calls, and bytes in both directions, of the ranks that have most of each."""
        return max(self.calls.values()), max(self.sent[rank] + self.received[rank] for rank in self.calls)

    def _count(self, sent: int, received: int) -> None:
        self.calls[self.now] += 1
        self.sent[self.now] += sent
        self.received[self.now] += received
