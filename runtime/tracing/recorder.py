"""Records the calls that a model makes with tensors while it runs on "meta"."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import BuiltinFunctionType, MethodDescriptorType, MethodWrapperType
from typing import Any, NamedTuple

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors

from synth.runtime.grid.user_lines import user_line
from synth.runtime.kernels.autocast import Region, entered
from synth.runtime.rules.rule import is_trainable
from synth.runtime.tensor.partitioned import PartitionedTensor
from synth.runtime.tracing.as_written import as_written
from synth.runtime.tracing.associative import record_associative_scans
from synth.runtime.tracing.at_rest import AtRest
from synth.runtime.tracing.attention import masks_as_given
from synth.runtime.tracing.changes import Changes
from synth.runtime.tracing.composed import composed
from synth.runtime.tracing.expressions import (
    DRAWS,
    LIKE_SECOND,
    OF_SHAPE,
    behind,
    constant,
    is_computed,
    keep_used,
    of_shape,
)
from synth.runtime.tracing.generators import Generators
from synth.runtime.tracing.host_calls import READS, has_values, on_host
from synth.runtime.tracing.inputs import Arguments
from synth.runtime.tracing.lowered import Lowered
from synth.runtime.tracing.open_regions import AutocastRegions, CheckpointRegions
from synth.runtime.tracing.outputs import Structure, beside
from synth.runtime.tracing.recorded import (
    as_torch_names,
    by_mode,
    function_name,
    mapped,
    node_name,
    picked,
    sets_requires_grad,
    stored_tensors,
    tensors_in,
)
from synth.runtime.tracing.switches import (
    is_getter_of,
    note_attribute,
    note_memory,
    turned_memory,
)
from synth.runtime.tracing.unsupported import (
    in_user_code,
    record_autograd_functions,
    refuse_transforms,
)
from synth.runtime.tracing.updates import Updates

# methods without a result that change what a tensor is or does
SETTERS = ("set", "register_hook", "register_post_accumulate_grad_hook", "backward")
# functions that return their operand where it has the dtype that is asked for
CASTS = ("to", "type", "type_as", "float", "double", "half", "bfloat16")
# what Python reads of a tensor that follows from its dtype
OF_DTYPE = "dtype", "itemsize", "nbytes", "element_size", "is_signed"
OF_KIND = "is_floating_point", "is_complex"
MOST_TURNS = 10_000  # of a loop: each is recorded, in about a millisecond
COMPILED = BuiltinFunctionType, MethodDescriptorType, MethodWrapperType
MOVES = "to", "cpu", "cuda", "type_as", "contiguous"  # that may give the same words


class KeptTensor(Exception):
    """A call reads a tensor that the call before it computed from its input."""

    def __init__(self, values: torch.Tensor) -> None:
        super().__init__()
        self.values = values


class _Called(NamedTuple):
    """A call that is recorded.

    nodes: its arguments, with nodes in the place of tensors. real: whether all have
    values. used: the tensors among them. state: of each, its version, and whether it
    requires a gradient, before the call.
    """

    func: Any
    args: Any
    kwargs: Any
    nodes: Any
    real: bool
    used: list[torch.Tensor]
    state: list[tuple[int, bool]]


def _undisturbed(func: Any, used: list[torch.Tensor]) -> AbstractContextManager[Any]:
    """Without the modes around a model, which slow down what is no Python of the user.

    Not where a call makes a tensor of none, whose device a mode says.
    """
    compiled = isinstance(func, COMPILED) and func not in _device_constructors()
    if compiled and any(values.is_meta for values in used):
        return torch._C.DisableTorchFunction()
    return nullcontext()


class Recorder(TorchFunctionMode):
    """Records one run of a model as a graph.

    model: on "meta". device: the kind that it is on when the ranks run it.
    called: the names of the layers of torch.nn that are recorded as one call.
    before: the recorder of the call of this model before this one. turned: whether what
    else has gradients has none, and inputs have them, and words lie in another order.
    """

    def __init__(
        self,
        model: nn.Module,
        device: str = "cpu",
        before: Recorder | None = None,
        turned: bool = False,
    ) -> None:
        super().__init__()
        self.before, self.turned = before, turned
        self.called: set[str] = set()
        self.graph, self.device = fx.Graph(), device
        # id of a tensor -> the node that made it, and its version at that time
        self.nodes: dict[int, tuple[fx.Node, int]] = {}
        # storage -> tensors in it, by their ids, which are unique as they are kept
        self.alive: dict[int, dict[int, torch.Tensor]] = {}
        self.inputs: dict[int, str] = {}  # storage of an input -> its node
        self.path: list[str] = []  # names of the modules that run
        self.depth = 0  # those of them that are recorded as one call, or are part of it
        self.arguments: Any = ()  # of the outermost of them
        self.calls = False  # whether a recorded function runs
        self.stored = dict(stored_tensors(model))  # id of a parameter or buffer -> name
        self.trained = {  # storage of a parameter -> name
            values.untyped_storage()._cdata: name
            for name, values in model.named_parameters()
        }
        self.buffers = {  # storage of a buffer -> its name, and the buffer
            values.untyped_storage()._cdata: (name, values)
            for name, values in model.named_buffers()
        }
        self.turns: dict[Any, int] = {}  # (function, place in the code) -> calls
        self.stands_for: dict[int, torch.Tensor] = {}  # without values, by its id
        self.reads = False  # whether Python has read the values of a constant
        self.dtypes = False  # whether the graph has those of tensors as constants
        self.kinds = False  # whether it is that of numbers of some kind
        self.changed_inputs = set[str]()  # names of those that are changed in place
        self.changed_constants: list[tuple[torch.Tensor, Any]] = []
        self.changes, self.updates = Changes(self), Updates(self)
        self.regions, self.autocast = CheckpointRegions(), AutocastRegions(device)

    def run(
        self, model: nn.Module, arguments: Arguments, dtype: torch.dtype
    ) -> fx.Graph:
        """The graph of one run. Raises `ValueError` for what a graph cannot show.

        dtype: of the model's parameters. It has calls that nobody reads, see `keep`.
        """
        tensors = arguments.tensors(dtype)
        for name, values in zip(arguments.names, tensors, strict=True):
            if self.turned and is_trainable(values):
                values.requires_grad_()
            word = "x" if len(tensors) == 1 else node_name(name)
            self._remember(values, self.graph.placeholder(word))
        args, kwargs = arguments.filled(tensors)
        self.lowered = Lowered(self.device)
        self.generators = Generators(model, arguments.values)
        self.modes = {name: each.training for name, each in model.named_modules()}
        self.rest = AtRest(model)
        hooks = []
        for name, module in model.named_modules():
            enter = partial(self._enter, name)
            hooks.append(module.register_forward_pre_hook(enter, with_kwargs=True))
            leave = partial(self._leave, name)
            hooks.append(module.register_forward_hook(leave, always_call=True))
        low = arguments.inputs.autocast
        around = () if low is None else (Region(self.device, low, True),)
        with (
            entered(around),
            torch.device("meta"),
            self,
            self.regions,
            self.autocast,
            masks_as_given(),
            as_written(),
            record_autograd_functions(self._autograd_function),
            record_associative_scans(self._autograd_function),
        ):
            result = model(*args, **kwargs)
        self.generators.require_unchanged()
        for hook in hooks:
            hook.remove()
        pairs = zip(arguments.names, tensors, strict=True)
        self.changed_inputs = {name for name, values in pairs if values._version}
        self.updates.take_assigned(model)
        if self.reads and self.changed_constants:  # another value in every pass
            self.changes.refuse(*self.changed_constants[0], " and reads such values")
        self._give(Structure(result), tensors[0])
        return self.graph

    def keep(self, left: Iterable[torch.Tensor]) -> fx.Graph:
        """The graph without calls that nobody reads. left: what others read of it."""
        nodes = {self.left_node(values) for values in left}
        keep_used(self.graph, {node for node in nodes if node is not None})
        return self.graph

    def left_node(self, values: torch.Tensor) -> fx.Node | None:
        """The node of a tensor that the run leaves in an attribute.

        None for one that ranks do not give: it is made inside of a call, does not
        depend on the input, or is changed in place later.
        """
        node, version = self.nodes.get(id(values), (None, 0))
        there = node is not None and values._version == version
        return node if there and self.computed(values) else None

    def is_made_anew(self, values: torch.Tensor) -> bool:
        """Whether a call makes a tensor of constants alone: the same in every run."""
        node, version = self.nodes.get(id(values), (None, 0))
        if node is None or values._version != version:
            return False
        return all(
            each.op == "call_function"
            and not is_computed(each)
            and function_name(each.target).strip("_") not in DRAWS
            for each in behind(node)
        )

    def _give(self, given: Structure, first: torch.Tensor) -> None:
        """What the model gives: the nodes of its tensors, and their structure.

        first: the first input.
        """
        nodes = [self.node(values) for values in given.tensors]
        if not nodes:
            raise ValueError("the model gives no tensor; let its forward return one")
        if not any(map(is_computed, nodes)):
            node, name = nodes[0], given.names[0]
            held = node.op == "get_attr"
            remedy = "read it from" if held else "compute it from tensors of"
            raise ValueError(
                f"the model gives {node.target if held else node.name} as {name},"
                f" which is no result of its input; {remedy} the network"
            )
        for place, values in enumerate(given.tensors):
            if not is_computed(nodes[place]):
                with torch.device("meta"), self:
                    nodes[place] = self.node(beside(values, first))
        node = self.graph.output(tuple(nodes))
        node.meta["structure"] = given.without_tensors()
        node.meta["shared"] = self._shared(given.tensors, nodes)

    def _shared(
        self, tensors: list[torch.Tensor], nodes: list[fx.Node]
    ) -> frozenset[int]:
        """The places of outputs with memory of an input or of another output."""
        memory = [each.untyped_storage()._cdata for each in tensors]
        makers: dict[int, set[fx.Node]] = {each: set() for each in memory}
        for at, node in zip(memory, nodes, strict=True):
            makers[at].add(node)
        found = {at for at, each in makers.items() if len(each) > 1}
        found |= self.inputs.keys() | self.trained.keys() | self.buffers.keys()
        return frozenset(place for place, at in enumerate(memory) if at in found)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function and record it."""
        kwargs = as_torch_names(func, kwargs or {})
        word, file = function_name(func), sys._getframe(1).f_code.co_filename
        note_attribute(func, file)
        if note_memory(word, file) and self.turned:
            return turned_memory(word, func(*args, **kwargs))
        refuse_transforms(func)
        if self.depth:
            return self.lowered.made_of(func, args, kwargs)
        self.dtypes |= is_getter_of(func, *OF_DTYPE) or word in OF_DTYPE
        self.kinds |= word in OF_KIND
        parts = composed(func)
        if parts is not None:
            with self:
                made = parts(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if func is torch.Tensor.__setitem__ and self.changes.set_slices(*args):
            return None
        with torch._C.DisableTorchFunction():
            called = self._called(func, args, kwargs)
        self.calls = True
        try:
            with _undisturbed(func, called.used):
                result = self.lowered.made_of(func, called.args, called.kwargs)
        finally:
            self.calls = False
        with torch._C.DisableTorchFunction():
            return self._noted(called, result)

    def _called(self, func: Any, args: Any, kwargs: Any) -> _Called:
        """What is known of a call before it is made."""
        word = function_name(func)
        args = self._shapes_for_values(word, args)
        nodes = self._with_nodes((args, kwargs))
        real = has_values(word, (args, kwargs))
        args, kwargs = (on_host if real else self.on_meta)((args, kwargs))
        used = list(tensors_in((args, kwargs)))
        state = [(values._version, values.requires_grad) for values in used]
        return _Called(func, args, kwargs, nodes, real, used, state)

    def _noted(self, called: _Called, result: Any) -> Any:
        """Record a call that was made; what the model gets of it."""
        func, word, used = called.func, function_name(called.func), called.used
        if called.real:
            self.reads |= word in READS
        else:
            result = self.on_meta(result, results=True)
        if word in CASTS and isinstance(result, torch.Tensor):
            result = result.view_as(result)  # another dtype under autocast
        computed = any(self.computed(values) for values in used)
        results = list(tensors_in(result))
        changed = self._changed(called)
        if computed and self.updates.take(func, called.nodes, changed, results):
            return result
        self._check(called, changed, results, computed)
        stored = results and all(id(values) in self.stored for values in results)
        if changed and not computed and (stored or not results):
            self._record_change(func, called.nodes, changed)
            return result
        group = object()  # the call of which there are several results
        for index, values in enumerate(results):
            same = any(values is each for each in used)
            if same and not changed:
                continue  # what is given back is recorded already
            call = func if isinstance(result, torch.Tensor) else picked(func, index)
            name = function_name(call)
            node = self._create("call_function", call, called.nodes, name)
            node.meta["expression"], node.meta["changes"] = not computed, bool(changed)
            if not computed:
                node.meta["changes_views"] = self.updates.viewed(changed)
            node.meta["several"] = group
            self._remember(values, node)
        return result

    def _changed(self, called: _Called) -> list[torch.Tensor]:
        """The arguments that a call has changed in place."""
        found = list[torch.Tensor]()
        for values, (version, graded) in zip(called.used, called.state, strict=True):
            if values.requires_grad != graded and isinstance(values, nn.Parameter):
                name = self.stored.get(id(values), "a parameter")
                raise ValueError(
                    f"forward changes requires_grad of {name}, which the ranks would"
                    f" not do; set it outside, or use {name}.detach(){in_user_code()}"
                )
            if values._version != version:
                found.append(values)
        return found

    def _check(
        self,
        called: _Called,
        changed: list[torch.Tensor],
        results: list[torch.Tensor],
        computed: bool,
    ) -> None:
        """Refuse changes that the graph does not show."""
        func = called.func
        self.changes.check_statistics(func, called.args, called.kwargs)
        for values in changed:
            self.changes.check(values, func, results, computed)
            if id(values) in self.stands_for:  # which alone has changed
                self.changes.refuse(self.stands_for[id(values)], func)
            maker = self.nodes[id(values)][0].target
            if called.real and function_name(maker) == "constant":
                self.changed_constants.append((values, func))
        if not results and function_name(func) in SETTERS:
            graded = sets_requires_grad(func) and not (computed and not called.args[1])
            for values in () if graded else called.used:
                self.changes.refuse(values, func)  # its gradients would not go on

    def _autograd_function(
        self, call: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        """Record a `torch.autograd.Function` as one call, if it is no part of one."""
        if self.calls:
            return call(*args, **kwargs)
        with torch._C.DisableTorchFunction():
            return self.__torch_function__(call, (), args, kwargs)

    # -- what does not depend on the input -------------------------------------------

    def _shapes_for_values(self, word: str, args: Any) -> Any:
        """Arguments of which only shape and dtype are read: without their values."""
        if not args or self.computed(args[0]) != (word in OF_SHAPE):
            return args
        if word in OF_SHAPE:
            return (self._of_shape(args[0]), *args[1:])
        if word in LIKE_SECOND and len(args) > 1 and self.computed(args[1]):
            return (args[0], self._of_shape(args[1]), *args[2:])
        return args

    def _of_shape(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor without values for a function that asks for shape and dtype only."""
        self.dtypes = True
        given = tuple(like.shape), like.dtype, torch.device(self.device)
        node = self._create("call_function", of_shape, (given, {}), "of_shape")
        node.meta["expression"] = True
        with torch._C.DisableTorchFunction():
            made = of_shape(*given[:2], torch.device("meta"))
        self._remember(made, node)
        return made

    def _constant(self, values: torch.Tensor) -> None:
        """A tensor that the model has, but not as a parameter or buffer."""
        before = self.before
        if before is not None and before.computed(values):
            raise KeptTensor(values)
        if values.is_meta and (before is None or not before.knows(values)):
            if isinstance(values, torch.nn.Parameter):
                how = "as a parameter; make parameters in __init__"
            else:
                how = "in a way that is not seen; register it as a buffer"
            shape = tuple(values.shape)
            raise ValueError(
                f"the model makes a tensor of {shape} {how}{in_user_code()}"
            )
        if values.requires_grad or isinstance(values, PartitionedTensor):
            raise ValueError(
                f"forward uses a {type(values).__name__} of {tuple(values.shape)} that"
                " is no parameter or buffer of the model; register it there"
                f"{in_user_code()}"
            )
        call = constant(values.detach().clone())
        node = self._create("call_function", call, ((), {}), "constant")
        node.meta["expression"] = True
        self._remember(values, node)

    def _record_change(
        self, func: Any, nodes: Any, changed: list[torch.Tensor]
    ) -> None:
        """A change in place of what does not depend on the input.

        Without a result that others read: calls run in order, so those that read the
        tensor later see the change.
        """
        node = self._create("call_function", func, nodes, function_name(func))
        node.meta["expression"] = node.meta["changes"] = True
        node.meta["value"] = None
        node.meta["changes_views"] = self.updates.viewed(changed)
        for values in changed:
            maker, _ = self.nodes[id(values)]
            self.nodes[id(values)] = maker, values._version

    def computed(self, values: Any) -> bool:
        """Whether a tensor is the input or computed from it."""
        node, _ = self.nodes.get(id(values), (None, 0))
        return node is not None and is_computed(node)

    def place_of(self, values: Any) -> str:
        """The line that made a tensor or first read it; "" if that is not known."""
        node, _ = self.nodes.get(id(values), (None, 0))
        return "" if node is None else str(node.meta["place"])

    def knows(self, values: Any) -> bool:
        """Whether a call has read a tensor."""
        return id(values) in self.nodes

    def reads_words(self, old: torch.Tensor, new: torch.Tensor) -> bool:
        """Whether a call reads words of a tensor in the place of which another one is.

        Not if that one has the same words, on another device. A shape is no word.
        """
        node, _ = self.nodes.get(id(old), (None, 0))
        now, _ = self.nodes.get(id(new), (None, 0))
        while now is not None and function_name(now.target) in MOVES:
            (now,) = now.all_input_nodes[:1]
            same = old.dtype == new.dtype and old.shape == new.shape
            if now is node and same:
                return False
        return node is not None and bool(node.users)

    # -- modules ---------------------------------------------------------------------

    def _enter(self, name: str, module: nn.Module, args: Any, kwargs: Any) -> Any:
        """Begin a module. Returns its arguments on "meta" if it is recorded as one."""
        self.path.append(name)
        if module.training != self.modes.get(name, module.training) and by_mode(module):
            raise ValueError(
                f"forward puts {name or 'the model'} into another mode and calls it,"
                " which the ranks would not do; do that outside of forward, or in"
                f" train(){in_user_code()}"
            )
        if self.depth:
            self.depth += 1
        elif self.rest.is_one_call(module, args, kwargs) and any(
            self.computed(each) for each in tensors_in((args, kwargs))
        ):
            with torch._C.DisableTorchFunction():
                self.arguments = self._with_nodes((args, kwargs))
                given = self.on_meta((args, kwargs))
            self.depth = 1
            self.called.add(name)
            return given
        return None

    def _leave(self, name: str, module: nn.Module, args: Any, result: Any) -> None:
        self.path.pop()
        if not self.depth:
            return
        self.depth -= 1
        failed = result is None and sys.exc_info()[0] is not None
        if self.depth or failed:  # a model may go on with another call
            return
        if not isinstance(result, torch.Tensor):
            raise ValueError(
                f"{name or 'the model'}, a {type(module).__name__}, gives no single"
                " tensor; give what it gives to a module that returns the one wanted"
            )
        node = self._create("call_module", name, self.arguments, name)
        with torch._C.DisableTorchFunction():
            self._remember(result, node)

    # -- nodes -----------------------------------------------------------------------

    def _create(self, kind: str, target: Any, given: Any, name: str) -> fx.Node:
        args, kwargs = given
        name = node_name(name)
        node = self.graph.create_node(kind, target, args, kwargs, name=name)
        node.meta["grad"] = torch.is_grad_enabled()
        node.meta["region"] = self.regions.current
        self.regions.note_saved(node)
        node.meta["autocast"] = self.autocast.current
        node.meta["module"] = self.path[-1] if self.path else ""
        node.meta["place"] = self._line_of(node)
        return node

    def _line_of(self, node: fx.Node) -> str:
        """The line that makes a call. Raises `ValueError` where it has made too many.

        Those are the turns of a loop: calls of one function in one place of the line.
        """
        line, name = user_line(), function_name(node.target)
        if line is None:
            return ""
        key = name, line.path, line.number, line.place
        self.turns[key] = self.turns.get(key, 0) + 1
        if self.turns[key] > MOST_TURNS:
            raise ValueError(
                f"a loop calls {name} more than {MOST_TURNS:,} times{line}, and every"
                " turn would be a call of the ranks, too; compute all positions at"
                " once, as by cumsum, cumprod or associative_scan, or in fewer, larger"
                " chunks"
            )
        return str(line)

    def _remember(self, value: torch.Tensor, node: fx.Node) -> None:
        """Note that a node made a tensor."""
        node.meta["value"] = torch.empty(value.shape, dtype=value.dtype, device="meta")
        node.meta["memory"] = value.untyped_storage()._cdata
        self.regions.note_saved(node, value)
        self.keep_alive(value)
        self.nodes[id(value)] = node, value._version
        memory = value.untyped_storage()._cdata
        if node.op == "placeholder":
            self.inputs[memory] = node.name
        elif memory in self.inputs:
            node.meta["shows"] = self.inputs[memory]

    def keep_alive(self, value: torch.Tensor) -> None:
        """Keep a tensor, whose id stands for it."""
        memory = value.untyped_storage()._cdata
        self.alive.setdefault(memory, {})[id(value)] = value

    def alive_beside(self, value: torch.Tensor) -> Iterable[torch.Tensor]:
        """The recorded tensors in the storage of one, itself included."""
        return self.alive.get(value.untyped_storage()._cdata, {}).values()

    def node(self, value: torch.Tensor) -> fx.Node:
        """The node that made a tensor; a new one for a parameter or buffer."""
        if id(value) not in self.nodes and id(value) in self.stored:
            node = self.graph.create_node("get_attr", self.stored[id(value)])
            self._remember(value, node)
        elif id(value) not in self.nodes:
            self._constant(value)
        node, version = self.nodes[id(value)]
        if value._version != version and is_computed(node):
            raise ValueError(
                f"a tensor of {tuple(value.shape)} from {node.name} is used after"
                " another call changed it in place; compute a new tensor there"
                f"{in_user_code()}"
            )
        return node

    def _with_nodes(self, given: Any) -> Any:
        """Arguments with nodes in the place of tensors, and the ranks' device."""
        if isinstance(given, torch.Tensor):
            with torch._C.DisableTorchFunction():
                return self.node(given)
        if isinstance(given, torch.device) and given.type == "meta":
            return torch.device(self.device)
        if isinstance(given, str) and given == "meta":
            return self.device
        if isinstance(given, torch.Generator):
            return self.generators.place(given, bool(self.regions.current))
        return mapped(self._with_nodes, given)

    def on_meta(self, given: Any, results: bool = False) -> Any:
        """Arguments, or results, without values."""
        if results and all(each.is_meta for each in tensors_in(given)):
            return given
        if isinstance(given, torch.Tensor):
            if given.is_meta:
                return given
            with torch._C.DisableTorchFunction():
                empty = given.to("meta")
            if not results:
                self.nodes[id(empty)] = self.nodes[id(given)][0], empty._version
                self.stands_for[id(empty)] = given
                self.keep_alive(empty)
            return empty
        if isinstance(given, torch.device):
            return torch.device("meta")
        if isinstance(given, torch.Generator):
            return None  # it gives no number while a model is recorded
        if isinstance(given, str) and given.partition(":")[0] in ("cpu", "cuda"):
            return "meta"
        return mapped(lambda each: self.on_meta(each, results), given)
