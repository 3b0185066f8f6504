"""What a user changes on a network later: seen before a pass, followed or refused."""
