"""A global tensor of which this rank holds a part."""

from __future__ import annotations

import copy
import sys
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn

import torch
from torch.autograd.function import once_differentiable
from torch.distributed.tensor import DTensor
from torch.nn.functional import one_hot
from torch.optim.optimizer import _foreach_supported_types as optimized
from torch.utils._foreach_utils import _foreach_supported_types as listed

from synth.runtime.comm.adjoint import with_adjoint
from synth.runtime.comm.redistribute import in_memory
from synth.runtime.tensor import checkpoint_items, dtensor
from synth.runtime.tensor.partition import Partition

MOVED = "its words moved to other ranks"
# torch's, which copies a state dict to the host before it is saved in the background
STAGER = "torch.distributed.checkpoint._state_dict_stager"


class PartitionedTensor(torch.Tensor):
    """A tensor with the global shape, of which every rank holds the words of its box.

    All ranks call the same operations on it. Beside it, a plain tensor stands for the
    whole, the same on every rank. Pointwise operations compute where the words are.
    Sums, means, norms and the usual losses are reduced over the ranks, and count each
    word once. An operation that has no meaning on parts raises `NotImplementedError`,
    which says what to call.

    `full_tensor()` gives the whole, `to_local()` the own part, `redistribute()` another
    partition, `to_dtensor()` a DTensor. `torch.distributed.checkpoint` saves and loads
    it, on any other ranks and partition.
    """

    _local: torch.Tensor
    _partition: Partition
    is_copy = ""  # why a change would not be seen where torch shows it; "" where it is
    _stamp: Any = None  # of the call that gave it as a state
    shown: tuple[torch.Tensor, ...] | None = None  # where a lone word was copied from
    view_of: Any = None  # how it was made, where torch gives a view
    taken_from: Any = None  # what counts its changes, and the count then; see `data`
    changes: list[int]  # one number: how often it was changed; views have the same list
    _operations: ClassVar[Callable[..., Any]]  # see `operations.dispatch`

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @staticmethod
    def __new__(
        cls, local: torch.Tensor, partition: Partition, requires_grad: bool = False
    ) -> PartitionedTensor:
        """A tensor from its local part, which has the shape of the own box."""
        if local.shape != partition.local_shape:
            raise ValueError(
                f"rank {partition.ranks.rank} holds {partition.local_shape} of"
                f" {tuple(partition.shape)}, but was given {tuple(local.shape)}"
            )
        integers = local.dtype == torch.int64
        made: PartitionedTensor = torch.Tensor._make_wrapper_subclass(
            PartitionedIntegers if integers else cls,
            partition.shape,
            dtype=local.dtype,
            device=local.device,
            requires_grad=requires_grad,
        )
        made._local, made._partition, made.changes = local.detach(), partition, [0]
        return made

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return cls._operations(func, types, args, kwargs or {})

    # -- parts and wholes -------------------------------------------------------------

    @classmethod
    def from_whole(cls, whole: torch.Tensor, partition: Partition) -> torch.Tensor:
        """A tensor from the whole, which is the same on all ranks. Differentiable."""

        def own(given: torch.Tensor) -> torch.Tensor:
            partition.ranks.note(f"whole of {tuple(given.shape)}", given)
            mine = partition.cut(given).clone(memory_format=torch.contiguous_format)
            return PartitionedTensor(mine, partition)

        return with_adjoint(whole, own, gathered_words)

    @classmethod
    def from_local(cls, local: torch.Tensor, partition: Partition) -> torch.Tensor:
        """A tensor from the own part on every rank. Differentiable."""
        made: torch.Tensor = FromLocal.apply(local, partition)  # type: ignore[no-untyped-call]
        return made

    @classmethod
    def from_dtensor(cls, given: DTensor) -> torch.Tensor:
        """The same words of a DTensor. Raises `ValueError` for other placements than
        Shard and Replicate. Differentiable.
        """
        return cls.from_local(given.to_local(), dtensor.partition_of(given))

    def full_tensor(self) -> torch.Tensor:
        """The whole tensor, on every rank. All ranks must call this. Differentiable:
        every rank computes the same from it, and its gradient is taken once.
        """
        self._refresh()
        partition = self._partition

        def whole(given: Any) -> torch.Tensor:
            words, own = gathered_words(given), given._local
            if words.untyped_storage()._cdata == own.untyped_storage()._cdata:
                return words.clone()
            return words.detach()  # which may be a view, and torch changes none of ours

        return with_adjoint(self, whole, partial(_brought, partition))

    def to_local(self) -> torch.Tensor:
        """This rank's part, with the shape of its box. Differentiable: the gradient of
        a part is that of the global tensor's words there.
        """
        self._refresh()
        local: torch.Tensor = ToLocal.apply(self)  # type: ignore[no-untyped-call]
        return local

    def redistribute(self, like: PartitionedTensor | Partition) -> torch.Tensor:
        """The same tensor with the partition of another. Differentiable.

        Raises `ValueError` if that has another shape or other ranks.
        """
        target = like if isinstance(like, Partition) else like._partition
        if target.shape != self.shape:
            raise ValueError(
                f"a tensor of {tuple(self.shape)} has no partition of"
                f" {tuple(target.shape)}; give one of its own shape"
            )
        self._refresh()
        source = self._partition

        def moved(given: Any) -> torch.Tensor:
            return PartitionedTensor(source.move(given._local, target), target)

        return with_adjoint(self, moved, partial(_brought, source))

    def to_dtensor(self) -> DTensor:
        """The same words as a DTensor, without communication.

        Raises `ValueError` if no placements give each rank its box. All ranks must
        call this, since it makes a mesh.
        """
        return dtensor.to_dtensor(self.to_local(), self._partition)

    def _refresh(self) -> None:
        """Have the words of now, where torch gives a view of what was changed since.

        All ranks must call this: words that had to move do so again.
        """
        self.require_taken()
        if self.view_of is not None:
            self.view_of.renew(self)

    def require_taken(self) -> None:
        """Raise `RuntimeError` if what `data` was set to was changed since."""
        if self.taken_from is not None:
            now, then = self.taken_from
            if now() not in (None, then):
                raise RuntimeError(
                    f"what data of a partitioned tensor of {tuple(self.shape)} was set"
                    " to was changed since, which ranks do not see, as they hold copies"
                    " of its words; set data to a clone(), or again after the change"
                )

    def copied(self, why: str = MOVED) -> PartitionedTensor:
        """This, noted as a copy of words of which torch would give a view, and why.

        A change of it in place would not be seen in the tensor that it is a part of, so
        it is refused.
        """
        self.is_copy = why
        return self

    @property
    def partition(self) -> Partition:
        """The boxes of all ranks."""
        return self._partition

    @property
    def box(self) -> tuple[tuple[int, int], ...]:
        """The interval of each dimension that this rank holds."""
        return self._partition.box

    @property
    def data(self) -> torch.Tensor:
        """The same words without gradients."""
        data: PartitionedTensor = vars(torch._C.TensorBase)["data"].__get__(self)
        data.changes = self.changes
        return data

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        """Take other words: the whole, the same on all ranks, or partitioned.

        Words that lie otherwise are moved, which all ranks must do. Raises `ValueError`
        for another shape or other ranks. They are copied where they do not lie alike:
        a change of `values` afterwards, which torch would see, is then refused.
        """
        given, place, taken = values.detach(), self._partition, None
        if given.shape != self.shape:
            raise ValueError(
                f"data of a partitioned tensor of {tuple(self.shape)} was set to"
                f" {tuple(given.shape)}; give that shape, or assign another parameter"
                " to the module"
            )
        if not isinstance(given, PartitionedTensor):
            place.ranks.note(f"data of {tuple(given.shape)}", given)
            taken = _count_of(values)
            own = place.cut(given).clone(memory_format=torch.contiguous_format)
            given = PartitionedTensor(own, place)
        elif given._partition != place:
            taken = _count_of(values)
            moved: Any = given.redistribute(place).detach()
            given = moved
        vars(torch._C.TensorBase)["data"].__set__(self, given)
        self._local, self.view_of, self.taken_from = given._local, None, taken
        self.changes = [self.changes[0] + 1]  # of other words than those of views

    # -- protocols of torch -----------------------------------------------------------

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        grad = ", requires_grad=True" if self.requires_grad else ""
        return (
            f"PartitionedTensor({tuple(self.shape)}, {self.dtype}, box={self.box} of"
            f" rank {self._partition.ranks.rank}{grad})"
        )

    def __deepcopy__(self, memo: dict[int, Any]) -> PartitionedTensor:
        if id(self) in memo:
            found: PartitionedTensor = memo[id(self)]
            return found
        if not self.is_leaf:
            raise RuntimeError(
                "only leaves of autograd's graph can be deep-copied; detach() the"
                f" tensor of shape {tuple(self.shape)} first"
            )
        place, of = self._partition, self._partition.of
        copied = place.named(of and f"{of} of a deepcopy")
        made = PartitionedTensor(self._local.clone(), copied)
        made.requires_grad_(self.requires_grad)
        for flag in ("_is_param", "_is_buffer", "persistent"):
            if flag in self.__dict__:
                setattr(made, flag, self.__dict__[flag])
        memo[id(self)] = made
        if self.grad is not None and "_is_param" not in self.__dict__:  # as in torch
            made.grad = copy.deepcopy(self.grad, memo)
        return made

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise NotImplementedError(
            f"a file or message would hold one rank's part of {tuple(self.shape)}; save"
            " with torch.distributed.checkpoint, or save net.full_state_dict() or"
            " full_tensor()"
        )

    def __tensor_flatten__(self) -> tuple[list[str], Partition]:
        return ["_local"], self._partition.named("")  # compiled for others, too

    @staticmethod
    def __tensor_unflatten__(
        inner: dict[str, torch.Tensor],
        partition: Partition,
        outer_size: Sequence[int],
        outer_stride: Sequence[int],
    ) -> PartitionedTensor:
        return PartitionedTensor(inner["_local"], partition)

    def numpy(self, *, force: bool = False) -> NoReturn:
        """Raise `NotImplementedError`: an array is a whole."""
        self._refuse("numpy()")

    def tolist(self) -> NoReturn:
        """Raise `NotImplementedError`: a list is a whole."""
        self._refuse("tolist()")

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._refuse("numpy")

    def data_ptr(self) -> int:
        """Raise `NotImplementedError`: the words are on several ranks.

        `async_save` asks by it whether a tensor is one of tensors: 0, as for a DTensor.
        """
        if sys._getframe(1).f_globals.get("__name__") != STAGER:
            self._refuse("data_ptr()")
        return 0

    def share_memory_(self) -> NoReturn:
        """Raise `NotImplementedError`: other processes have other parts."""
        self._refuse("share_memory_()")

    def __dlpack__(self, **_: Any) -> NoReturn:
        self._refuse("__dlpack__()")

    def _refuse(self, what: str) -> NoReturn:
        raise NotImplementedError(
            f"{what} is not defined on a partitioned tensor of {tuple(self.shape)};"
            " call full_tensor() first, or to_local() for the own part"
        )

    # -- torch.distributed.checkpoint -------------------------------------------------

    def __create_write_items__(self, fqn: str, object: Any) -> list[Any]:
        return checkpoint_items.write_items(fqn, self._local, self._partition)

    def __create_chunk_list__(self) -> list[Any]:
        return checkpoint_items.chunks(self._partition)

    def __get_tensor_shard__(self, index: Any) -> torch.Tensor:
        return checkpoint_items.shard(index, self._local, self._partition)


