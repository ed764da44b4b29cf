"""Checkpoints of a job in which each rank holds a part of the tensors (`DTensor`: FSDP, tensor parallelism).

Tensors are saved by `torch.distributed.checkpoint` in safetensors files, so no file is pickled, and an epoch can be
loaded by another number of ranks. To load, ranks exchange numbers only; to save, torch itself exchanges its plans as
pickles, so ranks must trust each other.
"""

import hashlib
import json
import re
import secrets
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_map_only

from nasflow.checkpoint.bundle import Bundle, read_state
from nasflow.checkpoint.store import retained
from nasflow.errors import CheckpointError
from nasflow.resumable.sent_files import exchange_device, receive_files, send_files

_EPOCH = re.compile(r"epoch-(\d{4,})")
_ASIDE = ".aside-"
MANIFEST = "manifest.json"
"""The file of an epoch that is written last: the sizes and SHA-256 of the others, by name."""
_PLAIN = "plain.bundle"  # of safetensors, but none that torch should read
_STATE = "plain"


class RankedCheckpointManager:
    """Saves and loads on all ranks together: every method except `epochs` must be called on each rank.

    An epoch is complete once every rank has written its part, and rank 0 the manifest with sizes and SHA-256 of all
    files. Its folder is then renamed to its final name.

    Args:
        folder: a folder that all ranks share, or with `ranks_per_machine`, all of a machine.
        names: the names of the parts of the state. A part with `state_dict` and `load_state_dict` has dicts of tensors,
            of which each rank may have a part, and anything else that all ranks have. It may also have `targets`: the
            method is given the saved dicts, with tensors on the `meta` device, and returns those into which they are
            loaded, the present ones by default. Other parts are saved as they are by rank 0 (numbers, text, tensors,
            and dicts, lists and tuples of them), and replaced when loaded.
        keep: how many of the newest checkpoints are kept.
        ranks_per_machine: of machines that share no folder. The others send their parts to the first one, which has
            all of each epoch; an epoch can be loaded once its folder is on every machine.
    """

    def __init__(self, folder: Path, names: Iterable[str], keep: int = 2, ranks_per_machine: int | None = None):
        self._folder, self._names, self._keep = folder, list(names), keep
        self._ranks_per_machine = ranks_per_machine

    def is_due(self, epoch: int) -> bool:
        """Always true: every epoch is saved."""
        return True

    def save(self, state: Mapping[str, Any], epoch: int) -> None:
        """Save the parts."""
        own = secrets.randbits(62) if dist.get_rank() == 0 else None  # ranks of a start before may still write theirs
        aside = self._folder / f"{_ASIDE}{epoch:04d}-{_from_rank_0(own):x}"
        if dist.get_rank() % self._here() == 0:
            for left in self._folder.glob(f"{_ASIDE}*"):
                shutil.rmtree(left, ignore_errors=True)
        if dist.get_rank() == 0:
            aside.mkdir(parents=True)
        dist.barrier()
        tensors, plain = _apart({name: _taken(state[name]) for name in self._names})
        with self._place_of_part(aside) as place, _with_causes():
            state_dict_saver.save(tensors, storage_writer=HuggingFaceStorageWriter(str(place), save_distributed=True))
        dist.barrier()
        if dist.get_rank() == 0:
            _write_plain(aside, epoch, plain)
            files = {path.name: [path.stat().st_size, _hash(path)] for path in sorted(aside.iterdir())}
            (aside / MANIFEST).write_text(json.dumps({"files": files}))
            shutil.rmtree(self._path(epoch), ignore_errors=True)
            aside.rename(self._path(epoch))
            for old in {*self.epochs()} - retained(self.epochs(), self._keep, ()):
                shutil.rmtree(self._path(old))
        dist.barrier()

    def load(self, state: dict[str, Any], epoch: int | None = None) -> int | None:
        """Load an epoch, by default the newest complete one, into the state. Return the epoch, None if there is none.

        If an epoch is given, later ones are removed: training goes on from there.

        Raises:
            CheckpointError: the epoch is missing or incomplete.
        """
        found = self._found(self.epochs() if epoch is None else [epoch])
        if found is None:
            if epoch is not None:
                raise CheckpointError(f"there is no whole checkpoint {self._path(epoch)}")
            return None
        folder = self._path(found)
        plain = _read_plain(folder, found)
        parts = {name: state[name] for name in self._names if _has_tensors(state.get(name))}
        tensors, _ = _apart({name: _targets(part, plain[name], name, folder) for name, part in parts.items()})
        with _with_causes():
            state_dict_loader.load(tensors, storage_reader=HuggingFaceStorageReader(str(folder)), no_dist=True)
        saved = _together(plain, tensors)
        for name in self._names:
            if _has_tensors(state.get(name)):
                state[name].load_state_dict(saved[name])
            else:
                state[name] = saved[name]
        if epoch is not None:
            self._remove_later(found)
        return found

    def epochs(self) -> list[int]:
        """Return the epochs that have a checkpoint, oldest first."""
        return epochs_in(self._folder)

    def wait(self) -> None:
        """Do nothing: `save` returns after writing."""

    @contextmanager
    def _place_of_part(self, aside: Path) -> Iterator[Path]:
        """Give the folder into which a rank writes; then all that ranks of other machines have written is in `aside`.

        Args:
            aside: a folder of the first machine.
        """
        rank = dist.get_rank()
        if rank < self._here():
            yield aside
            if rank == 0:
                for other in range(self._here(), dist.get_world_size()):
                    receive_files(aside, other)
            return
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=_ASIDE, dir=self._folder) as own:
            yield Path(own)
            send_files(Path(own), 0)

    def _remove_later(self, epoch: int) -> None:
        if dist.get_rank() % self._here() == 0:
            for later in [other for other in self.epochs() if other > epoch]:
                shutil.rmtree(self._path(later))
        dist.barrier()

    def _found(self, wanted: list[int]) -> int | None:
        """Return the newest of these epochs that is whole, on every machine."""
        left = wanted if dist.get_rank() == 0 else []
        while True:
            found = _from_rank_0(next((one for one in reversed(left) if self._is_whole(one)), None))
            if found is None or self._is_everywhere(found):
                return found
            left = [one for one in left if one < found]

    def _is_everywhere(self, epoch: int) -> bool:
        """Whether what rank 0 has of an epoch is whole on each machine."""
        if self._ranks_per_machine is None:
            return True
        rank, manifest = dist.get_rank(), self._path(epoch) / MANIFEST
        there = True
        digest = _from_rank_0(_number(manifest) if rank == 0 else None)
        if rank and rank % self._here() == 0:
            there = self._is_whole(epoch) and _number(manifest) == digest
        told = torch.tensor(int(there), device=exchange_device())
        dist.all_reduce(told, dist.ReduceOp.MIN)
        return bool(told)

    def _here(self) -> int:
        """Return how many ranks have the same folder."""
        return self._ranks_per_machine or dist.get_world_size()

    def _is_whole(self, epoch: int) -> bool:
        folder = self._path(epoch)
        try:
            files = json.loads((folder / MANIFEST).read_text())["files"]
            return all(
                [(folder / name).stat().st_size, _hash(folder / name)] == expected for name, expected in files.items()
            )
        except (OSError, ValueError, KeyError):
            return False

    def _path(self, epoch: int) -> Path:
        return epoch_folder(self._folder, epoch)


