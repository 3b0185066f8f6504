"""Work balance: the extra work that the most loaded rank may do so that fewer words move.

It is a fraction of the multiply-adds that the most loaded rank does at best.
"""

from __future__ import annotations

from synth.base.errors import UsageError

BALANCE = 0.10  # the default
MOST_BALANCE = 10.0  # in practice no restriction


def check_balance(balance: object) -> None:
    """Raises `UsageError` where `balance` is no number from 0 to `MOST_BALANCE`."""
    if not isinstance(balance, int | float):
        raise UsageError(f"balance is {balance!r}; it must be between 0 (no extra work) and {MOST_BALANCE:g}")
    if not 0 <= balance <= MOST_BALANCE:
        raise UsageError(f"balance is {balance}; it must be between 0 (no extra work) and {MOST_BALANCE:g}")
