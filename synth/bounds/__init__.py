"""Lower bounds on communication: universal, closed form, relaxation, and certificates of them."""