def epochs_in(folder: Path) -> list[int]:
    """Return the epochs that ranks have saved in a folder, oldest first."""
    if not folder.is_dir():
        return []
    return sorted(int(found[1]) for path in folder.iterdir() if (found := _EPOCH.fullmatch(path.name)))


def epoch_folder(folder: Path, epoch: int) -> Path:
    """Return where in that folder the files of an epoch are."""
    return folder / f"epoch-{epoch:04d}"


def names_in(manifest: Path) -> list[str]:
    """Return the names of the files that a manifest lists.

    Raises:
        FileNotFoundError: there is none.
        ValueError: it is damaged.
    """
    try:
        return [*json.loads(manifest.read_bytes())["files"].keys()]
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"{manifest.name} lists no files") from error


def read_part(folder: Path, epoch: int, name: str) -> dict[str, Any]:
    """Return a part that ranks have saved with whole tensors on the CPU, in a process that is none of them.

    Args:
        folder: that of the ranks' manager.

    Raises:
        CheckpointError: the epoch is missing, or can't be read.
    """
    of_epoch = epoch_folder(folder, epoch)
    plain = {name: _read_plain(of_epoch, epoch)[name]}
    tensors, _ = _apart({name: tree_map_only(torch.Tensor, _on_cpu, _on_meta(of_epoch, plain)[name])})
    try:
        with _with_causes():
            state_dict_loader.load(tensors, storage_reader=HuggingFaceStorageReader(str(of_epoch)), no_dist=True)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"checkpoint {of_epoch} can't be read: {error}") from error
    part: dict[str, Any] = _together(plain, tensors)[name]
    return part


