"""Who owns what, and what moves when: distribution, schedule, received volume and memory of a pass."""
