"""A traced model on several ranks, with the names of the user's model."""

from __future__ import annotations

import copy
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import torch
from torch import nn

from synth.runtime.comm.agreement import CHANGED
from synth.runtime.comm.process_groups import ProcessGroups
from synth.runtime.comm.waiting_gradients import OTHER, Waiting
from synth.runtime.compiled.forward import forward
from synth.runtime.grid.log import LOG
from synth.runtime.grid.ranks import Ranks
from synth.runtime.grid.transport import broadcast
from synth.runtime.kernels.autocast import autocast_dtype
from synth.runtime.layers.steps.held import local_part
from synth.runtime.layers.steps.one_mode import follow
from synth.runtime.model.as_traced import (
    adopt,
    held_value,
    partitioned_copy,
    require_adoptable,
)
from synth.runtime.model.assemble import NetworkParts, assembled
from synth.runtime.model.boundary import (
    entered,
    left,
    side_of,
    whole_of,
    with_zeros,
)
from synth.runtime.model.call_graphs import CallGraphs, Plan, modes_of
from synth.runtime.model.checks.overlaps import require_apart
from synth.runtime.model.checks.uses import (
    NO_RECORD,
    NO_WRAPPER,
    refuse_recording,
    require_eager,
    require_no_sharding,
)
from synth.runtime.model.checks.versions import Before, of_pass, stored
from synth.runtime.model.compiled import (
    as_it_is,
    entry_of,
    leave_alone,
    renew,
)
from synth.runtime.model.compiled_steps import LATER, CompiledSteps
from synth.runtime.model.execute import unless_stopped
from synth.runtime.model.inference import REFUSED, asks_gradient, without_gradient
from synth.runtime.model.live.changes import require_followed
from synth.runtime.model.live.optimizers import look_for_uses, require_unshared
from synth.runtime.model.live.original import COPY, ELSEWHERE, Original
from synth.runtime.model.live.shown import Shown
from synth.runtime.model.live.siblings import Siblings
from synth.runtime.model.live.watch import Watch
from synth.runtime.model.metrics import Meter, Metrics
from synth.runtime.model.passed_calls import PassedCalls
from synth.runtime.model.planned_words import (
    PlannedWords,
    float_inputs,
    words_of,
)
from synth.runtime.model.programs import Programs
from synth.runtime.model.replication import agreeing
from synth.runtime.model.state_dict import check_state, takes_other_keys, wholes
from synth.runtime.model.states import alone, stamped
from synth.runtime.model.step_graph import StepGraph
from synth.runtime.model.templates import emptied
from synth.runtime.tensor.partition import Partition
from synth.runtime.tensor.partitioned import PartitionedTensor, own_words
from synth.runtime.tracing.computed_weights import (
    masked_weights,
    show_computed,
    show_masked,
)
from synth.runtime.tracing.generators import state_of
from synth.runtime.tracing.left_values import every_left, leave, now_left
from synth.runtime.tracing.outputs import Structure
from synth.runtime.tracing.switches import require_same
from synth.runtime.tracing.unsupported import check_global_hooks


