"""Steps that read rows of neighbours or move rows: pooling, resizing, slices."""
