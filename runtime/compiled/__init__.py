"""Networks under torch.compile: one operator in the graph around them, or one graph.

The code in here is the only one that Dynamo looks into.
"""
