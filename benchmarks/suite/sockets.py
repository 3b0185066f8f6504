"""Bytes that a process sent and received: over TCP, as the kernel counts them, and through shared memory.

The count of sockets is below torch's interface. It includes what gloo adds to the planned words (headers,
copies, whole all-reduces instead of reduce-scatters), and excludes other processes of the machine. Bytes that
synth moves through memory that ranks of a host share cross no socket, and are added.
"""

from __future__ import annotations

import os
import socket
import struct
from typing import NamedTuple

from synth.runtime.comm.host_memory import SharedBytes

RECEIVED, SENT = (
    128,
    200,
)  # offsets of tcpi_bytes_received, tcpi_bytes_sent in struct tcp_info (Linux >= 4.19)
INFO = 256  # bytes asked for; the kernel fills what it knows


class Traffic(NamedTuple):
    """Bytes of payload since the process started, on sockets that are open."""

    sent: int
    received: int

    def since(self, before: Traffic) -> Traffic:
        """The difference to an earlier reading."""
        return Traffic(self.sent - before.sent, self.received - before.received)


def traffic() -> Traffic:
    """Bytes over all TCP sockets that this process holds open, and through memory that ranks share.

    Raises `OSError` if the kernel does not provide the count (systems other than Linux, or an old one).
    """
    sent, received = SharedBytes.sent, SharedBytes.received
    for descriptor in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{descriptor}").startswith("socket:"):
                continue
            copy = socket.socket(fileno=os.dup(int(descriptor)))
        except OSError:  # closed meanwhile
            continue
        with copy:
            if copy.family not in (socket.AF_INET, socket.AF_INET6) or copy.type != socket.SOCK_STREAM:
                continue
            info = copy.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO)
        if len(info) < SENT + 8:
            raise OSError(f"the kernel tells {len(info)} bytes of tcp_info, fewer than {SENT + 8}")
        received += struct.unpack_from("Q", info, RECEIVED)[0]
        sent += struct.unpack_from("Q", info, SENT)[0]
    return Traffic(sent, received)
