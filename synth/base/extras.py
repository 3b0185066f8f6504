"""Optional dependencies: planning needs none of them, so `pip install synth-conv` stays small.

An extra is what `pip install 'synth-conv[EXTRA]'` adds. pyproject.toml lists the packages of each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from synth.base.errors import MissingExtraError

EXTRA_OF = {  # module -> its extra
    "torch": "torch",
    "scipy": "torch",
    "cvxpy": "solver",
    "networkx": "solver",
    "matplotlib": "plot",
    "shtab": "completion",
    "sympy": "explain",
    "h5py": "hdf5",
    "zarr": "zarr",
}
PURPOSE = {
    "torch": "to run, import or parallelize a model",
    "solver": "to solve a relaxation or a mixed-integer program",
    "completion": "to complete commands",
    "plot": "to draw a picture",
    "explain": "to derive formulas",
    "hdf5": "to read an HDF5 file",
    "zarr": "to read a zarr store",
}


@contextmanager
def extra_needed() -> Iterator[None]:
    """A missing module of an extra is a `MissingExtraError` in this block, which names the extra."""
    try:
        yield
    except ModuleNotFoundError as fault:
        raise missing_extra(fault) from fault


def require(module: str) -> None:
    """Raises `MissingExtraError` where a module of an extra cannot be imported; it is not imported yet."""
    try:
        there = find_spec(module) is not None
    except ValueError:  # None in sys.modules
        there = False
    if not there:
        raise missing_extra(ModuleNotFoundError(name=module))


def missing_extra(fault: ModuleNotFoundError) -> ModuleNotFoundError:
    """The error that tells what to install, if the missing module is of an extra; else the same error."""
    module = (fault.name or "").partition(".")[0]
    if isinstance(fault, MissingExtraError) or module not in EXTRA_OF:
        return fault
    extra = EXTRA_OF[module]
    return MissingExtraError(
        f"{PURPOSE[extra]}, {module} is needed, which is not installed; "
        f"run pip install 'synth-conv[{extra}]'",
        name=module,
    )
