"""One layer on P ranks: ours beside what people use today. `python -m benchmarks.suite --help`.

A line is (layer, P, work), work being a training step or a forward pass. All contenders of a line run in the
same processes of one torchrun, one thread per rank, in alternating order, after their values were compared
with torch's on one process. `conventions.md` says what each is given and what it holds at the end.
"""
