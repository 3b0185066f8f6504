"""One process interprets the schedule of all ranks, and verifies it."""
