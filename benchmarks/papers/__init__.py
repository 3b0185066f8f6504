"""What papers print, computed again.

`printed_numbers.py` has sizes and rates, `printed_times.py` times beside predictions (`make published`),
`accuracy.py` predictions of measured times on many ranks from few (`make accuracy`), `all_reduce.py` the
all-reduce of swCaffe with messages, and `all_reduce_times.py` its times beside those of torch.
"""
