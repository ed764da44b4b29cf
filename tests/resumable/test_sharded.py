"""Checkpoints of which each rank writes a part."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.resumable import ranked_job


def run(folder: Path, epochs: int, die_at: int = 0) -> list[str]:
    """What the ranks print; one that is killed takes the other with it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = [str(port), str(epochs), str(die_at)]
    ranks = [
        subprocess.Popen(
            [sys.executable, ranked_job.__file__, str(folder), str(rank), *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(ranked_job.WORLD)
    ]
    return [process.communicate(timeout=120)[0].strip() for process in ranks]


def test_a_rank_is_killed_and_a_file_is_damaged(tmp_path: Path) -> None:
    folder = tmp_path / "ranks"
    assert run(folder, epochs=5, die_at=4) == ["", ""]
    assert sorted(path.name for path in folder.iterdir() if path.name.startswith("epoch")) == [
        "epoch-0002",
        "epoch-0003",
    ]
    part = next(path for path in (folder / "epoch-0003").iterdir() if path.suffix == ".safetensors")
    part.write_bytes(part.read_bytes()[:-1] + b"\7")
    first, last = 3, 6  # epoch 3 is trained again, for it is not whole
    assert run(folder, last) == [f"{rank} {first} {last} {last} {[float(last * (1 + rank))] * 4}" for rank in range(2)]
    assert not any(path.suffix in {".pkl", ".metadata"} or path.name == ".metadata" for path in folder.rglob("*"))