class PartitionedIntegers(PartitionedTensor):
    """Integers, which may be labels."""

    @classmethod
    def __torch_function__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function of torch.

        `one_hot` looks for labels that are no class in plain tensors alone.
        """
        named = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if func is one_hot:
                _require_classes(*args, **named)
            return func(*args, **named)


def _require_classes(input: PartitionedTensor, num_classes: int = -1) -> None:
    """Raise `RuntimeError` on all ranks for a label that is no class."""
    if input._local.numel():
        input._partition.ranks.on_own_words(
            "one_hot", one_hot, input._local, num_classes
        )


# -- the border to plain tensors, for autograd -------------------------------------
#
# A plain tensor is either the whole, the same on every rank, or this rank's part. A
# gradient may arrive as a whole or with another partition; it is brought to the
# partition of its tensor.


def local_of(gradient: torch.Tensor, partition: Partition) -> torch.Tensor:
    """The part of a gradient in a partition's box."""
    if isinstance(gradient, PartitionedTensor):
        return gradient._partition.move(gradient._local, partition)
    return partition.cut(gradient).contiguous()


def compared(gradient: torch.Tensor, partition: Partition) -> torch.Tensor:
    """A gradient; a whole one is compared between ranks when they next agree."""
    if torch._C._functorch.is_legacy_batchedtensor(gradient):
        raise NotImplementedError(
            f"several gradients of {tuple(partition.shape)} at once, as by"
            " is_grads_batched=True or vectorize=True, would be exchanged as one; call"
            " torch.autograd.grad for each of them"
        )
    if not isinstance(gradient, PartitionedTensor):
        partition.ranks.note(f"gradient of {tuple(partition.shape)}", gradient)
    return gradient


