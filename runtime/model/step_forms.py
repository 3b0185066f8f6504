"""What compiled code has as constants: modes of steps, and settings of modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from synth.runtime.layers.steps.one_mode import InOneMode

if TYPE_CHECKING:
    from synth.runtime.model.step_graph import StepGraph


class StepForms:
    """The form of the steps of step graphs, made anew where they follow a change."""

    def __init__(self) -> None:
        self.known: dict[int, tuple[object, str]] = {}

    def of(self, program: StepGraph) -> str:
        """The modes and settings of the steps."""
        known = self.known.get(id(program))
        if known is None or known[0] is not program.follows:
            said: list[Any] = [each.training for each in program.modules()]
            for step in program.steps.values():
                inner: Any = step.inner if isinstance(step, InOneMode) else step
                said += (getattr(inner.module, name) for name in inner.settings)
            known = self.known[id(program)] = program.follows, repr(said)
        return known[1]
