"""Training steps and decodings of whole networks, ours beside its peers."""
