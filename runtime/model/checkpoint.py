"""Checkpoints with digests: what a rank reads is compared with what was written.

`torch.distributed.checkpoint` writes and reads the files, in its own format. Beside
each file NAME that a rank writes stands NAME.sha256: the digest (SHA-256, FIPS 180-4)
of each piece of the file, which is a shard of a tensor or another value. A rank that
loads compares the digests of the pieces that it needs before any value is changed.
"""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter

SUFFIX = ".sha256"
METADATA = ".metadata"  # torch's name of the file that lists all pieces
BLOCK = 2**20  # bytes that are read at once
Piece = tuple[int, int]  # offset and length in bytes


def save_checkpoint(
    state: dict[str, Any],
    folder: str | os.PathLike[str],
    process_group: dist.ProcessGroup | None = None,
) -> None:
    """Write a state and the digests of its pieces into a folder.

    All ranks of the process group call this; a process without ranks may call it, too.
    Each word is written by one rank. `torch.distributed.checkpoint.load` reads the
    files as well, without a comparison.

    state: a dict of tensors, partitioned tensors and other values, which may be nested.
    process_group: of the ranks that hold it; None for all.

    Raises `RuntimeError` on all ranks if a rank cannot write.
    """
    with _one_sentence():
        state_dict_saver.save(
            state,
            storage_writer=_Writer(folder),
            process_group=process_group,
            no_dist=not dist.is_initialized(),
        )


def load_checkpoint(
    state: dict[str, Any],
    folder: str | os.PathLike[str],
    process_group: dist.ProcessGroup | None = None,
    check: bool = True,
) -> None:
    """Read a state from a folder into the tensors of `state`, in place.

    The ranks and the plan may be others than those that saved. All ranks of the process
    group call this; a process without ranks may call it, too. A checkpoint without
    digests is read, and the first rank warns of it. Load only checkpoints that you
    trust: torch unpickles a part of them, which can execute code.

    state: as for `save_checkpoint`, with tensors of the shapes that were saved.
    process_group: of the ranks that hold it; None for all.
    check: whether digests are compared. This reads what is loaded once more.

    Raises `RuntimeError` on all ranks, which keep their values, if what a rank reads is
    not what was saved, or cannot be read.
    """
    reader = _Reader(folder, check)
    with _one_sentence():
        state_dict_loader.load(
            state,
            storage_reader=reader,
            process_group=process_group,
            no_dist=not dist.is_initialized(),
        )


class _FileError(BaseException):
    """A file that differs. torch tells it to all ranks, and handles it nowhere."""


class _Writer(FileSystemWriter):
    """torch's, which then writes the digests of this rank's files."""

    def write_data(self, plan: Any, planner: Any) -> Any:
        """Write what the plan says, then read the files again for their digests."""
        found = super().write_data(plan, planner)
        pieces: dict[str, list[Piece]] = {}
        for each in found.value():
            place = each.storage_data
            piece = place.offset, place.length
            pieces.setdefault(place.relative_path, []).append(piece)
        for name, listed in pieces.items():
            _write_digests(Path(self.path, name), listed)
        return found

    def finish(self, metadata: Any, results: Any) -> None:
        """Write the list of all pieces, and its digest."""
        super().finish(metadata, results)
        file = Path(self.path, METADATA)
        _write_digests(file, [(0, file.stat().st_size)])


class _Reader(FileSystemReader):
    """torch's, which first compares the digests of the pieces that this rank reads."""

    def __init__(self, folder: str | os.PathLike[str], check: bool) -> None:
        super().__init__(folder)
        self.check = check

    def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
        """The list of all pieces. It is a pickle, so a changed one is not read."""
        file = Path(self.path, METADATA)
        if self.check and not kwargs and file.exists():
            told = _digests(file)
            _compare(file, told, [(0, file.stat().st_size)], "the list of pieces")
            if told is None and _is_first():
                warnings.warn(
                    f"the checkpoint {self.path} carries no digest, so words that have"
                    " changed on the disk are not seen; synth.save_checkpoint writes"
                    " one per shard",
                    stacklevel=2,
                )
        return super().read_metadata(*args, **kwargs)

    def prepare_local_plan(self, plan: Any) -> Any:
        """Compare what this rank is to read, before any rank reads."""
        needed: dict[str, dict[Piece, str]] = {}
        for item in plan.items if self.check else ():
            place = self.storage_data[item.storage_index]
            of_file = needed.setdefault(place.relative_path, {})
            of_file[place.offset, place.length] = item.storage_index.fqn
        for name, pieces in needed.items():
            file = Path(self.path, name)
            told = _digests(file)
            for piece, what in pieces.items():
                _compare(file, told, [piece], what)
        return super().prepare_local_plan(plan)


def _compare(
    file: Path, told: dict[str, str] | None, pieces: Iterable[Piece], what: str
) -> None:
    """Raise `_FileError` unless pieces of a file have the digests that were told."""
    if told is None:
        return
    try:
        for offset, length in pieces:
            if told.get(f"{offset}+{length}") != _digest(file, offset, length):
                _refuse(
                    f"{file}: {length} bytes at {offset} ({what}) are not what was"
                    " saved"
                )
    except OSError as error:
        _refuse(f"{file}: {error.strerror}")


def _refuse(fault: str) -> NoReturn:
    rank = dist.get_rank() if dist.is_initialized() else 0
    raise _FileError(
        f"{fault}, as rank {rank} reads it; nothing was loaded; restore the file, or"
        " load another checkpoint"
    )


def _is_first() -> bool:
    return not dist.is_initialized() or dist.get_rank() == 0


def _digests(file: Path) -> dict[str, str] | None:
    """The digests of the pieces of a file; None if it carries none."""
    beside = file.with_name(file.name + SUFFIX)
    try:
        told = json.loads(beside.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _refuse(f"{beside}: no list of digests ({type(error).__name__})")
    return told if isinstance(told, dict) else {}


def _write_digests(file: Path, pieces: Iterable[Piece]) -> None:
    told = {f"{at}+{length}": _digest(file, at, length) for at, length in pieces}
    beside = file.with_name(file.name + SUFFIX)
    temporary = beside.with_name(beside.name + ".tmp")
    with open(temporary, "w", encoding="ascii") as stream:
        json.dump(told, stream)
        stream.flush()
        os.fsync(stream.fileno())
    os.replace(temporary, beside)


def _digest(file: Path, offset: int, length: int) -> str:
    found = hashlib.sha256()
    with open(file, "rb") as stream:
        stream.seek(offset)
        while length > 0 and (data := stream.read(min(BLOCK, length))):
            found.update(data)
            length -= len(data)
    return found.hexdigest()


@contextmanager
def _one_sentence() -> Iterator[None]:
    """Raise what a rank says of a file on all ranks; other errors as torch has them."""
    try:
        yield
    except CheckpointException as error:
        for _, (fault, _) in sorted(error.failures.items()):
            if isinstance(fault, _FileError):
                raise RuntimeError(str(fault)) from None
            if isinstance(fault, OSError) and fault.filename:
                text = f"{fault.filename}: {fault.strerror}"
                raise RuntimeError(f"{text}; the checkpoint is not complete") from error
        raise
