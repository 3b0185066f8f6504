"""What papers print, computed again.

`printed_numbers.py` has sizes and rates. `printed_times.py` has times beside predictions (`make published`).
`accuracy.py` predicts measured times on many ranks from few (`make accuracy`). `all_reduce.py` is the
all-reduce of swCaffe with messages, and `all_reduce_times.py` has its times beside those of torch.
"""
