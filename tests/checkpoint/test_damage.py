"""Damage to a bundle's tables: no other state is ever loaded, and files of the version before still load."""

import json
import random
import re
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from nasflow.checkpoint.bundle import Bundle
from nasflow.checkpoint.packing import Packer, pack
from nasflow.checkpoint.saver import JointSaver, Save
from nasflow.checkpoint.store import CheckpointStore
from nasflow.errors import CheckpointError

TRIALS, EPOCH = (0, 1, 2), 3
SAMPLE = 1500


def state(trial: int, epoch: int) -> dict[str, Any]:
    """Of the same shapes and of nearly the same text for each trial, so that nothing else gives an exchange away."""
    return {"epoch": epoch, "history": [{"loss": 0.5 + trial}], "module": {"w": torch.full((9,), 10.0 * trial + epoch)}}


def same(found: Any, expected: Any) -> bool:
    (text, blocks), (other, others) = pack(found), pack(expected)
    return text == other and all(torch.equal(block, others[name]) for name, block in blocks.items())


@pytest.fixture
def stores(tmp_path: Path) -> list[CheckpointStore]:
    """Of three trials that were saved together, in one file."""
    stores = [CheckpointStore(tmp_path / f"{trial:05d}") for trial in TRIALS]
    for epoch in (EPOCH - 1, EPOCH):
        saves = [
            Save(store, epoch, lambda trial=trial, epoch=epoch: state(trial, epoch))
            for trial, store in enumerate(stores)
        ]
        assert not JointSaver().save(saves)
    assert stores[0].path(EPOCH).samefile(stores[2].path(EPOCH))
    return stores


def header_bits(data: bytes) -> Iterator[int]:
    """All bits of the table of states, and a sample of the header's others."""
    end = 8 + int.from_bytes(data[:8], "little")
    table = re.search(rb'"states":"[^}]*}"', data[:end])
    assert table is not None
    yield from range(8 * table.start(), 8 * table.end())
    yield from random.Random(5).sample(range(8 * end), SAMPLE)


def test_no_flipped_bit_loads_another_state(stores: list[CheckpointStore]) -> None:
    file = stores[0].path(EPOCH)
    data = bytearray(file.read_bytes())
    for bit in header_bits(bytes(data)):
        data[bit // 8] ^= 1 << bit % 8
        file.write_bytes(data)
        data[bit // 8] ^= 1 << bit % 8
        for trial, store in zip(TRIALS, stores, strict=True):
            try:
                found = store.load(EPOCH)
            except CheckpointError:
                continue
            assert same(found, state(trial, EPOCH)), f"bit {bit}, trial {trial}"


def test_what_is_wrong_with_a_header_is_said_in_printable_text(stores: list[CheckpointStore]) -> None:
    path = stores[0].path(EPOCH)
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + size].replace(b'"dtype":"F32"', '"dtype":"\U0010ffff"'.encode())
    path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + size :])
    with pytest.raises(CheckpointError, match=r"can't be read: .*unknown variant") as refused:
        stores[0].load(EPOCH)
    assert str(refused.value).isprintable()


def test_the_older_checkpoint_is_used_instead(stores: list[CheckpointStore]) -> None:
    file = stores[0].path(EPOCH)
    data = file.read_bytes()
    damaged = re.sub(rb'(\\"00000\\": \\")(.)', lambda found: found[1] + bytes([found[2][0] ^ 4]), data, count=1)
    assert damaged != data
    file.write_bytes(damaged)
    found = stores[0].load_newest()
    assert found is not None
    assert same(found, state(0, EPOCH - 1))


def test_a_file_in_the_place_of_another_epoch_is_refused(stores: list[CheckpointStore]) -> None:
    shutil.copy(stores[1].path(EPOCH - 1), stores[1].path(EPOCH))
    with pytest.raises(CheckpointError, match=r"epoch-0003.*holds trial '00001' after epoch 2"):
        stores[1].load(EPOCH)


def test_a_state_in_the_place_of_another_trials_is_refused(stores: list[CheckpointStore]) -> None:
    """Also where all checksums are right."""
    tables = metadata(stores[0].path(EPOCH))
    states = json.loads(tables["states"])
    tables["states"] = json.dumps({**states, "00000": states["00002"]})
    tables["checksum"] = str(zlib.crc32((tables["blocks"] + tables["states"]).encode()))
    rewrite(stores[0].path(EPOCH), tables)
    assert same(stores[1].load(EPOCH), state(1, EPOCH)), "the tables are as they should be"
    with pytest.raises(CheckpointError, match="holds trial '00002' after epoch 3"):
        stores[0].load(EPOCH)


def test_numbers_are_not_read_as_another_dtype(stores: list[CheckpointStore]) -> None:
    file = stores[0].path(EPOCH)
    file.write_bytes(file.read_bytes().replace(b'"F32"', b'"I32"', 1))
    with pytest.raises(CheckpointError, match="epoch-0003"):
        stores[0].load(EPOCH)


def write_as_before(path: Path, states: dict[str, dict[str, Any]]) -> None:
    """Write a file in the layout of the version before: no checksum of the tables, states without trial and epoch."""
    packer, table = Packer(), {}
    for trial, one in states.items():
        text = packer.pack(one).encode()
        table[trial] = packer.keep(torch.frombuffer(bytearray(text), dtype=torch.uint8))
    flat = packer.flat()
    blocks = {
        name: (*block, zlib.crc32(flat[block.flat].narrow(0, block.start, block.length).view(torch.uint8).numpy()))
        for name, block in packer.blocks.items()
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(flat, path, {"blocks": json.dumps(blocks), "states": json.dumps(table)})


def test_files_of_the_version_before_load(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "00001")
    write_as_before(store.path(EPOCH), {f"{trial:05d}": state(trial, EPOCH) for trial in TRIALS})
    assert same(store.load(EPOCH), state(1, EPOCH))
    shutil.copy(store.path(EPOCH), store.path(EPOCH + 1))
    with pytest.raises(CheckpointError, match=r"epoch-0004.*after epoch 3"):
        store.load(EPOCH + 1)


def test_parts_without_an_epoch_of_the_version_before_load(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "job")
    write_as_before(store.path(EPOCH), {"job": {"weights": torch.ones(2)}})
    assert store.load(EPOCH)["weights"].tolist() == [1.0, 1.0]


def test_a_state_may_have_any_keys(tmp_path: Path) -> None:
    odd = {"trial": "00009", "epoch": 77, "state": None, 5: (1, 2)}
    bundle = Bundle()
    bundle.add("00001", EPOCH, odd)
    store = CheckpointStore(tmp_path / "00001")
    store.write(EPOCH, bundle.freeze())
    assert store.load(EPOCH) == odd


def metadata(path: Path) -> dict[str, str]:
    with safe_open(path, framework="pt") as file:
        found: dict[str, str] = file.metadata()
    return found


def rewrite(path: Path, tables: dict[str, str]) -> None:
    save_file(load_file(path), path, tables)
