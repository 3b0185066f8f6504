"""What a check of a network beside its model says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Checked:
    """A network that was compared with its model, or why it was not.

    model: its class. calls: of the model that were compared. modes: "training", "evaluation", or "as it is"
    where parts of the model are in other modes. input: extents of the inputs. dtype: of real numbers.
    seconds: that it took. notes: what was left out, in words. reason: why nothing was compared; "" else.
    """

    model: str
    calls: int = 0
    modes: tuple[str, ...] = ()
    input: str = ""
    dtype: str = ""
    seconds: float = 0.0
    notes: tuple[str, ...] = ()
    reason: str = ""

    @property
    def done(self) -> bool:
        """Whether the two were compared in some mode."""
        return bool(self.modes)

    def __str__(self) -> str:
        """One line."""
        if not self.done:
            why = "; ".join((self.reason, *self.notes)).strip("; ")
            return f"{self.model} is not compared with one process: {why}"
        notes = "".join(f"; {each}" for each in self.notes)
        return (
            f"{self.model} is as in one process in {self.calls} calls, in {' and '.join(self.modes)}, for an"
            f" input of {self.input} in {self.dtype}, compared in {self.seconds:.1f} s{notes}"
        )
