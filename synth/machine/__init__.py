"""Machine models: levels of links, kernel rates, and the seconds of a layer on a machine."""
