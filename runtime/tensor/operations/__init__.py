"""torch's operations on partitioned tensors: a rule for each."""
