"""The layer that a user describes, and its loop nest: extents, accesses, windows, passes."""
