"""What is measured: ours and its peers, each a module with a timed step."""
