"""What ranks of a network check of each other: what they are given, hold and do."""
