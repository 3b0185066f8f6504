"""Studies of a layer or a plan: sweeps, trade-offs, certificates, errata of the paper."""
