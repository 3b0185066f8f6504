"""How long a network takes with a strategy on a machine, and how far that agrees with measurements."""
