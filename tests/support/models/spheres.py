"""A sphere of twelve faces (HEALPix, Gorski et al. 2005), whose borders come from the faces around each."""

from __future__ import annotations

import torch
from torch import nn


def bordered(x: torch.Tensor) -> torch.Tensor:
    """Faces of (12 b, c, n, n) with a row of their neighbours: (12 b, c, n + 2, n + 2)."""
    x = x.unflatten(0, (-1, 12))
    faces = [each.squeeze(1) for each in x.split(1, 1)]
    made = [around(faces, ring, n) for ring in range(3) for n in range(4)]
    return torch.stack(made, 1).flatten(0, 1)


def around(faces: list[torch.Tensor], ring: int, n: int) -> torch.Tensor:
    """Face `n` of a ring: 0 around the north pole, 1 at the equator, 2 around the south pole."""

    def face(of: int, place: int, turns: int = 0) -> torch.Tensor:
        return torch.rot90(faces[4 * of + (n + place) % 4], turns, (-2, -1))

    here = face(ring, 0)
    if ring == 0:
        sides = face(0, 1, 1), face(1, 0), face(0, -1, -1), face(1, 1)
        corners = face(0, 2, 2), face(0, -1), face(0, 1), face(2, 0)
    elif ring == 1:  # two corners, where three faces meet, are means of two words
        sides = face(0, 0), face(2, -1), face(0, -1), face(2, 0)
        one = (sides[0][..., -1:, :1] + sides[2][..., :1, -1:]) / 2
        other = (sides[1][..., :1, -1:] + sides[3][..., -1:, :1]) / 2
        corners = one, face(1, -1), face(1, 1), other
    else:
        sides = face(1, 1), face(2, -1, 1), face(1, 0), face(2, 1, -1)
        corners = face(0, 0), face(2, -1), face(2, 1), face(2, 2, 2)
    above, below, left, right = sides
    middle = torch.cat([above[..., -1:, :], here, below[..., :1, :]], -2)
    first = torch.cat([corners[0][..., -1:, -1:], left[..., -1:], corners[1][..., :1, -1:]], -2)
    last = torch.cat([corners[2][..., -1:, :1], right[..., :1], corners[3][..., :1, :1]], -2)
    return torch.cat([first, middle, last], -1)


class Healpix(nn.Module):
    """Two convolutions on the faces, as weather models have them (Karlbauer et al. 2024)."""

    def __init__(self, channels: int = 4, width: int = 8) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(channels, width, 3), nn.Conv2d(width, channels, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(12 b, c, n, n)"""
        made: torch.Tensor = self.second(bordered(self.first(bordered(x)).relu()))
        return made
