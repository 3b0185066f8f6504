"""Mean and variance of a shard, without a copy of the shard."""

from __future__ import annotations

import math

import torch

CHUNK = 2**18  # words whose centered values are held at once
FAR = 16  # deviations of a mean from zero, up to which one pass is as exact as two
SHORT = 64  # words of a row up to which torch's kernel is faster than one by rows


def moments(shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means, and sums of squared distances from them, by sample and channel.

    shard: (b, c, *spatial) with at least one word. Both results are (b, c). The rows of
    a chunk stay in the cache between the two passes over them.
    """
    rows = shard.flatten(0, 1).flatten(1) if shard.dim() > 2 else shard.reshape(-1, 1)
    words = rows.shape[1]
    if shard.is_cuda or torch.compiler.is_compiling():
        variance, mean = torch.var_mean(rows, 1, correction=0)
        return mean.view(shard.shape[:2]), (variance * words).view(shard.shape[:2])
    parts = torch.split(rows, max(1, CHUNK // words))
    mean, inverse = _joined([_in_one_pass(part) for part in parts])
    if bool(((mean * inverse).abs() <= FAR).all()):
        squares = inverse.reciprocal_().square_().mul_(words)
    else:
        means = torch.split(mean, len(parts[0]))
        pairs = zip(parts, means, strict=True)
        mean, squares = _joined([_in_two_passes(*pair) for pair in pairs])
    return mean.view(shard.shape[:2]), squares.view(shard.shape[:2])


def _joined(
    parts: list[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Two numbers per row, from those of the parts of the rows."""
    if len(parts) == 1:
        return parts[0]
    first, second = zip(*parts, strict=True)
    return torch.cat(first), torch.cat(second)


def _in_one_pass(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means, and 1 / standard deviations, of a few rows.

    torch's group normalization finds them in one pass over a row. It loses digits where
    a mean is many deviations from zero.
    """
    count, words = rows.shape
    _, means, inverses = torch.native_group_norm(
        rows[None].contiguous(), None, None, 1, count, words, count, 0.0
    )
    return means[0], inverses[0]


def _in_two_passes(
    rows: torch.Tensor, mean: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and sums of squared distances of a few rows; `mean`: theirs, almost."""
    centered = rows - mean[:, None]
    rounding = centered.mean(1)
    squares = centered.square_().sum(1) - centered.shape[1] * rounding.square()
    return mean + rounding, squares


def channel_moments(shard: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances of the channels.

    shard: (b, c, *spatial) with at least one word. Both results are (c,).
    """
    words = words_per_row(shard)
    if words <= SHORT and not shard.is_cuda:
        return torch.batch_norm_update_stats(shard, None, None, 0.0)
    mean, squares = joined_moments(*moments(shard), words)
    return mean, squares / (words * shard.shape[0])


def joined_moments(
    mean: torch.Tensor, squares: torch.Tensor, words: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The moments of all samples of a channel, from those of each sample.

    mean, squares: (b, c), each row of `words` words; results are (c,). The parts are
    combined as in Chan, Golub and LeVeque (1983).
    """
    whole = mean.mean(0)
    return whole, (squares + words * (mean - whole).square()).sum(0)


def words_per_row(shard: torch.Tensor) -> int:
    """Words of one sample and channel."""
    return math.prod(shard.shape[2:])
