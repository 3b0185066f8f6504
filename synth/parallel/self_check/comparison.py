"""A comparison of a model with its network: values to run both, the network, all modes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from synth.base.errors import CheckError, InfeasibleError, UsageError
from synth.base.free_memory import available_bytes
from synth.base.units import show_bytes
from synth.parallel.front_end.import_model import silence
from synth.parallel.front_end.trace_model import TracedModel, trace_model
from synth.parallel.recipe import NetworkRecipe, PreparedModel
from synth.parallel.self_check.extents import same_calls, smaller, words
from synth.parallel.self_check.report import Checked
from synth.runtime.grid.log import first_line

if TYPE_CHECKING:
    import torch
    from torch import nn

    from synth.runtime.model.self_check.deadline import Deadline
    from synth.runtime.model.self_check.passes import Pair
    from synth.runtime.tracing.inputs import Arguments, Inputs

BUILD = 1.5  # time to plan and to build a network, beside that to trace it: 0.8 to 1.4 measured
PASSES = 4.0  # passes in both modes, beside the first one of the model
COPIES = 6  # of all parameters: the model, its network, and gradients of both, before they are compared
VALUES = 3  # copies of what all calls make, and their gradients
SHARE = 0.5  # of the memory that is free
OFTEN = 8.0  # times the words of the user's inputs, from which on a step of them is longer than a comparison
REMEDY = (
    "write that call in another form and report it, as a network would compute what the model does not"
    " (check=False makes it nevertheless)"
)
Limit = Callable[[float], float]


class NotComparedError(Exception):
    """Why a model and its network cannot be compared. final: in another dtype neither."""

    def __init__(self, reason: str, final: bool = False) -> None:
        super().__init__(reason)
        self.final = final


@dataclass
class Sample:
    """A model with values for its inputs, as it is compared.

    seconds: of a pass of the model, with gradients.
    """

    model: nn.Module
    traced: TracedModel
    inputs: Inputs
    arguments: Arguments
    values: list[torch.Tensor]
    seconds: float


@dataclass
class Comparison:
    """What is compared, and how long it may take.

    full: the model, traced for its inputs. whole: whether inputs are taken as they are, in their extents.
    inference: whether outputs in evaluation are all. limit: seconds that the comparison may take, of those of
    a step of the model in one process; None for no limit.
    """

    model: nn.Module
    inputs: Inputs
    full: TracedModel
    whole: bool
    inference: bool
    batch_norm: str
    limit: Limit | None = None
    deadline: Deadline = field(default_factory=lambda: _started())

    def result(self) -> Checked:
        """What was compared, or why it could not be. Raises `CheckError` where the two differ."""
        from synth.runtime.model.self_check.deadline import OutOfTime
        from synth.runtime.model.self_check.untouched import collected, untouched

        name = type(self.model).__name__
        try:
            with ExitStack() as inside:
                inside.enter_context(collected())
                inside.enter_context(untouched(self.full.device))
                inside.enter_context(silence())
                inside.enter_context(self.deadline)
                return self._compared(name)
        except NotComparedError as error:
            return Checked(name, seconds=self.deadline.passed, reason=str(error))
        except OutOfTime:
            reason = f"it takes longer than the {self.deadline.seconds:.1f} s that it may"
            return Checked(name, seconds=self.deadline.passed, reason=reason)

    def _compared(self, name: str) -> Checked:
        import torch

        self._require_checked_indices()
        dtypes = [torch.float64] if self.full.device.type != "mps" else []
        failed: Exception | None = None
        for wide in (*dtypes, None):
            torch.set_default_dtype(wide or self.full.dtype)
            try:
                sample = self._sample(wide)
                pair = self._pair(sample)
                modes, notes = self._modes(pair, sure=wide is None)
            except NotComparedError as error:
                if error.final:
                    raise
                failed = failed or error
                continue
            shapes = sample.inputs.mapped(lambda spec: spec._replace(dtype=None))
            dtype = str(sample.traced.dtype).removeprefix("torch.")
            calls = sum(node.op.startswith("call") for node in pair.graph.nodes)
            return Checked(name, calls, modes, str(shapes), dtype, self.deadline.passed, notes)
        raise failed or NotComparedError("nothing can be computed")

    # -- values --------------------------------------------------------------------------------------------

    def _require_checked_indices(self) -> None:
        """Raises `NotComparedError` for calls that read foreign memory where their indices are wrong.

        Only values that the user gives are then known to be right.
        """
        from synth.runtime.model.self_check.twins import place_of_node
        from synth.runtime.tracing.recorded import function_name

        for node in () if self.whole else self.full.graph.nodes:
            unsafe = node.kwargs.get("unsafe") or "unsafe_" in function_name(node.target)
            if node.op == "call_function" and unsafe:
                raise NotComparedError(
                    f"{place_of_node(node)} does not check its indices; give inputs with values", final=True
                )

    def _require_memory(self, ratio: float, wide: torch.dtype | None) -> None:
        """Raises `NotComparedError` for a model that this process cannot hold several times.

        ratio: words of the user's inputs, beside those of the comparison.
        """
        size = (wide or self.full.dtype).itemsize
        held = sum(values.numel() for values in (*self.model.parameters(), *self.model.buffers()))
        shapes = (getattr(node.meta.get("value"), "shape", ()) for node in self.full.graph.nodes)
        made = sum(math.prod(shape) for shape in shapes) / ratio
        need, free = round(size * (COPIES * held + VALUES * made)), self._free_bytes()
        if free is not None and need > SHARE * free:
            raise NotComparedError(
                f"it would take about {show_bytes(need)} of memory, more than half of the {show_bytes(free)}"
                " that are free"
            )

    def _free_bytes(self) -> int | None:
        import torch

        if self.full.device.type == "cuda":
            return int(torch.cuda.mem_get_info(self.full.device)[0])
        return available_bytes()

    def _sample(self, wide: torch.dtype | None) -> Sample:
        """A model with values, in the smallest extents that it takes. wide: its dtype; None for its own."""
        from synth.runtime.model.self_check.samples import cut_to, in_dtype
        from synth.runtime.tracing.inputs import Arguments

        if any(values.is_meta for values in (*self.model.parameters(), *self.model.buffers())):
            raise NotComparedError("its parameters have no values")
        own = Arguments(self.model, self.inputs)
        every = list(smaller(self.inputs, own.specs, wide))
        every = every[-1:] if self.whole else every
        self._require_memory(words(own.specs) / max(1, words(Arguments(self.model, every[0]).specs)), wide)
        model, examples, failed = in_dtype(self.model, wide), own.examples(), ""
        for inputs in every:
            self.deadline.look()
            arguments = Arguments(model, inputs)
            ratio = words(own.specs) / max(1, words(arguments.specs))
            pairs = zip(examples, arguments.specs, strict=True)
            cut = [cut_to(example, spec.shape) for example, spec in pairs]
            found = self._values(model, arguments, cut, wide or self.full.dtype, ratio)
            if isinstance(found, str):
                failed = found
                continue
            values, seconds = found
            if self.limit is not None:
                step = seconds * ratio * self.full.dtype.itemsize / (wide or self.full.dtype).itemsize
                self.deadline.within(self.limit(step))
            begin = self.deadline.passed
            try:
                traced = trace_model(model, inputs)
            except (ValueError, InfeasibleError, UsageError) as error:
                failed = f"{error}"
                continue
            if not same_calls(traced.graph, self.full.graph):
                failed = "it makes other calls for other extents"
                continue
            self._require_time(self.deadline.passed - begin, seconds)
            return Sample(model, traced, inputs, arguments, values, seconds)
        raise NotComparedError(failed)

    def _values(
        self,
        model: nn.Module,
        arguments: Arguments,
        examples: list[torch.Tensor | None],
        dtype: torch.dtype,
        ratio: float,
    ) -> tuple[list[torch.Tensor], float] | str:
        """Values that the model takes, and seconds of a pass; why there are none."""
        from synth.runtime.model.self_check.passes import measured
        from synth.runtime.model.self_check.samples import tried

        failed = ""
        if self.limit is not None:
            self.deadline.within(self.limit(float("inf") if ratio >= OFTEN else 0.0))
        for values in tried(model, arguments, examples, dtype):
            try:
                finite, seconds = measured(model, arguments, values, not self.inference, self.deadline)
            except Exception as error:  # whatever the user's model raises
                failed = f"it fails on values that were tried: {first_line(error)}"
                continue
            if finite:
                return values, seconds
            failed = (
                failed or "it gives NaN or infinity for the values that were tried; give inputs with values"
            )
        return failed

    def _require_time(self, traced: float, step: float) -> None:
        """Raises `NotComparedError` where what is left to do takes too long, by what was measured."""
        if self.limit is None:
            return
        whole, most = self.deadline.passed + BUILD * traced + PASSES * step, self.deadline.seconds
        if whole > most:
            reason = f"it would take about {whole:.1f} s, more than the {most:.1f} s that it may"
            raise NotComparedError(reason, final=True)

    # -- both ----------------------------------------------------------------------------------------------

    def _pair(self, sample: Sample) -> Pair:
        """The model and the network that `parallelize` makes of it, on this process."""
        from synth.runtime.grid.ranks import Alone
        from synth.runtime.model.network import Network
        from synth.runtime.model.self_check.passes import Pair

        alone = Alone.here()
        options: dict[str, Any] = {"refuse": False, "bucket_bytes": None, "check_finite": False}
        options["batch_norm"] = self.batch_norm
        asked = not self.inference
        recipe = NetworkRecipe(alone, None, asked, None, options, self.inference)
        prepared = PreparedModel(sample.traced, {}, None, False)
        parts = recipe.parts(sample.model, sample.inputs, prepared)
        parts = parts._replace(make=self._timely(parts.make))
        network = Network(sample.model, parts, alone)
        return Pair(sample.model, network, parts.graph, sample.arguments, sample.values, asked)

    def _timely(self, make: Callable[..., Any]) -> Callable[..., Any]:
        """What makes a layer, as long as there is time."""

        def made(*given: Any) -> Any:
            self.deadline.look()
            return make(*given)

        return made

    def _modes(self, pair: Pair, sure: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The modes in which the two were compared, and what was left out.

        sure: whether a network that raises an error is wrong; else it may be the dtype that it refuses.
        """
        from synth.runtime.model.self_check.verdict import verdict

        done, notes = list[str](), list[str]()
        for name, mode in self._all_modes(pair.model):
            try:
                if mode is not None:
                    pair.set_modes(mode)
            except ValueError as error:
                notes.append(str(error))
                continue
            found = verdict(pair, name)
            if found.fails and not sure:
                raise NotComparedError(found.fault)
            if found.fault:
                raise CheckError(f"{found.fault}; {REMEDY}")
            (notes if found.left_out else done).append(found.left_out or name)
        return tuple(done), tuple(notes)

    def _all_modes(self, model: nn.Module) -> Iterator[tuple[str, bool | None]]:
        """The modes to compare: the model's own first."""
        words = {True: "training", False: "evaluation"}
        if self.inference:
            yield words[False], None
            return
        modes = {each.training for each in model.modules()}
        own = model.training
        yield words[own] if len(modes) == 1 else f"{words[own]} of some modules", None
        if len(modes) > 1:
            yield words[own], own
        yield words[not own], not own


def _started() -> Deadline:
    from synth.runtime.model.self_check.deadline import Deadline

    return Deadline()
