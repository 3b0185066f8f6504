"""Lower bounds on communication: universal bounds, closed forms, relaxations and certificates."""
