"""Networks under torch.compile: one operator in the graph of the module around them.

The code in here is the only one that Dynamo looks into.
"""
