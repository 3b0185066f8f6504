"""What emitted programs and parallelized models call on every rank.

    program   the command line of an emitted program: start, check, time, report
    model     a traced torch model on shards
    layers    planned layers and the steps between them, as torch modules
    kernels   local convolutions, autotuning, the context that holds all state
    comm      collectives, halo exchange, redistribution, prefetch, process groups
    grid      ranks, boxes of index intervals, traffic counter, failure detector
    compiled  a network as one operator of torch.compile; its steps as one graph

Only torch and the standard library are imported. A program emitted with `--standalone`
contains the functions that it uses and does not need this package. There is no
process-wide mutable state: it belongs to the `Context` of a network or a program.
"""
