"""What the lower bounds assume, in the sentences that reports, plan files, sweeps and certificates print.

docs/bounds.md uses each of them in its proof. This module has text only, so that `certificate_check` can
compare the claim of a certificate with it.
"""

from __future__ import annotations

SCHEDULES = (
    "classical multiply-adds, each on a real input element done once, in one process",
    "one owner of every word of In, Ker and Out, at the start and at the end",
    "words that travel whole, from process to process, and are not added on the way",
)
TILED = "tiled schedules of Eq. 3 of Li et al. (SPAA'21) only, halos left out (Eq. 4)"


def conditions(procs: int, most_work: int, limit_words: int | None, training: bool = False) -> list[str]:
    """All that a bound on received words assumes, a phrase each.

    `most_work`: the most multiply-adds of one process in one pass, without those on padding. `limit_words`:
    memory of a process, None for unlimited; the bound of a training step does not use it.
    """
    work = f"{procs} processes, at most {most_work} multiply-adds in each"
    memory = (
        "any memory" if limit_words is None or training else f"at most {limit_words} words of memory each"
    )
    return [*SCHEDULES, work + (" and each pass" if training else ""), memory]


def claim(words: str, procs: int, most_work: int, limit_words: int | None) -> str:
    """The sentence that a certificate of one pass proves; `words` is a fraction p/q as text."""
    assumed = "; ".join(conditions(procs, most_work, limit_words))
    return f"a process receives at least {words} words, on average over the processes, given: {assumed}"
