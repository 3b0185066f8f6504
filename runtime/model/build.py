"""Builds the steps of a network: one for each call of a traced model."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from functools import partial
from math import prod
from types import MappingProxyType
from typing import Any

import torch
from torch import fx, nn

from synth.runtime.comm.exchanges import added
from synth.runtime.comm.layout import Layout, replicated
from synth.runtime.grid.boxes import shape
from synth.runtime.grid.log import LOG
from synth.runtime.grid.row_maps import CONSTANT
from synth.runtime.kernels.context import Context
from synth.runtime.layers.planned_layer import (
    PlannedBoxes,
    PlannedLayer,
    PlannedLinearOnMap,
)
from synth.runtime.layers.steps.draws import Draws
from synth.runtime.layers.steps.expression import ExpressionStep
from synth.runtime.layers.steps.gathered_step import GatheredStep, Several, empty_copy
from synth.runtime.layers.steps.held import Held
from synth.runtime.layers.steps.homes import is_at_home
from synth.runtime.layers.steps.one_mode import InOneMode, follow
from synth.runtime.layers.steps.pulled import Pulled
from synth.runtime.layers.steps.step import Step
from synth.runtime.model.checks.as_called import Expected, require_handed
from synth.runtime.model.margins import MarginPlace, Margins
from synth.runtime.model.parameters import first_names, homes
from synth.runtime.model.states import Left
from synth.runtime.model.step_graph import Wiring
from synth.runtime.model.templates import device_of
from synth.runtime.model.wanted_layouts import Make, PlannedLayers, WantedLayouts
from synth.runtime.operators.alike_positions import PositionBlocks
from synth.runtime.operators.batch_norms import BatchNorms
from synth.runtime.operators.call import Call, node_shape
from synth.runtime.operators.gradient_paths import gradient_paths
from synth.runtime.operators.projections import Projections
from synth.runtime.operators.step_choice import choose_step, hold
from synth.runtime.operators.table import RULES, Operator, Operators
from synth.runtime.rules.pointwise import base_of
from synth.runtime.rules.rule import Operand, is_trainable
from synth.runtime.tensor.partition import Partition
from synth.runtime.tracing.attributes import Attributes
from synth.runtime.tracing.expressions import DRAWS, is_expression, may_change
from synth.runtime.tracing.open_regions import may_save
from synth.runtime.tracing.recorded import function_name
from synth.runtime.tracing.updates import Update

MOST = 20  # lines of gathered calls
INSTANCE_NORMS = "instance_norm", "InstanceNorm1d", "InstanceNorm2d", "InstanceNorm3d"


class Builder(Wiring):
    """Makes the steps of a network, and what connects them.

    The first rank logs the calls that every rank computes from the whole.

    make: the planned layer for a name, a module, the shape of its input and the
        context of the network, or None.
    refuse: raise `ValueError` for a call that could only be computed from the whole.
    batch_norms: makes the steps of batch normalizations.
    given_homes: where the parameters are held already; None to hold them where the
        steps use them. partitions: key -> that of a tensor which the network has;
        others are new. device: of the steps; None for that of the parameters.
    places: node -> the boxes of all ranks before and after a layer without weights.
    inference: only forward passes run, so that ranks may compute the same words.
    margins: node -> its boxes where ranks compute rows of others; see `Margins`.
    states: node of an input -> where it lies, as an earlier call left it.
    quiet: whether gathered calls are not logged.

    expected: node -> what its step makes, as it was traced. inputs: nodes.
    """

    def __init__(
        self,
        model: nn.Module,
        graph: fx.Graph,
        make: Make,
        context: Context,
        places: Mapping[str, PlannedBoxes],
        refuse: bool,
        batch_norms: BatchNorms,
        given_homes: Mapping[str, Held] | None = None,
        device: torch.device | None = None,
        inference: bool = False,
        partitions: Mapping[str, Partition] = MappingProxyType({}),
        margins: Mapping[str, MarginPlace] = MappingProxyType({}),
        states: Mapping[str, Layout] = MappingProxyType({}),
        quiet: bool = False,
    ) -> None:
        super().__init__(context)
        self.states = states
        # of words between steps, and of halos; they do not refer to this
        self._counter = partial(context.counter, "move", 0)
        self._halo_counter = partial(context.counter, "halo", 0)
        self.places = places
        self.refuse, self.batch_norms = refuse, batch_norms
        self.device = device or device_of(model)
        self.modules = dict(model.named_modules())
        tensors: dict[str, torch.Tensor] = {
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
        }
        self.operators = Operators(self.modules, tensors)
        self.positions = PositionBlocks(graph, self.operators)
        self.projections: Projections | None = None
        if inference:
            known = self.operators, self.steps, self.layouts
            self.projections = Projections(*known, self._chosen, self._counter)
        self.tensors, self.first_names = tensors, first_names(model)
        where = context.ranks, self._halo_counter, batch_norms
        self.margins = Margins(margins, *where)
        self.rings = self.margins.rings
        self.planned = PlannedLayers(make, context)
        self.wanted = WantedLayouts(self.operators, self.planned, places, context.ranks)
        self.expected: dict[str, Expected] = {}
        self.several: dict[object, Several] = {}  # by the call that gives several
        # reader, value -> its copy
        self.copies: dict[tuple[fx.Node, fx.Node], str] = {}
        self.inputs: list[str] = []
        self.whole: list[str] = []
        for node in graph.nodes:
            self._read(node)
        self.projections = None  # which refers to this, so that the model would stay
        if self.whole and context.ranks.reports and not quiet:
            LOG.warning("\n".join([*self.whole[:MOST], *self._more()]))
        self.homes = homes(self.held, self.steps, self.tensors, context.ranks)
        for node in graph.nodes:
            self._check_views(node.meta.get("changes_views", ()))
        if given_homes is not None:
            self.homes = {
                key: given_homes.get(key) or self._whole(key, use)
                for key, use in self.homes.items()
            }
        for key in self.homes.keys() & partitions.keys():
            use, held = self.homes[key], partitions[key]
            if use.partition != held:  # where an optimizer knows it, it stays
                self.homes[key] = Held(use.module, use.name, held)
        for key, use in self.homes.items():
            if use.partition is not None:
                self.homes[key] = use._replace(partition=use.partition.named(key))

    def _read(self, node: fx.Node) -> None:
        match node.op:
            case "placeholder":
                self.inputs.append(node.name)
                self.batch_norms.add_input(node_shape(node))
                owned = self.margins.add(node, None, f"{node.name} of the input")
                known = self.states.get(node.name)
                self.layouts[node.name] = owned or known or self.wanted.of_input(node)
            case "output":
                given: Any = node.args[0]
                self.graph_outputs: tuple[fx.Node, ...] = tuple(given)
                self.outputs = tuple(each.name for each in given)
                self.structure = node.meta["structure"]
                self.shared = node.meta.get("shared", frozenset())
                self.left_out = node.meta.get("left out", ())
                self.left = node.meta.get("left", {})
                self.modes = node.meta.get("refused", {})
                self.attributes = node.meta.get("attributes", Attributes())
            case "call_module" | "call_function":
                self._add(node)

    def _add(self, node: fx.Node) -> None:
        call = self.operators.call(node)
        covered = self.margins.covers(node)
        step = self._expression(call) if is_expression(node) else self._shards(call)
        gathered = isinstance(step, GatheredStep)
        if not gathered:  # which has no tensors
            step.to(self.device)
        step.autocast = node.meta.get("autocast", ())
        if not isinstance(step, GatheredStep | ExpressionStep):
            step.trains = node.meta["trains"]  # the others have it as an argument
        if "only" in node.meta and not is_expression(node):
            step = self._in_one_mode(call, step)
        self.steps[node.name] = step
        maker = str(node.meta["module"])
        own = maker if call.module is None else str(node.target)
        self.targets[node.name] = own, maker
        follow(step, self.modules[own], self.modules[maker])
        if call.module is not None or isinstance(step, PlannedLayer):
            self.names[node.name] = call.owner
        if not node.meta.get("grad", True):
            self.detached.add(node.name)
        if "shows" in node.meta:
            self.shows[node.name] = node.meta["shows"]
        value = node.meta["value"]
        if value is not None and is_trainable(value) and call.word != "detach":
            self.floats.add(node.name)
            if gathered or call.module is None:
                self._add_paths(call)
        for mode, region in node.meta.get("regions", {}).items():
            self.regions.setdefault(mode, {})[node.name] = region
        for mode in (True, False):
            if node.meta.get("saving", {}).get(mode, may_save(node)):
                self.saving.setdefault(mode, {})[node.name] = _updates_first(call)
        reads = [self.copies.get((node, each), each.name) for each in call.inputs]
        self.calls.append((node.name, (*reads, *_expressions(call))))
        owned = self.margins.add(node, step.layout, call.name)
        self.layouts[node.name] = owned or step.layout
        self.covered |= {node.name} if covered else set()
        require_handed(call, step, step.held_tensors())
        self._add_held(node.name, call, step)
        if value is not None:
            self.expected[node.name] = Expected.of(call, step)
        self.generators += call.generators

    def _shards(self, call: Call) -> Step:
        """The step of a call that depends on the input."""
        operator = self.operators.operator(call)
        layouts = {each: self.layouts[each.name] for each in call.inputs}
        if self.margins.covers(call.node):
            return self.margins.step(call, operator, layouts)
        return self._step(call, operator, layouts)

    def _expression(self, call: Call) -> Step:
        """The step of a call that does not."""
        self.expressions.add(call.node.name)
        values = {call.state_key(name): v for name, v in call.parameters.values()}
        calls = {mode: call.filled(training=mode) for mode in (True, False)}
        changes = {True, False} if may_change(call.node) else set[bool]()
        if "only" in call.node.meta:
            calls[not call.node.meta["only"]] = call.passed()
            changes &= {call.node.meta["only"]}
        return ExpressionStep(
            calls[True],
            calls[False],
            values,
            self.context.ranks,
            self.device,
            _draws(call) and not call.generators,
            call.out,
            changes,
        )

    def _in_one_mode(self, call: Call, step: Step) -> Step:
        """A step for a call that the other mode does not make."""
        passed: fx.Node | None = call.node.meta["passes"]
        if passed is None:
            return InOneMode(step, call.node.meta["only"], None, None)
        place, layout = call.inputs.index(passed), self.layouts[passed.name]
        count = self._counter(call.name)
        return InOneMode(step, call.node.meta["only"], place, (layout, count))

    def _add_held(self, name: str, call: Call, step: Step) -> None:
        """The keys by which the user's model knows what a step uses."""
        entries, uses = call.entries(), step.held_tensors()
        self.held[name] = [
            (self.first_names.get(entries[own], entries[own]), held)
            for own, held in uses.items()
        ]

    def _add_paths(self, call: Call) -> None:
        """By what the result of a call has a gradient."""
        paths = gradient_paths(call)
        if paths is not None:
            names = {self.first_names.get(each, each) for each in paths}
            self.paths[call.node.name] = names

    def _step(
        self, call: Call, operator: Operator, layouts: Mapping[fx.Node, Layout]
    ) -> Step:
        """The planned layer, the step of the operator, or one that gathers."""
        step: Step | None = None
        place = self.places.get(call.node.name)
        if operator.kind == "layer":
            step = self._planned(call, operator, layouts)
        elif place is not None:
            step = self._placed(call, operator, layouts, place)
        else:
            joins = operator.kind == "cat"
            wanted = self.wanted.by_reader(call.node) if joins else None
            wanted = self._beside(call) if operator.kind == "reindex" else wanted
            step = self._chosen(call, layouts, wanted)
        if operator.kind == "product" and step is not None:
            step = self._of_all_rows(call, step)
        if step is None:
            self.batch_norms.check_gathered(call, operator.module or call.module)
        return step or self._gathered(call, layouts)

    def _beside(self, call: Call) -> Layout | None:
        """Where a padded value is added to another one that lies; else None.

        No constant moves then. Padding by a few rows stays with its rows, too.
        """
        form, users = self.operators.form(call.node, "reindex"), [*call.node.users]
        padded = any(CONSTANT in each.rows for each in form.maps)
        if not padded or len(users) != 1 or not users[0].op.startswith("call"):
            return None
        (user,) = users
        if is_expression(user) or self.margins.covers(user) or self.rings:
            return None
        read = self.operators.call(user)
        if self.operators.operator(read).kind != "elementwise":
            return None
        base = base_of(read.shapes, user.meta.get("like"))
        found = self.layouts.get(read.inputs[base].name)
        return found if found is not None and found.whole == call.out else None

    def _chosen(
        self,
        call: Call,
        layouts: Mapping[fx.Node, Layout],
        wanted: Layout | None = None,
    ) -> Step | None:
        """The step of a call for the layouts of what it reads."""
        operator, count = self.operators.operator(call), self._counter(call.name)
        given = layouts, self._counter, self.batch_norms, wanted
        step = choose_step(call, operator, *given)
        if operator.kind == "local":
            ((_, source),) = layouts.items()
            step = self.positions.step(call, source, step, count)
        return step

    def _of_all_rows(self, call: Call, planned: Step) -> Step:
        """The step of a product; of attention, the one that moves fewer words."""
        found = self.projections and self.projections.of_all_rows(call, planned)
        if not found:
            return planned
        self.calls = [each for each in self.calls if each[0] not in found.unread]
        for name, node, step, sources in found.copies:
            made, uses = self.operators.call(node), step.held_tensors()
            step.autocast = node.meta.get("autocast", ())
            follow(step, *(self.modules[each] for each in self.targets[node.name]))
            self.steps[name], self.layouts[name] = step, step.layout
            self.calls.append((name, (*sources, *(_expressions(made) if uses else ()))))
            self._add_held(name, made, step)
            self.part_of[name] = call.node.name
        for node in call.inputs:
            if node.name in found.reads:
                self.copies[call.node, node] = found.reads[node.name]
        return found.step

    def _planned(
        self, call: Call, operator: Operator, layouts: Mapping[fx.Node, Layout]
    ) -> Step | None:
        """A planned layer with the parameters of its module."""
        ((_, source),) = layouts.items()
        made = self.planned.made(call, operator, source.whole)
        if made is None:
            return None
        self.planned.take(call)
        given = dict(operator.module.named_parameters())
        shapes = {name: each.shape for name, each in given.items()}
        flat = len(source.whole) > 2 and len(call.out) == 2
        kind = PlannedLinearOnMap if flat else PlannedLayer
        return kind(made, source, self._counter(call.name), shapes)

    def _placed(
        self,
        call: Call,
        operator: Operator,
        layouts: Mapping[fx.Node, Layout],
        place: PlannedBoxes,
    ) -> Step | None:
        """A pooling or resizing in the boxes that the plan gives it."""
        if operator.kind not in RULES:
            return None
        (source,) = layouts.values()
        wanted = source.with_boxes(source.whole, place.before)
        out = source.with_boxes(call.out, place.after)
        rule = RULES[operator.kind](call, operator, wanted, out)
        first = Operand(source, wanted), self._counter(call.name)
        return Pulled(rule, self._halo_counter(call.name), None, first)

    def _gathered(self, call: Call, layouts: Mapping[fx.Node, Layout]) -> Step:
        """A step for which every rank computes the whole."""
        name = call.node.name if call.module is None else str(call.node.target)
        place = call.node.meta.get("place", "")
        updates = isinstance(call.function, Update)
        if updates:
            self._refuse_replicas(call)
        # every rank holds a buffer, so it has to receive as many words as it has
        words = [prod(each.whole) for each in layouts.values()]
        small = max(words, default=0) <= (prod(call.out) if updates else 1)
        if not small:
            if self.refuse:
                what = name if call.module is not None else call.function.__name__
                raise ValueError(f"{what} ({name}) cannot be computed on shards{place}")
            self.whole.append(f"{name}: gathered, every rank computes it{place}")
        count, ranks = self._counter(call.name), self.context.ranks
        plain = None if call.module is None else empty_copy(call.module)
        given = call.parameters.values()
        whole = {name: replicated(values.shape, ranks) for name, values in given}
        several, place = None, 0
        instead: Any = call.function if plain is None else plain
        if hasattr(instead, "every"):  # one of several results of a function
            several = self.several.setdefault(call.node.meta["several"], Several())
            (_, place), instead = instead.picked, instead.every
        return GatheredStep(
            (call.filled(True, False, instead), call.filled(True, True, instead)),
            list(layouts.values()),
            call.out,
            count,
            Draws() if _may_draw(call) else None,
            hold(call, whole, count),
            plain,
            several,
            place,
            may_change(call.node),
        )

    # -- states ---------------------------------------------------------------------

    def leave(self, node: fx.Node, place: int, target: Layout) -> None:
        """Move a value to where the next call takes it; place: among the outputs."""
        source, name = self.layouts[node.name], f"{node.name}_state_{place}"
        if source.boxes == target.boxes:
            return
        self.steps[name] = Left(source, target, self._counter(name))
        self.calls.append((name, (node.name,)))
        self.layouts[name], self.held[name] = target, []
        self.floats |= {name} if node.name in self.floats else set()
        if node.name in self.expected:
            own = shape(target.mine)
            self.expected[name] = self.expected[node.name]._replace(shape=own)
        outs = list(self.outputs)
        outs[place] = name
        self.outputs = tuple(outs)

    # -- small parts ---------------------------------------------------------------

    def _check_views(self, names: Iterable[str]) -> None:
        """Raise `ValueError` if a view that changes would be one of a copy."""
        for key in {self.first_names.get(name, name) for name in names}:
            for call in self.expressions:
                for held, use in self.held[call]:
                    if held == key and not is_at_home(use, self.homes[key]):
                        raise ValueError(
                            f"forward changes {key} in place through a view ({call}),"
                            " of which another call holds a part on each rank; change"
                            " the buffer itself, as by copy_"
                        )

    def _refuse_replicas(self, call: Call) -> None:
        """Raise `ValueError` for an update of a buffer if there are replicas."""
        ranks = self.context.ranks
        if ranks.everyone.size > ranks.size:
            raise ValueError(
                f"forward updates a buffer by what it computes ({call.name}), which"
                " every replica would do by its own samples; give parallelize all"
                " ranks, without replicas"
            )

    def _more(self) -> list[str]:
        """How many calls are gathered beyond those that are listed, and their words."""
        if len(self.whole) == 1:
            return []
        every = self.steps.values()
        steps = [e.inner if isinstance(e, InOneMode) else e for e in every]
        gathered = [each for each in steps if isinstance(each, GatheredStep)]
        words = added(ex.forward for step in gathered for ex in step.exchanges())
        return [
            f"{len(self.whole)} of {len(self.steps)} calls are gathered, for"
            f" {max(words, default=0):,} words in a forward pass"
        ]

    def _whole(self, key: str, use: Held) -> Held:
        """Where a parameter is held that the first graph does not use: everywhere."""
        if use.partition is None:
            return use
        whole = Partition(replicated(self.tensors[key].shape, self.context.ranks))
        return Held(use.module, use.name, whole)


