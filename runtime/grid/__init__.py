"""The process grid: coordinates, boxes of index intervals, groups, word counters."""
