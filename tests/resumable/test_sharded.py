"""Checkpoints of which each rank writes a part."""

import json
import os
import shutil
import socket
from pathlib import Path

from nasflow.resumable.multi_node import MANIFEST, epochs_in
from tests.flows.forked_commands import ForkedProgram, start_forked
from tests.resumable import hostile_rank, ranked_job


def run(folder: Path, epochs: int, **how: int) -> list[str]:
    """What the ranks print; one that is killed takes the other with it."""
    ranks = start(ranked_job.__file__, folder, json.dumps({"epochs": epochs, **how}))
    return [process.communicate(timeout=120)[0].strip() for process in ranks]


def start(program: str, folder: Path, *arguments: str) -> list[ForkedProgram]:
    """Both ranks."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    return [
        start_forked(["python", program, folder, rank, port, *arguments], Path.cwd(), os.environ, errors=False)
        for rank in range(ranked_job.WORLD)
    ]


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


def test_what_came_after_the_epoch_to_resume_from_does_not_count(tmp_path: Path) -> None:
    """Also before the job has saved the next one."""
    run(tmp_path, epochs=3)
    assert epochs_in(tmp_path) == [2, 3]
    run(tmp_path, epochs=2, resume_from=2)
    assert epochs_in(tmp_path) == [2]


def test_machines_without_a_common_folder(tmp_path: Path) -> None:
    first, other = tmp_path / "0", tmp_path / "1"
    assert run(tmp_path, epochs=5, die_at=4, ranks_per_machine=1) == ["", ""]
    assert epochs_in(first) == [2, 3]
    assert epochs_in(other) == [], "another machine has what is brought there"
    assert len(list((first / "epoch-0003").glob("*.safetensors"))) == ranked_job.WORLD
    shutil.rmtree(other)
    shutil.copytree(first, other)
    part = next((other / "epoch-0003").glob("*.safetensors"))
    part.write_bytes(part.read_bytes()[:-1] + b"\7")
    last = 4
    begins = [f"{rank} 3 {last} {last} {[float(last * (1 + rank))] * 4}" for rank in range(2)]
    assert run(tmp_path, last, ranks_per_machine=1) == begins, "epoch 3 is whole on one machine only"
    shutil.rmtree(other)
    shutil.copytree(first, other)
    manifest = other / "epoch-0004" / MANIFEST
    manifest.write_text(manifest.read_text() + " ")
    begins = [f"{rank} 4 {last} {last} {[float(last * (1 + rank))] * 4}" for rank in range(2)]
    assert run(tmp_path, last, ranks_per_machine=1) == begins, "epoch 4 is another one there"
    shutil.rmtree(other)
    begins = [f"{rank} 1 {last} {last} {[float(last * (1 + rank))] * 4}" for rank in range(2)]
    assert run(tmp_path, last, ranks_per_machine=1) == begins, "a new machine has none"
    assert not list(other.iterdir())


def test_what_another_rank_sends_is_not_unpickled(tmp_path: Path) -> None:
    for process in start(hostile_rank.__file__, tmp_path):
        process.communicate(timeout=120)
    assert not (tmp_path / "harm").exists()
