"""What operators read of their operands, and the call of torch that computes a box."""
