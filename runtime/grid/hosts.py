"""The hosts of ranks, and the ranks of a host."""

from __future__ import annotations

import hashlib
import os
from typing import Any


def host_here() -> tuple[str, str]:
    """What tells this rank's host from others: its name, and its number in the job.

    Emulated hosts have one name. Launchers number the hosts that they start.
    """
    number = os.environ.get("GROUP_RANK") or os.environ.get("SLURM_NODEID") or ""
    return os.uname().nodename, number


class HostList:
    """The ranks of a host, which list each other in the store.

    name: of the keys, of this use alone. host: of this rank. rank: this one.

    All enter before one reads, and all read before one leaves. Then no key remains.
    """

    def __init__(self, store: Any, name: str, host: tuple[str, str], rank: int) -> None:
        self.store, self.rank, self.own = store, rank, ""
        digest = hashlib.blake2b(" ".join(host).encode(), digest_size=12).hexdigest()
        self.key = f"{name}/host {digest}/{{}}".format

    def enter(self) -> None:
        """Put this rank on the list."""
        self.own = self.key(self.store.add(self.key("all"), 1))
        self.store.set(self.own, str(self.rank))

    def read(self) -> list[int]:
        """The ranks of this host, ascending."""
        last = self.store.add(self.key("all"), 0)
        return sorted(int(self.store.get(self.key(at))) for at in range(1, last + 1))

    def leave(self, found: list[int]) -> None:
        """Remove the key of this rank, and that of all. found: what `read` gave."""
        self.store.delete_key(self.own)
        if self.rank == found[0]:
            self.store.delete_key(self.key("all"))
