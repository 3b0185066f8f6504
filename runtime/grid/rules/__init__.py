"""Which routine torch, oneDNN or BLAS takes for a call on a processor."""
