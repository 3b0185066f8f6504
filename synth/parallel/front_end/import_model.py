"""A torch model as a network file, for `synth import`."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any

from synth.base.errors import UsageError
from synth.base.similar_names import nearest
from synth.parallel.front_end.trace_model import trace_model
from synth.runtime.grid.log import first_line


def import_model(factory: str, shape: Sequence[int]) -> str:
    """The network file of the model that a factory `package.module:name` makes, for an input of a shape.

    The model is read in evaluation. Raises `UsageError` where there is no such factory, and, with the
    sentence that `parallelize` raises, where the model cannot be run by ranks.
    """
    from synth.runtime.tracing.plain_model import uncompiled

    model = uncompiled(make_model(factory))
    try:
        with silence():
            traced = trace_model(model.eval(), shape, factory.rpartition(":")[2])
    except ValueError as error:
        raise UsageError(str(error)) from error
    except SystemExit as error:
        raise UsageError(f"{factory}: {_first_line(error)} while it is traced; remove that") from error
    if not traced.network.nodes:
        raise UsageError(f"{factory}: the model has no layer; give one that computes something")
    return traced.file_text(f"synth import {factory}")


def _remedy(package: str, name: str, error: BaseException) -> str:
    """What to write instead, if a module or a name in it is not found."""
    if isinstance(error, ModuleNotFoundError) and error.name and f"{package}.".startswith(f"{error.name}."):
        if package.endswith(".py"):
            return f"; write {package.removesuffix('.py').replace('/', '.')}:{name}, without .py"
        return "; run synth in the folder of the file, or name its folder in PYTHONPATH"
    if isinstance(error, AttributeError) and (module := sys.modules.get(package)) is not None:
        return nearest(name, (each for each in vars(module) if each[0] != "_"))
    return ""


def make_model(factory: str) -> Any:
    """The model of `package.module:name`. Raises `UsageError` where there is none."""
    package, colon, name = factory.partition(":")
    if not colon or not package or not name:
        raise UsageError(f"{factory!r} names no factory; write package.module:factory")
    sys.path.insert(0, os.getcwd())
    try:
        with contextlib.redirect_stdout(sys.stderr):  # stdout is for the file
            make = getattr(importlib.import_module(package), name)
    except (Exception, SystemExit) as error:  # whatever the user's module raises
        remedy = _remedy(package, name, error)
        raise UsageError(f"{factory} cannot be imported: {_first_line(error)}{remedy}") from error
    finally:
        sys.path.pop(0)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            model = make()
    except (Exception, SystemExit) as error:
        raise UsageError(
            f"{factory} makes no model: {_first_line(error)}; name a function that needs no argument"
        ) from error
    if not hasattr(model, "state_dict"):
        raise UsageError(f"{factory} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


@contextlib.contextmanager
def silence() -> Iterator[None]:
    """Without what a model prints or logs while it is traced."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with contextlib.redirect_stderr(nowhere), contextlib.redirect_stdout(nowhere):
            yield
    finally:
        logging.disable(before)


def _first_line(error: BaseException) -> str:
    """The first line of an error, or its name."""
    if isinstance(error, SystemExit):
        return f"it calls sys.exit({error.code!r})"
    return first_line(error)
