"""Where the ranks of a line run: on this machine, or on hosts of an emulated network.

Hosts are network namespaces on one switch. Words between two hosts pass two links, each with a set
bandwidth in either direction (a token bucket). So they take as much time as on a cluster, and no core.
Ranks of one host communicate at the speed of memory. Needs root, Linux and iproute2.

What is not timed (weights that are sent to all ranks, comparisons, warm-up) need not take the time of a slow
link: ranks give the links the bandwidth `FAST` for that (`while_fast`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass

PORT = 29500
BURST = 2e-3, 16_384  # seconds whose bytes may pass an idle link at once, and the fewest such bytes
FAST = "10gbit"  # for what is not timed
NETWORK = "SYNTH_BENCHMARK_NETWORK"  # of ranks on a network: its switch, its number of hosts, bandwidth
WAITING = "400ms"  # the longest that a segment waits for its turn before it is dropped
NET, CONGESTION = "10.77.0.0/24", "cubic"
_RATE = re.compile(r"([1-9][0-9]*(?:\.[0-9]+)?)(k|m|g)bit")


class HostsError(Exception):
    """The network cannot be made here; the message gives the reason."""


@dataclass(frozen=True)
class Hosts:
    """A command prefix per host, and environment variables of the ranks."""

    enter: tuple[tuple[str, ...], ...] = ((),)
    environment: tuple[tuple[str, str], ...] = ()
    link: str = ""  # bandwidth of a link between two hosts

    def __str__(self) -> str:
        return f"{len(self.enter)} hosts on links of {self.link}" if self.link else "one host"

    def torchrun(self, python: str, procs: int) -> list[list[str]]:
        """Per host, the command that starts its ranks, without the program that they run.

        Raises `HostsError` if hosts would have different numbers of ranks.
        """
        count = len(self.enter)
        start = [python, "-m", "torch.distributed.run", "--nproc-per-node", str(procs // count)]
        if count == 1:
            return [[*self.enter[0], *start, "--standalone"]]
        if procs % count:
            raise HostsError(f"{procs} ranks on {count} hosts: as many belong on each")
        start += ["--nnodes", str(count), "--master-addr", address(0), "--master-port", str(PORT)]
        return [[*enter, *start, "--node-rank", str(i)] for i, enter in enumerate(self.enter)]


HERE = Hosts()


def address(host: int) -> str:
    """The address of a host."""
    return f"10.77.0.{host + 1}"


@contextmanager
def network(count: int, rate: str) -> Iterator[Hosts]:
    """Hosts on one switch while the context is open. rate: bandwidth of a link in the notation of `tc`.

    Raises `HostsError` if the system refuses.
    """
    if not 2 <= count <= 200:
        raise HostsError(f"{count} hosts: a network has 2 to 200")
    bits_per_second(rate)
    switch = f"synth-{os.getpid()}"
    names = [f"{switch}-{host}" for host in range(count)]
    heeded = signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # else the network would remain
    try:
        _ip("netns", "add", switch)
        _ip("-n", switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", switch, "link", "set", "switch", "up")
        for host, name in enumerate(names):
            port = f"port{host}"
            _ip("netns", "add", name)
            _ip("-n", switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("-n", switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "addr", "add", f"{address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "route", "replace", NET, "dev", "eth0", "congctl", CONGESTION)
        _shape(switch, count, rate)
        enter = tuple(("ip", "netns", "exec", name) for name in names)
        variables = ("GLOO_SOCKET_IFNAME", "eth0"), (NETWORK, f"{switch} {count} {rate}")
        yield Hosts(enter, variables, rate)
    finally:
        signal.signal(signal.SIGTERM, heeded)
        for name in (*names, switch):
            with suppress(HostsError):  # it was not made
                _ip("netns", "del", name)


def bits_per_second(rate: str) -> float:
    """A bandwidth in the notation of `tc`. Raises `HostsError` for another notation."""
    found = _RATE.fullmatch(rate)
    if not found:
        raise HostsError(f"a bandwidth of {rate!r}: write it like 1gbit or 500mbit")
    return float(found[1]) * {"k": 1e3, "m": 1e6, "g": 1e9}[found[2]]


@contextmanager
def while_fast(meet: Callable[[], object]) -> Iterator[None]:
    """Links of the bandwidth `FAST` for what is not timed; nothing on one host. All ranks must enter it.

    meet: a barrier of the ranks.
    """
    switch, count, rate = (os.environ.get(NETWORK) or "- 0 -").split()
    first = int(count) > 0 and os.environ["RANK"] == "0"
    if first:
        _shape(switch, int(count), FAST)
    meet()
    yield
    meet()
    if first:
        _shape(switch, int(count), rate)
    meet()


def _shape(switch: str, count: int, rate: str) -> None:
    """Give all links of a network a bandwidth, in both directions."""
    seconds, least = BURST
    burst = max(least, round(seconds * bits_per_second(rate) / 8))
    shape = ["root", "tbf", "rate", rate, "burst", str(burst), "latency", WAITING]
    for host in range(count):
        _run("tc", "-n", switch, "qdisc", "replace", "dev", f"port{host}", *shape)
        _run("tc", "-n", f"{switch}-{host}", "qdisc", "replace", "dev", "eth0", *shape)


def add_options(parser: ArgumentParser) -> None:
    """`--hosts` and `--link`."""
    parser.add_argument("--hosts", type=int, default=1, metavar="N", help="spread the ranks over a network")
    parser.add_argument("--link", default="1gbit", metavar="RATE", help="bandwidth of its links (1gbit)")


def asked(args: Namespace) -> AbstractContextManager[Hosts]:
    """The hosts that the options request. Raises `HostsError` when it is entered."""
    return nullcontext(HERE) if args.hosts == 1 else network(args.hosts, args.link)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as fault:
        raise HostsError(f"{command[0]} cannot be started ({fault.strerror}); install iproute2") from fault
    if done.returncode:
        said = " ".join(done.stderr.split()) or f"code {done.returncode}"
        raise HostsError(f"`{' '.join(command)}` failed ({said}); hosts need root on Linux")
