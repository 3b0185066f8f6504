"""Networks of layers: their files and graphs, and the request for a plan."""
