"""Seals: marks by which ranks know that one of them wrote a value into the store.

Whoever reaches the store may write into it. The launcher gives all its ranks a secret,
which no rank writes anywhere. A value that could end the job carries an HMAC-SHA256
(RFC 2104) of its key and text, made with that secret. A value without it counts as
absent. Under a launcher that gives no secret the seals protect nothing.
"""

from __future__ import annotations

import hmac
import os
from typing import Any

SECRET = "SYNTH_RUN_SECRET"  # the variable of the environment


def sealed(key: str, text: str) -> str:
    """What the store is to hold at a key for a text."""
    told = f"{key}\n{text}".encode()
    secret = os.environ.get(SECRET, "").encode()
    return f"{hmac.new(secret, told, 'sha256').hexdigest()} {text}"


def unsealed(key: str, value: bytes) -> str | None:
    """The text of what the store holds at a key; None if no rank wrote it."""
    text = value.partition(b" ")[2].decode(errors="replace")
    same = hmac.compare_digest(value, sealed(key, text).encode())
    return text if same else None


def read_now(store: Any, key: str) -> str | None:
    """The text at a key of a store; None if no rank has written one. Waits for none.

    `get` waits for a key that is not there. `compare_set` gives the value of one that
    is, and does nothing where the expected value is not that.
    """
    return unsealed(key, bytes(store.compare_set(key, "?", "?")))
