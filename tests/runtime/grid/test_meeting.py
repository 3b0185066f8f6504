"""The store in which ranks meet: who can reach it."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from synth.runtime.grid import meeting

LIMIT = datetime.timedelta(seconds=20)


def _listeners(port: int) -> set[str]:
    """The local addresses on which something listens at a port, as the kernel writes them."""
    tables = "".join(Path(f"/proc/net/{name}").read_text() for name in ("tcp", "tcp6"))
    rows = (line.split() for line in tables.splitlines())
    local = (row[1] for row in rows if len(row) > 3 and row[3] == "0A")
    return {address.rpartition(":")[0] for address in local if int(address.rpartition(":")[2], 16) == port}


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_a_store_of_one_machine_is_not_reached_from_another(name: str) -> None:
    store = meeting._own_store(name, 0, True, LIMIT, "open")
    assert _listeners(store.port) == {"0100007F"}
    again = meeting._own_store(name, store.port, False, LIMIT, "open")
    again.set("key", "value")
    assert store.get("key") == b"value"


def test_a_store_for_other_hosts_listens_on_all_interfaces() -> None:
    assert meeting._local_listener("node-7", 0) is None


def test_a_process_shares_the_store_that_it_has() -> None:
    """A second start of the same job, before the store of the first one is closed."""
    first = meeting._own_store("127.0.0.1", 0, True, LIMIT, "first")
    second = meeting._own_store("127.0.0.1", first.port, True, LIMIT, "second")
    assert second.get("first") == b""
    assert _listeners(first.port) == {"0100007F"}
