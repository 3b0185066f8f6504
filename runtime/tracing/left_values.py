"""What forward leaves in attributes, which ranks do not compute: reading it is refused.

Auxiliary losses and features are often left in attributes. The ranks run the calls of
a graph, not `forward`, so such an attribute would keep the value of before.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from torch import nn
from torch.utils import _pytree

Place = tuple[str, str]  # (module, attribute)
OPERATORS = (
    *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and", "or"),
    *("radd", "rsub", "rmul", "rtruediv", "rpow", "rmatmul", "iadd", "isub", "imul"),
    *("neg", "abs", "float", "int", "bool", "index", "len", "iter", "getitem", "call"),
    *("lt", "le", "gt", "ge", "contains", "setitem", "array"),
)
MISSING = object()


class LeftValueError(AttributeError, RuntimeError):
    """Something is read that forward leaves in an attribute."""


class LeftValue:
    """Stands in an attribute for what forward leaves there; whatever uses it raises.

    before: what the attribute was before the first pass. is_part: whether that is what
    stood here, in a container that forward changes.
    """

    def __init__(self, name: str) -> None:
        self.name, self.is_part = name, False
        self.before: Any = MISSING

    def __repr__(self) -> str:
        return f"<{self.name}, which forward leaves and ranks do not compute>"

    def __deepcopy__(self, memo: dict[int, Any]) -> LeftValue:
        return self

    def __getattr__(self, name: str) -> NoReturn:
        raise self._error()

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        """Refuse what torch is called with."""
        leaves = _pytree.tree_leaves((args, kwargs))
        raise next(each for each in leaves if isinstance(each, cls))._error()

    def _error(self) -> LeftValueError:
        return LeftValueError(
            f"forward leaves {self.name} in an attribute, which the ranks do not"
            " compute; let forward return it too, and take it from the outputs"
        )


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: LeftValue, *args: Any) -> NoReturn:
        raise self._error()

    refuse.__name__ = name
    return refuse


for _name in OPERATORS:
    setattr(LeftValue, f"__{_name}__", _refusing(f"__{_name}__"))


def standing_for(value: Any, name: str, constants: tuple[type, ...]) -> Any:
    """A value with something that refuses in the place of each part but constants."""
    return _pytree.tree_map(
        lambda leaf: leaf if isinstance(leaf, constants) else LeftValue(name), value
    )


def holds_left(value: Any) -> bool:
    """Whether something has such a value in it."""
    return next(_left_in(value), None) is not None


def leave(
    model: nn.Module, left: Mapping[Place, Any], changed: Collection[Place]
) -> None:
    """Let attributes of a model's modules have what stands for what forward leaves.

    left: place -> the value. changed: places of containers that forward changes; their
    other parts stay.
    """
    modules = dict(model.named_modules()) if left else {}
    for (module, name), value in left.items():
        if module not in modules:  # of another one, which the network has instead
            continue
        here: dict[str, Any] = modules[module].__dict__
        now = here.get(name, MISSING)
        if (module, name) in changed:
            _put(now, value)
        elif now is not value and not (type(now) is type(value) and _same(now, value)):
            known = next((each.before for each in _left_in(now)), now)
            for each in _left_in(value):
                each.before = known if each.before is MISSING else each.before
            here[name] = _pytree.tree_map(lambda leaf: leaf, value)


def restored(model: nn.Module) -> nn.Module:
    """A copy of a model, with its attributes as they were before the first pass."""
    for module in model.modules():
        here = vars(module)
        for name, value in [*here.items()]:
            found = next(_left_in(value), None)
            if found is None:
                continue
            if found.is_part:
                _take_out(value)
            elif found.before is MISSING:
                del here[name]
            else:
                here[name] = found.before
    return model


def _put(now: Any, value: Any) -> None:
    """Put the parts that stand for others into a list or a dict, at any depth."""
    for key, part in _items(value):
        there = isinstance(now, dict) or (isinstance(now, list) and key <= len(now))
        if not there:
            return
        before = dict(_items(now)).get(key, MISSING)
        if not isinstance(part, LeftValue):
            _put(before, part)
        elif before is not part:
            old = before.before if isinstance(before, LeftValue) else before
            part.before, part.is_part = old, True
            if isinstance(now, list) and key == len(now):
                now.append(part)
            else:
                now[key] = part


def _take_out(value: Any) -> None:
    """The inverse of `_put`."""
    for key, part in [*_items(value)][::-1]:
        if not isinstance(part, LeftValue):
            _take_out(part)
        elif part.before is MISSING:
            del value[key]
        else:
            value[key] = part.before


def _items(value: Any) -> Iterable[tuple[Any, Any]]:
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def _left_in(value: Any) -> Iterator[LeftValue]:
    leaves = _pytree.tree_leaves(value)
    return (each for each in leaves if isinstance(each, LeftValue))


def _same(one: Any, other: Any) -> bool:
    own, others = _pytree.tree_leaves(one), _pytree.tree_leaves(other)
    pairs = zip(own, others, strict=False)
    return len(own) == len(others) and all(a is b for a, b in pairs)
