"""The margins of a planned network, and what they save."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from synth.network.margins.walk import NOTHING, Rows


@dataclass(frozen=True)
class Margins:
    """Rows that ranks compute although others own them.

    recompute: extra multiply-adds of the busiest process that were allowed, as a fraction of its own; None
    for any that save seconds. rows: covered tensor -> rows beyond the own block along d, h and w that a rank
    may compute. words: tensor -> words that the most-receiving rank fetches of it, in training with those of
    its gradient, `back`, of the rank that receives most. seconds: of these
    exchanges, of a plan for time. extra_work: multiply-adds on rows that others own, of the rank with most of
    them, as a fraction of those of the busiest rank on its own rows. rounds: the longest chain of exchanges
    of rows and of layers. rounds_before, words_before: the same, and words, if these layers were cut by
    output rows and every row were fetched. exact: whether no margins among those that were tried cost less,
    but for `above`: how many more words than these, as a fraction, were taken for fewer rounds. layers: the
    covered tensors with a loop nest.
    """

    recompute: float | None
    rows: dict[str, Rows]
    words: dict[str, int]
    extra_work: float
    rounds: int
    rounds_before: int
    words_before: int
    exact: bool
    above: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)
    layers: frozenset[str] = field(default=frozenset(), repr=False)
    back: dict[str, int] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        """Words, summed over tensors."""
        return sum(self.words.values())

    @property
    def fetched(self) -> int:
        """Those of the forward pass."""
        return self.cost - sum(self.back.values())

    def to_json(self) -> dict[str, Any]:
        """The data of a plan file."""
        return {
            "recompute": self.recompute,
            "tensors": [
                {
                    "name": name,
                    "rows": list(rows),
                    "words": self.words.get(name, 0),
                    "covered": name in self.rows,
                    **({"seconds": self.seconds[name]} if name in self.seconds else {}),
                    **({"back": self.back[name]} if name in self.back else {}),
                }
                for name, rows in self.listed().items()
            ],
            "extra_work": self.extra_work,
            "rounds": self.rounds,
            "rounds_before": self.rounds_before,
            "words_before": self.words_before,
            "exact": self.exact,
            **({"above": self.above} if self.above else {}),
        }

    def listed(self) -> dict[str, Rows]:
        """Those of which words are fetched and that are not covered, then all covered tensors."""
        others = (name for name in self.words if name not in self.rows)
        return {**dict.fromkeys(others, NOTHING), **self.rows}