@contextmanager
def _with_causes() -> Iterator[None]:
    """Raise what failed on the first rank where something did; torch collects it in an exception that few catch."""
    try:
        yield
    except CheckpointException as error:
        cause, _ = error.failures[min(error.failures)]
        raise cause from error


def _on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor


def _targets(part: Any, saved: Any, name: str, folder: Path) -> Any:
    if not hasattr(part, "targets"):
        return _taken(part)
    return part.targets(_on_meta(folder, {name: saved})[name])


def _on_meta(folder: Path, plain: dict[str, Any]) -> dict[str, Any]:
    """Return saved parts with tensors on the `meta` device, but for numbers."""
    known: Any = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    found = {path: torch.empty(held.size, dtype=held.properties.dtype, device="meta") for path, held in known.items()}
    parts: dict[str, Any] = _together(plain, found)
    return parts


def _write_plain(folder: Path, epoch: int, plain: Any) -> None:
    bundle = Bundle()
    bundle.add(_STATE, epoch, plain)
    bundle.freeze().write(folder / _PLAIN)


def _read_plain(folder: Path, epoch: int) -> dict[str, Any]:
    """Return what was saved, with the name of each tensor of which ranks may have parts."""
    if (folder / _PLAIN).exists():
        return read_state(folder / _PLAIN, _STATE, epoch)
    try:
        held: dict[str, Any] = json.loads((folder / MANIFEST).read_text())["plain"]  # of an earlier version
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"checkpoint {folder} can't be read: {error}") from error
    return held


def _from_rank_0(number: int | None) -> int | None:
    """Return rank 0's number, from 0 on, sent as one: the collectives for objects would unpickle it."""
    sent = torch.tensor(-1 if number is None else number, device=exchange_device())
    dist.broadcast(sent, src=0)
    received = int(sent)
    return None if received < 0 else received


def _has_tensors(part: Any) -> bool:
    return hasattr(part, "load_state_dict")


def _taken(part: Any) -> Any:
    return part.state_dict() if hasattr(part, "state_dict") else part


def _apart(tree: Any, path: str = "") -> tuple[dict[str, torch.Tensor], Any]:
    """Return the tensors of a tree of dicts by path, and the tree with each replaced by its path; numbers stay."""
    if isinstance(tree, torch.Tensor) and (tree.ndim or isinstance(tree, DTensor)):
        return {path: tree}, {"$tensor": path}
    if not isinstance(tree, Mapping):
        return {}, tree.detach().clone() if isinstance(tree, torch.Tensor) else tree
    tensors: dict[str, torch.Tensor] = {}
    plain = {}
    for key, value in tree.items():
        inside, plain[key] = _apart(value, f"{path}/{key}" if path else str(key))
        tensors |= inside
    return tensors, plain


def _together(tree: Any, tensors: Mapping[str, torch.Tensor]) -> Any:
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"$tensor"}:
        return tensors[tree["$tensor"]]
    return {key: _together(value, tensors) for key, value in tree.items()}


def _number(path: Path) -> int:
    """Return a number from the SHA-256 of a file that ranks can exchange."""
    return int(_hash(path)[:15], 16)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