def _brought(partition: Partition, gradient: torch.Tensor) -> torch.Tensor:
    """The gradient of a tensor, with its partition."""
    part = local_of(compared(gradient, partition), partition)
    return PartitionedTensor(part, partition)


def gathered_words(values: torch.Tensor) -> torch.Tensor:
    """The whole tensor, outside of autograd; a plain tensor itself."""
    if isinstance(values, PartitionedTensor):
        return values._partition.gather(values._local)
    return values


def own_words(values: torch.Tensor) -> torch.Tensor:
    """The local part of a tensor, outside of autograd; a plain tensor itself."""
    return values._local if isinstance(values, PartitionedTensor) else values


def whole_words(values: torch.Tensor) -> torch.Tensor:
    """The whole tensor, on every rank; a plain tensor itself. All ranks call this."""
    return values.full_tensor() if isinstance(values, PartitionedTensor) else values


def _count_of(values: torch.Tensor) -> Any:
    """What counts the changes of values, and the count now; None where nothing does.

    The count is None when nobody has the values any more.
    """
    if isinstance(values, PartitionedTensor):
        changes = values.changes
        return lambda: changes[0], changes[0]
    if values.is_inference():
        return None
    base = values if values._base is None else values._base
    known = weakref.ref(base)

    def count() -> int | None:
        found = known()
        return None if found is None else found._version

    return count, base._version


