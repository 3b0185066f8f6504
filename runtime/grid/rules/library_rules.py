"""Which routine of torch, oneDNN or BLAS computes a call on a CPU, by its sizes alone.

The planner and the ranks ask this module, so it is plain Python. What oneDNN takes for
a convolution is in `synth.runtime.grid.rules.onednn_rules`.
"""

from __future__ import annotations

FEW_WORDS = 20480  # words of a sample for which torch prefers its own kernel
MANY_SAMPLES = 16  # of images and one tap, for which torch takes oneDNN by itself
FEW_POSITIONS = 128  # of all samples and one tap, up to which torch makes dKer faster
LEAST_WORK = 1 << 22  # multiply-adds of a product below which BLAS is called faster
LEAST_EXTENT = 32  # of its rows and terms: less is read faster by BLAS


def is_large_product(rows: int, terms: int, columns: int) -> bool:
    """Whether a product of matrices in float32 is oneDNN's, where that multiplies."""
    return rows * terms * columns >= LEAST_WORK and min(rows, terms) >= LEAST_EXTENT


def is_small_sample(samples: int, groups: int, words: int) -> bool:
    """Whether torch takes its plain kernel, several times slower than oneDNN in 3-D.

    words: of In; of a volume, those of its first rows (without the last dimension).
    """
    return groups == samples == 1 and words <= FEW_WORDS
