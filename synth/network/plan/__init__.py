"""The plan of a network: its words and seconds, its file, its report."""
