"""Networks of layers: their files and graphs."""
