"""The local convolution and its gradients on one rank."""