class ToLocal(torch.autograd.Function):
    """The own part of a tensor."""

    @staticmethod
    def forward(ctx: Any, given: PartitionedTensor) -> torch.Tensor:
        """The part, which shares the memory of the tensor."""
        ctx.partition = given._partition
        ctx.set_materialize_grads(False)
        return given._local.detach()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: torch.Tensor | None) -> torch.Tensor | None:
        """The tensor of which the gradient is this rank's part; None for none."""
        if gradient is None:
            return None
        return PartitionedTensor(in_memory(gradient), ctx.partition)


def save_last(ctx: Any, values: torch.Tensor) -> None:
    """Let a node of autograd save a tensor, as the last one of a pass, on all ranks.

    A user's checkpoint around the pass computes it again when a backward pass reads a
    saved tensor, up to the last one that was saved. Ranks save more or fewer in a pass.
    So all read this one first, and none stops before the exchanges of others.
    """
    ctx.save_for_backward(values.new_empty(0))


class FromLocal(torch.autograd.Function):
    """A tensor from the part of each rank."""

    @staticmethod
    def forward(
        ctx: Any,
        local: torch.Tensor,
        partition: Partition,
        before: Callable[[], None] | None = None,
    ) -> torch.Tensor:
        """The tensor, which shares the memory of the part.

        before: what the ranks first do in the backward pass; None for nothing.
        """
        ctx.partition, ctx.before = partition, before
        if before is not None:
            save_last(ctx, local)
        made = PartitionedTensor(local, partition)
        ctx.made = weakref.ref(made)
        return made

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        """The own part of the gradient."""
        _ = ctx.saved_tensors
        compared(gradient, ctx.partition)
        if ctx.before is not None:
            ctx.before()
        made = ctx.made()
        if made is not None and made._version:
            # what has saved the part, as an activation does, then sees the change
            torch.autograd.graph.increment_version(made._local)
        return local_of(gradient, ctx.partition), None, None


# On a GPU optimizers, and on all devices `clip_grad_norm_`, then take lists of tensors:
# few kernels, and one message. torch does the same for DTensor.
for known in (optimized, listed):
    if PartitionedTensor not in known:
        known.append(PartitionedTensor)