class Network(Shown):
    """A model on several ranks; see `synth.parallelize`.

    It has the modules, parameters, buffers and attributes of the user's model, under
    their names. Their tensors are global, and each rank holds a part. What a user
    changes of them is followed in the next pass, or refused. `forward` takes a whole
    batch, the same on all ranks, or one that is partitioned, and gives a partitioned
    output.

    model: the user's, alike on all ranks (the first rank's values are taken).
    parts: what it is made of. `refuse` raises `ValueError` for a layer that could only
        be computed from the whole. `bucket_bytes` of gradients are summed in one
        message; see `Buckets`. `ahead` is the number of layers of which Ker is on its
        way while one computes; its sums of dKer then travel while the gradients of as
        many are computed. `check_finite`: check for NaN and infinity in what every step
        makes and in every gradient; all ranks then raise `FloatingPointError` with
        layer and ranks.
    ranks: those that run it; None for all ranks of the job. Only they make and call it.
        If they have replicas, the ranks of all replicas do.
    plan: makes a step graph for inputs of other shapes; None to refuse them.
    whole: whether every rank is given the whole outputs.
    """

    program: StepGraph
    _original: Original | None
    _own = Shown._own | {
        *("program", "_programs", "_places", "_by_name"),
        *("_watch", "_original", "_whole", "_entry", "_meter", "_sessions"),
        *("_compiled", "_waiting", "_siblings", "_masked", "_passed"),
        *("_copied", "_copies"),
    }
    _ddp_params_and_buffers_to_ignore = NO_WRAPPER

    def __init__(
        self,
        model: nn.Module,
        parts: NetworkParts,
        ranks: Ranks | None = None,
        plan: Plan | None = None,
        whole: bool = False,
    ) -> None:
        super().__init__()
        leave_alone()
        self._whole, self._entry = whole, entry_of(self)
        self._compiled: CompiledSteps | None = None
        self._waiting = Waiting(self.named_parameters, own_words)
        ranks = agreeing(ranks or Ranks.world(), type(model).__name__)
        everyone = ranks.everyone
        if not parts.inference:
            require_unshared(model, everyone)
        self._siblings: Siblings | None
        self._siblings = siblings = Siblings(model, ranks)
        for values in (*model.parameters(), *model.buffers()):
            if everyone.size == 1:
                break
            first = everyone.members[0]
            with torch.inference_mode(values.is_inference()):  # where it was made
                broadcast(values.detach(), first, everyone.group)
        self.program = assembled(model, parts, ProcessGroups(ranks, reused=True))
        shown = partitioned_copy(model, self.program.homes, ranks)
        show_computed(shown)
        every = every_left(self.program.left)
        template, modes = emptied(model, every), modes_of(model)
        self._programs = Programs(self.program, template, modes, plan)
        self._meter, self._sessions = Meter(), itertools.count(1)
        self._passed = PassedCalls()
        self._copied, self._copies = "", itertools.count(1)  # a name, and for the next
        self._watch = Watch(shown, self.program.attributes)
        self._original = Original(model, self.program.attributes, self._watch)
        look_for_uses(self, model)
        self.show(shown)
        self._connect()
        hidden = self._hidden()
        if hidden and everyone.reports:
            LOG.warning(
                "synth: %s of %s cannot be reached on the network, which has other"
                " attributes of that name; rename them in the model",
                *(", ".join(hidden), type(model).__name__),
            )
        siblings.made(self, model)
        if hasattr(type(model), "__getitem__"):
            object.__setattr__(self, "__class__", NetworkOfParts)

    # -- the user's modules ---------------------------------------------------------

    def _connect(self) -> None:
        """Find the module and the name of every tensor that steps use."""
        modules = dict(self.named_modules(remove_duplicate=False))
        modules[""] = self._shown  # its names are those of the model alone
        self._places = {
            key: (modules[key.rpartition(".")[0]], key.rpartition(".")[2])
            for each in (self.named_parameters(), self.named_buffers())
            for key, _ in each
        }
        self._masked = masked_weights(self._shown)
        self._by_name = modules
        renew(self._entry, self.program, self._whole, self.training)

    def __deepcopy__(self, memo: dict[int, Any]) -> Network:
        """A copy of parameters and buffers that computes with the same steps."""
        self._require_complete("a network is copied")
        made: Network = type(self).__new__(type(self))
        memo[id(self)] = made
        self.copied_into(made, memo)
        made.program, made._programs = self.program, self._programs
        made._whole, made._entry = self._whole, entry_of(made)
        made._compiled, made._waiting = None, Waiting(made.named_parameters, own_words)
        made._siblings, made._passed = None, copy.deepcopy(self._passed)
        made._meter = Meter(words=self.received())
        made._sessions = itertools.count(1)  # of its own: its weights may be others
        made._watch = self._watch.copied(made._shown, memo)
        made._original, made._copies = None, itertools.count(1)
        made._copied = f" of deepcopy {next(self._copies)}{self._copied}"
        made._name_tensors()
        made._connect()
        return made

    def _name_tensors(self) -> None:
        """Let tensors of a copy say so, as those of its network have their names."""
        for key, values in (*self.named_parameters(), *self.named_buffers()):
            if self._copied and isinstance(values, PartitionedTensor):
                values._partition = values._partition.named(f"{key}{self._copied}")

    def __copy__(self) -> NoReturn:
        raise NotImplementedError(
            "copy.copy of a network would share its tensors but not their changes; call"
            " copy.deepcopy(net)"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise NotImplementedError(
            "a file would hold one rank's part of the network; save"
            " net.full_state_dict(), or net.state_dict() with"
            " torch.distributed.checkpoint"
        )

    def __prepare_scriptable__(self) -> NoReturn:
        refuse_recording("torch.jit.script")

    def register_forward_pre_hook(self, hook: Any, **options: Any) -> Any:
        """A hook of the user, which sees what the network is given.

        Raises `ValueError` for that of torch's `fully_shard`.
        """
        require_no_sharding(hook)
        return super().register_forward_pre_hook(hook, **options)

    # -- use ------------------------------------------------------------------------

    forward = forward

    @as_it_is
    def call_eagerly(self, args: Any, kwargs: Any) -> Any:
        """A forward pass outside of what a compiler makes."""
        require_eager(args, kwargs)
        return self._pass(args, kwargs)

    @partial(as_it_is, reason=f"torch.export {NO_RECORD}")
    def call_exported(self, args: Any, kwargs: Any) -> NoReturn:
        """Raise `ValueError`: there is no graph of one process."""
        refuse_recording("torch.export")

    @as_it_is
    def call_method(self, name: str, args: Any, kwargs: Any) -> Any:
        """What a method of the model gives, as `forward` gives it."""
        require_eager(args, kwargs)
        return self._pass(args, kwargs, name)

    def _pass(
        self, args: Any, kwargs: Any, method: str = "", compiled: bool = False
    ) -> Any:
        """A forward pass, or a call of another method that is planned like one.

        compiled: whether an operator of compiled code runs it.
        """
        self._follow_changes()
        if self._siblings is not None:
            self._siblings.look(self)
        states = self.program.states
        if states.argument and not method:
            arguments, own = self.program.arguments, self._sessions
            calls = states.stamps(arguments, args, kwargs, own)
            self.ranks.note(f"call that gave {states.argument}", calls)
        call, given = self._programs.of_call(method, args, kwargs, self)
        first = call.first
        seen = first.attributes
        require_same(seen.switches, given, self)
        require_apart(seen.changed, dict(zip(first.inputs, given, strict=True)))
        if states.argument:
            self._require_state(first, given)
        if first is not self.program:
            self._read_also(first)
        same = self._passed.last == (call, self._watch.stamp)
        if not same:
            self._passed.require_not_left(call, self)
        with unless_stopped(self._last_buffers(first)):
            made = self._left(call, given, compiled, partial(self._lend, args, kwargs))
        if not same:
            self._passed.note(call, self)
            self._passed.last = call, self._watch.stamp
        return made

    def _last_buffers(self, first: StepGraph) -> Iterator[torch.Tensor]:
        """The own words of buffers that the last calls of a pass may change."""
        for key in sorted(first.last_buffers()):
            held: Any = stored(*self._places[key])
            yield own_words(held)

    def _lend(self, args: Any, kwargs: Any, program: StepGraph) -> None:
        """Let calls draw from the generators of this pass, alike on all ranks."""
        if not program.generators:
            return
        values = program.arguments.leaves(args, kwargs)
        for each in program.generators:
            each.now = each.found(values, self._by_name)
            program.ranks.note(f"state of a generator ({each})", [state_of(each.now)])

    def _left(
        self,
        call: CallGraphs,
        given: list[torch.Tensor],
        compiled: bool,
        lend: Callable[[StepGraph], None],
    ) -> Any:
        """What the model gives for some inputs, as the user asks for it.

        lend: gives a graph the generators of the pass.
        """
        first, states = call.first, self.program.states
        refuses = first.inference and asks_gradient((*given, *self.parameters()))
        with torch.set_grad_enabled(torch.is_grad_enabled() and not first.inference):
            program, made, before = self._computed(call, given, lend)
            made = self._with_zeros(program, given, made)
            self._meter.add(program.operations, torch.is_grad_enabled())
        if refuses:
            made = [without_gradient(each) for each in made]
        kept = {place: name for name, place in states.given(program.structure).items()}
        number, own = next(self._sessions), self._sessions
        made = [alone(w) if place in kept else w for place, w in enumerate(made)]
        what = f"forward pass {first.forwards}{call.suffix(program)}{self._copied}"
        places = program.all_partitions
        outs = left(made, places, before, program.shared, what)
        outs = [
            stamped(each, own, number, kept[place])
            if place in kept
            else whole_of(each, None)
            if self._whole
            else each
            for place, each in enumerate(outs)
        ]
        # outside of compiled code, nothing knows when its gradients have come
        self._leave(program, None if compiled else outs)
        return program.structure.filled(outs)

    def _leave(self, program: StepGraph, outs: list[Any] | None) -> None:
        """Do with attributes of the network and of the given model what forward does.

        outs: what a pass gives; None where ranks leave nothing of it.
        """
        found = [*now_left(self._shown, program.left)]
        if not found:
            return
        self._watch.take(leave(self._shown, found, outs), found)
        original = self._original
        if original is not None and original.watch and original.model is not None:
            original.watch.take(leave(original.model, found, outs), found)

    def _with_zeros(
        self, program: StepGraph, given: list[torch.Tensor], made: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        """The outputs, with a gradient of zeros to what no step reads a word of."""
        inputs, outs = dict(zip(program.inputs.values(), given, strict=True)), [*made]
        for place, (keys, names) in program.gets_zeros.items():
            held = [stored(*self._places[key]) for key in sorted(keys)]
            leaves = [*held, *(inputs[name] for name in sorted(names))]
            outs[place] = with_zeros(made[place], leaves)
        return outs

    def _require_state(self, first: StepGraph, given: list[torch.Tensor]) -> None:
        """Raise `ValueError` for a state of another shape than was planned."""
        states, places = first.states, first.input_partitions
        planned = {name: tuple(place.shape) for name, place in places.items()}
        outs = dict(
            zip(first.structure.names, first.output_partitions.values(), strict=True)
        )
        shapes = [tuple(each.shape) for each in outs.values()]
        own = states.taken([*planned])
        ends = states.given(first.structure).items()
        kept = [n for n, at in ends if n in own and shapes[at] == planned[own[n]]]
        states.require_shapes(dict(zip(planned, given, strict=True)), planned, kept)

    def _computed(
        self,
        call: CallGraphs,
        given: list[torch.Tensor],
        lend: Callable[[StepGraph], None],
    ) -> tuple[StepGraph, list[torch.Tensor], Before]:
        """The step graph for some inputs, and the own parts of its outputs.

        And what the ranks do before the backward pass.
        """
        first = self.program
        joint = torch.is_grad_enabled() or self.training  # of all replicas
        number = first.forwards + (joint or first.replication is None)
        batches = dict(zip(call.first.inputs, given, strict=True))
        try:
            program = call.of(batches, self)
        except ValueError as error:
            raise first.states.blamed(error, batches) from None
        waiting = self._waiting
        alone_waits = waiting.graph in (None, program.buckets)
        if not alone_waits and waiting.waits():
            raise ValueError(OTHER)
        replication = program.replication
        what = f"forward pass {number}{call.suffix(program)}{self._copied}"
        alone = "" if joint or replication is None else ", without gradients"
        places = program.input_partitions
        self._follow(program)
        show_masked(self._masked)
        trained, dtypes = self._of_parameters()
        recorded = zlib.crc32(repr(trained).encode())
        program.ranks.note("requires_grad or no_grad() of the network", [recorded])
        program.ranks.note("dtype of the network", [dtypes])
        steps = None if call.method else self._compiled
        low = autocast_dtype(given[0].device)
        kinds = [(low, e.dtype, e.requires_grad) for e in given] if steps else ()
        said = "net.compile(), or autocast, dtype or requires_grad of the batch"
        program.ranks.note(said, [zlib.crc32(repr(kinds).encode())])
        lend(program)
        draws = program.seeds.offer(given[0].device)
        shards = entered(batches, places, program.ranks, what + alone)
        if draws:
            program.seeds.take()
        first.forwards = number  # behind what may be refused, alike on all ranks
        tensors = {
            key: held_value(key, *self._places[key], home.partition)
            for key, home in program.homes.items()
        }
        summed = program.buckets.of_key if replication is None else {}
        for key, each in tensors.items():
            if key not in summed:  # else one node of autograd takes all of a bucket
                tensors[key] = local_part(each)
        if joint and replication is not None:
            replication.begin(what, tensors)
        form = self._watch.stamp, trained, [each.requires_grad for each in shards]
        known = program.read_back.get(self.training, (None, set[str]()))
        new = None if known[0] == form else set[str]()
        given_to_steps = shards, tensors, self.training, new
        if steps is None:
            try:
                made = program.run(*given_to_steps, waiting)
            except (ArithmeticError, IndexError, RuntimeError, ValueError) as fault:
                if joint and replication is not None:  # which raise by other samples
                    program.ranks.everyone.require(f"{what}, which says: {fault}")
                raise
        else:
            if not waiting.sums or waiting.waits():
                raise ValueError(LATER)
            made = steps.run(program, *given_to_steps)
        if low is not None:
            program.lowered[low] = [each.dtype for each in made]
        if new is not None:
            known = program.read_back[self.training] = form, new
        read = known[1]
        pairs = zip(program.inputs.items(), given, shards, strict=True)
        versions = of_pass(
            {key: stored(*at) for key, at in self._places.items() if key in read},
            {name: (own, s) for (name, node), own, s in pairs if node in read},
        )
        text = partial(self._backward, program, number, steps is not None)
        return program, made, Before(program.ranks, text, versions)

    def _backward(self, program: StepGraph, number: int, compiled: bool) -> str:
        """What the backward pass of a forward pass is called, which begins.

        Raises `ValueError` for what gradients that wait do not allow.
        """
        waiting, buckets = self._waiting, program.buckets
        if compiled and not waiting.sums:
            raise ValueError(LATER)
        waiting.begin(buckets, buckets.finish)
        later = "" if waiting.sums else ", in no_sync()"
        return f"backward pass of forward pass {number}{later}"

    def _read_also(self, program: StepGraph) -> None:
        """Follow what another call reads of the modules, too."""
        seen = self.program.attributes
        if seen.take(program.attributes):
            self._watch.renew(self._watch.described())

    @property
    def ranks(self) -> Ranks:
        """The ranks that run the network."""
        return self.program.ranks

    def program_for(self, samples: int) -> StepGraph:
        """The steps for batches of some number of samples, planned on first use.

        All ranks of all replicas call this. Raises `ValueError` where no plan fits.
        """
        self._follow_changes()
        return self._programs.forward(self).of_batch(samples, self)

    @property
    def input_partition(self) -> Partition:
        """Which words of the first input each rank reads."""
        self._follow_changes()
        return next(iter(self.program.input_partitions.values()))

    @property
    def output_partition(self) -> Partition:
        """Which words of the first output each rank computes."""
        self._follow_changes()
        return next(iter(self.program.output_partitions.values()))

    def _follow(self, program: StepGraph) -> None:
        """Let the steps do as the modules now say."""
        stamp, modules = self._watch.stamp, self._by_name
        if program.follows is stamp:
            return
        for name, (own, maker) in program.targets.items():
            follow(program.steps[name], modules[own], modules[maker])
        program.follows = stamp

    def _of_parameters(self) -> tuple[tuple[bool, list[bool]], int]:
        """Whether gradients are recorded, those that are; a number for their dtypes."""
        held = [stored(*place) for place in self._places.values()]
        there = [each for each in held if each is not None]
        for each in there:
            if isinstance(each, PartitionedTensor):
                each.require_taken()
        trained = [each is not None and each.requires_grad for each in held]
        dtypes = repr([each.dtype for each in there])
        return (torch.is_grad_enabled(), trained), zlib.crc32(dtypes.encode())

    def _follow_changes(self) -> None:
        """Do as the user's modules now say, or plan anew what they are.

        Raises `ValueError` for what the ranks cannot do, and `RuntimeError` on all of
        them if they were changed otherwise.
        """
        check_global_hooks()
        watch, original = self._watch, self._original
        strays = original is not None and not original.same()
        if not strays and watch.same():
            return
        settings = self._programs.settings
        changes, found = watch.changes(settings)
        if any(changes):
            joint = changes.anew or changes.hooks  # of all replicas
            agree = self.ranks.require_all if joint else self.ranks.require
            agree(f"{CHANGED} ({changes})")
        require_followed(changes)
        if original is not None and strays:
            self._require_values(original)
            original.require_followed(watch, settings)
        if changes.anew:
            self._plan_anew(str(changes))
            found = watch.described()
        watch.renew(found)

    def _require_values(self, original: Original) -> None:
        """Raise `ValueError` for a parameter of the given model with another value."""
        missed = original.missed(self)
        if missed:
            self.ranks.require_all(f"{CHANGED} ({missed} of the given model)")
            raise ValueError(
                f"{missed} was changed {ELSEWHERE} parameters of its own; load its"
                " values by net.load_full_state_dict(model.state_dict()), set its"
                f" requires_grad there, {COPY}"
            )

    def _plan_anew(self, what: str) -> None:
        """Plan the model that this has become. Its tensors stay where they are."""
        self._require_complete(what)
        show_computed(self._shown)
        with torch.inference_mode(False):
            require_adoptable(self._shown, self.ranks)
            programs = self._programs.anew(self._shown, what)
            adopt(self._shown, programs.first.homes, self.ranks)
        self.show(self._shown)
        self._name_tensors()
        self.program, self._programs = programs.first, programs
        self._passed = PassedCalls()
        self._watch.attributes = self.program.attributes
        self._connect()

    def train(self, mode: bool = True, *more: Any, **named: Any) -> Network:
        """Put all modules into training or evaluation, as the model's class does.

        Raises `ValueError` for the training of a network that only infers.
        """
        trained = any(each.requires_grad for each in self.parameters())
        if mode and trained and self.program.inference:
            raise ValueError(REFUSED)
        if self._original is not None:
            self._original.take_modes()
        self._as_shown("train", mode, *more, **named)
        return self

    def compile(
        self,
        *,
        backend: Any = "inductor",
        dynamic: bool | None = None,
        disable: bool = False,
        **options: Any,
    ) -> None:
        """Let `torch.compile` compile the steps of later passes: one graph for each.

        Exchanges are operators of the graph, each behind the one before. They overlap
        with no work, so layers with few words gain most. backend and options are those
        of `torch.compile`. Every shape is compiled by itself. disable: go back to steps
        as they are. All ranks call this.

        A pass raises `ValueError` on all ranks for steps that have no traceable form.
        """
        if dynamic:
            raise ValueError(
                "dynamic=True: each shape has layouts of its own, for which its steps"
                " are compiled; leave dynamic away"
            )
        options.pop("fullgraph", None)  # it is, always
        made = CompiledSteps({"backend": backend, **options})
        self._compiled = None if disable else made

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes in here add up; the next one outside sums them over ranks.

        For batches that are given in parts. It is the sums of replicated parameters
        that wait; weights have one owner and their gradients are complete at once.
        With several replicas the averages of all parameters wait.
        """
        before, self._waiting.sums = self._waiting.sums, False
        try:
            yield
        finally:
            self._waiting.sums = before

    def _require_complete(self, what: str) -> None:
        """Raise `ValueError` if gradients wait for their sum."""
        if self._waiting.waits():
            raise ValueError(
                f"{what}, but gradients wait for their sum; change or copy the network"
                " after a backward pass outside of no_sync()"
            )

    def scatter(self, batch: torch.Tensor, like: str | None = None) -> torch.Tensor:
        """A whole batch, or whole targets, partitioned as the input or the output.

        like: "input" or "output", where the two have one shape but other owners. Where
            the model has several inputs, the name of one, and of several outputs a name
            such as "output.0" or "output.sample".
        """
        self._follow_changes()
        inputs = self.program.input_partitions
        if len(inputs) == 1:
            inputs = {"input": self.input_partition}
        sides = {**inputs, **self.program.output_partitions}
        return PartitionedTensor.from_whole(batch, side_of(batch, sides, like))

    def gather(self, output: Any) -> Any:
        """The whole output on every rank: `full_tensor()` of each of its tensors.

        Compute the loss from it alike on every rank: its gradient is taken once.
        """
        given, places = Structure(output), self.program.output_partitions
        return given.filled(
            [
                whole_of(values, places.get(name))
                for name, values in zip(given.names, given.tensors, strict=True)
            ]
        )

    def received(self) -> int:
        """Words that this rank received: between layers, in them, and in sums of
        gradients. The loss, and wholes that the user asks for, do not count.
        """
        return self._programs.received()

    def metrics(self) -> Metrics:
        """What this rank did since the last call, or since the network was made.

        Passes, words and bytes received, seconds of waiting and computing, and the
        rate of operations; see `Metrics`. No rank waits for another.
        """
        words, size = self.received(), self.program.dtype.itemsize
        found = self._meter.read(words, size, self.ranks.size)
        self._meter = Meter(words=words)
        return found

    def planned_words(
        self,
        shapes: Sequence[int] | Mapping[str, Sequence[int]] | None = None,
        input_gradient: bool = False,
    ) -> PlannedWords:
        """Words that each rank receives in a pass, as the layouts of all steps say.

        shapes: of the input, or of several by their names; None for those that the
            network was planned for. Others are planned on first use. All ranks of all
            replicas call this. Words of weights that move to where another shape uses
            them are among these.

        input_gradient: whether the inputs require gradients, too.

        A loss is taken to read all outputs, and all that forward leaves in attributes.
        Modes and gradients are those that modules and parameters now have. Raises
        `ValueError` where no plan fits.
        """
        self._follow_changes()
        call = self._programs.forward(self)
        program = call.of_shapes(shapes, self, input_gradient)
        self._follow(program)
        params = {} if program.inference else dict(self.named_parameters())
        asked = float_inputs(program) if input_gradient else ()
        trained = {name for name, each in params.items() if each.requires_grad}
        return words_of(program, trained, () if program.inference else asked)

    # -- state ----------------------------------------------------------------------

    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """What the user's model would save, whole on every rank."""
        return wholes(self.state_dict())

    def load_full_state_dict(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy the own words of what the user's model saved.

        Raises `ValueError` with the first key that differs from the model's.
        """
        self.load_state_dict(state)

    def load_state_dict(
        self,
        state_dict: Mapping[str, Any],
        strict: bool = True,
        assign: bool = False,
        **more: Any,
    ) -> Any:
        """Copy whole or partitioned values, of any plan, into parameters and buffers.

        Raises `ValueError`, which is a `RuntimeError`, too, as in torch, with the first
        key or shape that differs from the model's; then nothing is loaded. What modules
        do with keys as they load is left to them.
        """
        if assign:
            raise ValueError(
                "assign=True would replace partitioned parameters; load without it"
            )
        exact = strict and not takes_other_keys(self._shown)
        state = check_state(state_dict, self.state_dict(), exact)
        named = more if strict else {"strict": False, **more}
        return self._as_shown("load_state_dict", state, **named)


class NetworkOfParts(Network):
    """The network of a model with parts by number or name, such as `nn.Sequential`."""

    def __len__(self) -> int:
        return len(self._parts)

    def __bool__(self) -> bool:
        return True

    def __iter__(self) -> Iterator[Any]:
        return iter(self._parts)

    def __getitem__(self, place: Any) -> Any:
        return self._parts[place]

    def __setitem__(self, place: Any, part: Any) -> None:
        self._parts[place] = part

    def __delitem__(self, place: Any) -> None:
        del self._parts[place]

    @property
    def _parts(self) -> Any:
        return self._shown
