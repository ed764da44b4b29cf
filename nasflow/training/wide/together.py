"""What ranks tell each other as JSON: nothing that a rank sends is unpickled."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

Sums = dict[str, list[float | int]]
"""Of each number that was logged the weighted sum, and the sum of its weights."""

_PUT = {"sum": sum, "min": min, "max": max}


def from_all(value: Any) -> list[Any]:
    """Return the value of each rank, in their order. All ranks must call this."""
    mine = torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(dist.get_world_size())]
    dist.all_gather(lengths, torch.tensor([len(mine)]))
    longest = max(map(int, lengths))
    room = [torch.zeros(longest, dtype=torch.uint8) for _ in lengths]
    dist.all_gather(room, nn.functional.pad(mine, (0, longest - len(mine))))
    return [json.loads(bytes(each[: int(length)].tolist())) for each, length in zip(room, lengths, strict=True)]


def summed(parts: Sequence[Sums], how: Mapping[str, str]) -> Sums:
    """Put together what each rank has logged, means by their weights, and others by `how`: sum, min or max."""
    names = dict.fromkeys(name for part in parts for name in part)
    whole: Sums = {}
    for name in names:
        own = [part[name] for part in parts if name in part]
        if name in how:
            whole[name] = [_PUT[how[name]](total for total, _ in own), 1]  # type: ignore[operator]
        else:
            whole[name] = [sum(total for total, _ in own), sum(count for _, count in own)]
    return whole


def share_buffers(module: nn.Module) -> None:
    """Give all ranks the buffers of rank 0, as the statistics of batch norms, which each took of its own samples."""
    for buffer in module.buffers():
        values = buffer.contiguous()  # others are sent in the order of their memory
        dist.broadcast(values, src=0)
        if values is not buffer:
            buffer.copy_(values)


def are_finite(module: nn.Module) -> bool:
    """Whether the weights that this rank has and trains are."""
    trained = [p for p in module.parameters() if p.requires_grad and p.is_floating_point()]
    local = [p.to_local() if isinstance(p, DTensor) else p for p in trained]
    return bool(torch.isfinite(nn.utils.get_total_norm([weights.detach() for weights in local])))
