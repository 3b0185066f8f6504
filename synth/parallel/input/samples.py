"""Files and arrays of samples, of which boxes are read: .npy, raw words, HDF5, zarr, or an open array."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from synth.base.errors import InputError, UsageError

Rows = Sequence[slice]  # along one dimension: what to read, in order


class Samples:
    """Samples along the first dimension of an array: (samples, channels, *spatial), or labels of any shape.

    name: for messages. open_array: gives what is sliced like an array. Each process opens it for itself, so
    workers of a `DataLoader` may read, too: this is a map-style dataset of torch.
    bytes_read: what this process took out of the array.
    """

    def __init__(self, name: str, open_array: Callable[[], Any]) -> None:
        self.name, self.bytes_read = name, 0
        self._open_array, self._opened_by, self._values = open_array, os.getpid(), open_array()

    @property
    def values(self) -> Any:
        """The array, opened by this process."""
        if self._opened_by != os.getpid():
            self._opened_by, self._values = os.getpid(), self._open_array()
        return self._values

    @property
    def shape(self) -> tuple[int, ...]:
        """(samples, channels, *spatial)."""
        return tuple(self.values.shape)

    @property
    def dtype(self) -> torch.dtype:
        """Of the words. Raises `InputError` for a type that torch does not know."""
        try:
            return torch.from_numpy(np.empty(0, _native(self.values.dtype))).dtype
        except TypeError as fault:
            raise InputError(
                f"{self.name}: torch has no numbers of type {self.values.dtype}; write another"
            ) from fault

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """(channels, *spatial)."""
        return self.shape[1:]

    def __len__(self) -> int:
        """Samples."""
        return self.shape[0]

    def __getitem__(self, sample: int) -> torch.Tensor:
        """A whole sample, (channels, *spatial)."""
        return torch.from_numpy(self.read(sample, [(slice(None),)] * (len(self.shape) - 1)))[0]

    def read(self, sample: int, rows: Sequence[Rows]) -> NDArray[Any]:
        """Some rows of one sample, as (1, channels, *spatial). Raises `InputError` for a sample too many."""
        if not 0 <= sample < len(self):
            raise InputError(f"{self.name}: there is no sample {sample} of {len(self)}; order= names others")
        part = self._along((slice(sample, sample + 1),), rows)
        self.bytes_read += part.nbytes
        return part

    def __getstate__(self) -> dict[str, Any]:
        """Without the open array, for a worker that is no fork."""
        return {**vars(self), "_values": None, "_opened_by": None}

    def _along(self, chosen: tuple[slice, ...], rest: Sequence[Rows]) -> NDArray[Any]:
        if not rest:
            part = self.values[chosen]
            return np.array(part, _native(part.dtype))
        first, *others = rest
        parts = [self._along((*chosen, each), others) for each in first]
        return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=len(chosen))


def _native(dtype: Any) -> Any:
    """The same numbers in the byte order of this machine, which torch wants."""
    return np.dtype(dtype).newbyteorder("=")


def samples_of(data: Any, **options: Any) -> Samples:
    """Samples as they are, of a file, or of an open array such as `zarr.Array`, `h5py.Dataset`, or a tensor.

    Raises `InputError` for a file that cannot be read, `UsageError` for what is none of them.
    """
    if isinstance(data, Samples):
        return data
    if isinstance(data, str | os.PathLike):
        return open_samples(data, **options)
    if isinstance(data, torch.Tensor):
        data = data.numpy()
    if hasattr(data, "shape") and hasattr(data, "__getitem__"):
        return Samples(f"array of {tuple(data.shape)}", lambda: data)
    raise UsageError(
        f"samples are {data!r}; give a file, an array, synth.open_samples(...) or a DataLoader of torch"
    )


def open_samples(
    file: str | os.PathLike[str],
    *,
    dataset: str | None = None,
    shape: Sequence[int] | None = None,
    dtype: str | None = None,
) -> Samples:
    """A `.npy` file, an array of an HDF5 file or zarr store, or raw words of a `shape` and `dtype`.

    dataset: the array's name in an HDF5 file or a zarr group. Raw words are in row-major order.
    A folder is a zarr store, as is a file that ends in `.zarr` or `.zarr.zip`.

    Raises `InputError` for a file that cannot be read so, `UsageError` for contradicting arguments.
    """
    name = os.fspath(file)
    if os.path.isdir(name) or name.endswith((".zarr", ".zarr.zip")):
        return Samples(name, partial(_zarr, name, dataset))
    if not os.path.isfile(name):
        raise InputError(f"{name}: no such file, or not a plain one; name a file of samples")
    if dataset is not None:
        return Samples(name, partial(_hdf5, name, dataset))
    if (shape is None) is not (dtype is None):
        raise UsageError(f"{name}: give shape and dtype of a raw file, or neither of another one")
    return Samples(name, partial(_mapped, name, None if shape is None else tuple(shape), dtype))


def _mapped(name: str, shape: tuple[int, ...] | None, dtype: str | None) -> Any:
    try:
        if shape is not None and dtype is not None:
            words = np.memmap(name, np.dtype(dtype), "r")
            return words[: int(np.prod(shape))].reshape(shape)
        return np.load(name, mmap_mode="r", allow_pickle=False)
    except (ValueError, TypeError, OSError, EOFError) as fault:
        raise InputError(
            f"{name}: {fault}; "
            "it must be an .npy file, or hold the words of shape and dtype, or name a dataset"
        ) from fault


def _hdf5(name: str, dataset: str) -> Any:
    try:
        import h5py
    except ImportError as fault:
        raise UsageError(f"{name}: HDF5 files need h5py; install it, or write an .npy file") from fault
    try:
        return h5py.File(name, "r")[dataset]
    except (OSError, KeyError) as fault:
        raise InputError(
            f"{name}: dataset {dataset} cannot be read ({fault}); name one of its datasets"
        ) from fault


def _zarr(name: str, dataset: str | None) -> Any:
    try:
        import zarr
    except ImportError as fault:
        raise UsageError(f"{name}: zarr stores need zarr; install it, or write an .npy file") from fault
    try:
        found: Any = zarr.open(name, mode="r")
        if dataset is not None:
            found = found[dataset]
    except Exception as fault:  # each version and kind of store has errors of its own
        of = "" if dataset is None else f" of {dataset}"
        raise InputError(
            f"{name}: no zarr array{of} can be read ({fault}); name one of its arrays"
        ) from fault
    if not hasattr(found, "shape"):
        raise InputError(f"{name}: this is a zarr group; name the array in it by dataset=")
    return found
