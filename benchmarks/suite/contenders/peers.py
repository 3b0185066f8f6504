"""All peers by name; `conventions.md` lists what each starts with and what it holds."""

from __future__ import annotations

from benchmarks.suite.contenders.channels import channels, filters
from benchmarks.suite.contenders.contender import Maker
from benchmarks.suite.contenders.data_parallel import ddp, dtensor, fsdp2
from benchmarks.suite.contenders.products import columns, rows, summa
from benchmarks.suite.contenders.spatial import spatial

PEERS: dict[str, Maker] = {
    "DDP": ddp,
    "FSDP2": fsdp2,
    "DTensor batch": dtensor,
    "filter": filters,
    "channel": channels,
    "spatial": spatial,
    "DTensor column": columns,
    "DTensor row": rows,
    "SUMMA": summa,
}
