"""The timeline of a replayed step as SVG data: what each kind of rank computes and sends, and when.

Boxes that would be narrower than a pixel are joined with their neighbours of the same row and kind.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from synth.prediction.replay import RANKS, Replay
from synth.prediction.task_graph import Task

WIDE, LEFT, RIGHT, ROW, GAP, TOP = (
    1240,
    150,
    30,
    26,
    10,
    26,
)  # pixels: the picture, its labels, rows, the axis above
NARROW = 1.0  # pixels up to which neighbours are joined
TICKS = 6
STREAMS = ("compute", "network")
LONGEST = 8  # tasks in the table


@dataclass
class _Box:
    start: float
    end: float
    kind: str
    names: list[str]


def timeline(made: Replay) -> dict[str, Any]:
    """Rows, boxes and ticks of the picture, in pixels; and the longest tasks of the busier rank."""
    whole = made.seconds or 1.0
    scale = (WIDE - LEFT - RIGHT) / whole
    rows: list[dict[str, Any]] = []
    for kind, rank in enumerate(RANKS):
        for stream in STREAMS:
            y = TOP + len(rows) * ROW + (GAP if kind else 0)
            boxes = joined([t for t in made.tasks if t.stream == stream], kind, scale)
            rows.append(
                {
                    "y": y,
                    "label": f"{rank}: {stream}",
                    "boxes": [
                        {
                            "x": round(LEFT + box.start * scale, 2),
                            "wide": round(max(0.5, (box.end - box.start) * scale), 2),
                            "kind": box.kind,
                            "about": _about(box),
                        }
                        for box in boxes
                    ],
                }
            )
    return {
        "rows": rows,
        "wide": WIDE,
        "high": TOP + 4 * ROW + GAP + 6,
        "row": ROW,
        "left": LEFT,
        "ticks": [
            {"x": round(LEFT + whole * scale * i / TICKS, 1), "text": f"{whole * 1e3 * i / TICKS:.3g}"}
            for i in range(TICKS + 1)
        ],
        "longest": _longest(made),
        "said": [line.replace("`", "") for line in str(made).splitlines()[: 2 + len(made.left_out)]],
    }


def joined(tasks: list[Task], kind: int, scale: float) -> list[_Box]:
    """Boxes in order of their start, without those of no width."""
    boxes: list[_Box] = []
    for task in sorted(tasks, key=lambda each: each.start[kind]):
        start, end = task.start[kind], task.end[kind]
        if end <= start:
            continue
        what = kind_of(task)
        last = boxes[-1] if boxes else None
        narrow = last and min(last.end - last.start, end - start) * scale < NARROW
        if last and narrow and last.kind == what and (start - last.end) * scale < NARROW:
            last.end = max(last.end, end)
            last.names.append(task.name)
        else:
            boxes.append(_Box(start, end, what, [task.name]))
    return boxes


def kind_of(task: Task) -> str:
    """What a task is drawn as: computing, or the tensor that it moves; else words between layers."""
    if task.stream == "compute":
        return "work"
    words = task.name.removeprefix(task.layer).split()
    return next((t.lower() for t in ("In", "Ker", "Out") if {t, f"d{t}"} & {*words}), "halo")


def _about(box: _Box) -> str:
    rest = f" and {len(box.names) - 1} more" if len(box.names) > 1 else ""
    return f"{box.names[0]}{rest}: {box.start * 1e3:.4g} to {box.end * 1e3:.4g} ms"


def _longest(made: Replay) -> list[tuple[str, str, str]]:
    """The tasks that take longest on the rank with the largest blocks: name, stream, milliseconds."""
    found = sorted(made.tasks, key=lambda task: -task.seconds[0])[:LONGEST]
    return [(task.name, task.stream, f"{task.seconds[0] * 1e3:.4g}") for task in found if task.seconds[0] > 0]