def _expressions(call: Call) -> tuple[str, ...]:
    """What a call reads that does not depend on the input, but for parameters."""
    return tuple(each.name for each in call.parameters if is_expression(each))


def _updates_first(call: Call) -> bool:
    """Whether torch changes running statistics before it saves a tensor."""
    name = call.word if call.module is None else type(call.module).__name__
    return name not in INSTANCE_NORMS


PYTHON = frozenset(vars(operator))  # operators of Python, of which none draws
# functions of torch.nn.functional that draw, beside DRAWS
FUNCTIONAL_DRAWS = "fractional_max_pool", "multi_head_attention"


def _draws(call: Call) -> bool:
    """Whether a call of torch draws random numbers, in some mode."""
    if call.word != "scaled_dot_product_attention":
        return call.word in DRAWS
    every = call.node.meta.get("arguments", {}).values()
    return any(
        args[4] if len(args) > 4 else named.get("dropout_p", 0)
        for args, named in ((call.node.args, call.node.kwargs), *every)
    )


def _may_draw(call: Call) -> bool:
    """Whether a gathered call may draw random numbers."""
    if call.generators:  # of the user
        return False
    if call.module is None:
        function: Any = call.function
        if isinstance(function, Update):
            return function_name(function.function) in DRAWS
        if call.word in DRAWS:
            return _draws(call)
        own = str(getattr(function, "__module__", "")).startswith("synth.")
        known = own or hasattr(torch, call.word) or call.word in PYTHON
        methods = call.word, f"{call.word}_"
        known = known or any(hasattr(torch.Tensor, each) for each in methods)
        known = known or getattr(function, "__name__", "") == "__get__"  # an attribute
        if hasattr(nn.functional, call.word):
            known = known or not any(each in call.word for each in FUNCTIONAL_DRAWS)
        return not known
    drops: Any = nn.modules.dropout._DropoutNd, nn.RReLU
    return any(
        isinstance(each, drops) or getattr(each, "dropout", 0)
        for each in call.module.modules()
    )
