"""Commands about lower bounds: bounds, certificates, errata of the paper."""
