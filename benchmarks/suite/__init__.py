"""One layer on P ranks: ours beside the common alternatives. `python -m benchmarks.suite --help`.

A line is (layer, P, work); work is a training step or a forward pass. All contenders of a line run in the
same processes of one torchrun, one thread per rank, in alternating order. Their values are first compared
with torch's on one process. `conventions.md` lists what each starts with and what it holds at the end.
"""
