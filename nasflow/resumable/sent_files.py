"""Sends the files of a folder from one rank to another, for machines that share no folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

_CHUNK = 1 << 24  # bytes
_LONGEST_LIST = 1 << 24


def send_files(folder: Path, to: int) -> None:
    """Send all files of a folder. Rank `to` has to call `receive_files`."""
    files = sorted(folder.iterdir())
    listed = json.dumps([[file.name, file.stat().st_size] for file in files]).encode()
    _send(torch.tensor([len(listed)]), to)
    _send(torch.frombuffer(bytearray(listed), dtype=torch.uint8), to)
    for path in files:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                _send(torch.frombuffer(bytearray(chunk), dtype=torch.uint8), to)


def receive_files(folder: Path, source: int) -> None:
    """Write the files that a rank sends into a folder.

    Raises:
        ValueError: it sends one that is no safetensors file, or is there already.
    """
    (length,) = _received(1, source, torch.int64).tolist()
    if not 0 < length <= _LONGEST_LIST:
        raise ValueError(f"rank {source} sends a list of {length} bytes")
    for name, size in _listed(json.loads(bytes(_received(length, source).tolist())), source):
        with (folder / name).open("xb") as file:
            for begin in range(0, size, _CHUNK):
                file.write(_received(min(_CHUNK, size - begin), source).numpy().tobytes())


def _listed(listed: Any, source: int) -> Iterator[tuple[str, int]]:
    for name, size in listed:
        if not isinstance(name, str) or Path(name).name != name or Path(name).suffix != ".safetensors":
            raise ValueError(f"rank {source} sends a file {name!r:.100}, which is no part of a checkpoint")
        yield name, int(size)


def _send(tensor: torch.Tensor, to: int) -> None:
    dist.send(tensor.to(exchange_device()), to)


def _received(count: int, source: int, dtype: torch.dtype = torch.uint8) -> torch.Tensor:
    room = torch.empty(count, dtype=dtype, device=exchange_device())
    dist.recv(room, source)
    return room.cpu()


def exchange_device() -> Any:
    """Return where tensors have to be that ranks exchange: on the CPU, if a backend takes them from there."""
    return "cpu" if "cpu" in dist.get_backend_config() else torch.accelerator.current_accelerator()
