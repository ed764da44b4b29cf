"""Training functions as strangers write them, and the spaces of their models."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from nasflow.space.pick import Pick


def net(pick: Pick) -> nn.Module:
    width = pick("width", [4, 8])
    return nn.Sequential(nn.Linear(8, width), nn.Tanh(), nn.Dropout(0.1), nn.Linear(width, 1))


def values(pick: Pick) -> dict[str, int]:
    return {"width": pick("width", [4, 8])}


async def waits(report: Any) -> None:
    report(val_loss=1.0)


def yields(report: Any) -> Iterator[None]:
    report(val_loss=1.0)
    yield


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 256).reshape(32, 8)
    return x, x.sum(1, keepdim=True)


def train(model, report, checkpoint, *, lr=0.05, epochs=4, die=None):
    """Draws noise and dropout, so that a resumed one shows whether its random numbers went on."""
    optimizer = torch.optim.Adam(model.parameters(), lr)
    x, y = batch()
    if state := checkpoint.load():
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    while report.epoch < epochs:
        noise = torch.randn(x.shape) + float(np.random.normal())
        loss = F.mse_loss(model(x + 0.01 * noise), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        checkpoint.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        if die is not None and report.epoch == die and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        report(loss=loss)


def plain(report, curve=(3.0, 2.0, 1.0)):
    """Needs no model, saves nothing, and counts how often it was started."""
    with Path("starts").open("a") as file:
        file.write("x")
    for value in curve:
        report({"loss": np.float32(value)})


def endless(report):
    epoch = 0
    try:
        while True:
            epoch += 1
            report(loss=1 / epoch, tensor=torch.tensor(epoch))
    finally:
        Path("cleaned").write_text(str(epoch))


def swallows(report):
    """Whatever is raised, it goes on."""
    while True:
        try:
            report(loss=1.0)
        except Exception as error:
            Path("told").write_text(f"{type(error).__name__}: {error}")
            return


def fails(report, when=2):
    for epoch in range(4):
        if epoch == when:
            raise ValueError("the sky has fallen")
        report(loss=1.0)


def leaves(report):
    report(loss=1.0)
    sys.exit("not today")


def unpackable(report, checkpoint):
    checkpoint.save({"deep": [{"here": object()}]})
    report(loss=1.0)


def of_every_kind(report, checkpoint):
    saved = {"a": [1, (2.5, None)], "t": {"x": torch.arange(3)}, 7: "seven", "nan": float("nan")}
    if (state := checkpoint.load()) is None:
        checkpoint.save(saved)
        state = checkpoint.load()
        report(loss=1.0)
        os.kill(os.getpid(), signal.SIGKILL)
    same = json.dumps([state["a"], state[7], state["t"]["x"].tolist()])
    Path("loaded").write_text(same)
    report(loss=0.5)


def diverges(report):
    report(loss=1.0)
    report(loss=float("inf"))


def texts(report):
    report(loss="low")


def many(report, lines=200_000):
    for number in range(lines):
        print(f"line {number} of very much that nobody reads")
    report(loss=1.0)
    sys.stderr.write("x" * 3_000_000)
    raise RuntimeError("after the flood")


def parent(report):
    """Starts a process of its own, in a session of its own, and waits forever."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
    Path("pids").write_text(f"{os.getpid()} {child.pid}")
    report(loss=1.0)
    Path("second").touch()
    time.sleep(1000)


def deaf(report):
    """Does not heed SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    parent(report)


def without_report(model):
    return model


def curved(report, start):
    """A learning curve that depends on nothing but a param."""
    for epoch in range(6):
        report(loss=start - 0.1 * epoch)


def lacks_some(report):
    report(val_accuracy=0.5)


def odd_saver(report, checkpoint):
    """Saves every second epoch only, and dies once in the third."""
    state = checkpoint.load() or {"sum": 0}
    for epoch in range(report.epoch, 4):
        state["sum"] += epoch
        if epoch % 2:
            checkpoint.save(state)
        if epoch == 3 and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with Path("trained").open("a") as file:
            file.write(str(epoch + 1))
        report(loss=state["sum"])


def goes_back(report, checkpoint):
    """Saves in its second epoch only, dies once in the third, and goes back to what it has saved in the fourth."""
    state = checkpoint.load() or {"sum": 0}
    while report.epoch < 4:
        if report.epoch == 1:
            checkpoint.save(state)
        if report.epoch == 2 and not Path("died").exists():
            Path("died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if report.epoch == 3:
            state = checkpoint.load()
        state["sum"] += 1
        report(loss=state["sum"])


def lingers(report, checkpoint, epochs=4):
    """Does not heed SIGTERM in its third epoch, and saves for as long as it lives, as one that is slow to end."""
    state = checkpoint.load() or {"sum": 0}
    for epoch in range(report.epoch, epochs):
        state["sum"] += epoch
        if epoch == 2 and not Path("go").exists():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            Path("second").touch()
            while True:
                checkpoint.save({"sum": -1})
                Path("alive").touch()
        checkpoint.save(state)
        report(loss=state["sum"])
        if epoch == 2:
            Path("began").touch()


def exits(report):
    report(loss=torch.tensor([0.5]))
    sys.exit(0)


def in_child(report):
    """Trains in a process that it forks."""
    child = multiprocessing.get_context("fork").Process(target=plain, args=(report,))
    child.start()
    child.join()


def in_children(report):
    """Each of its processes counts from the first epoch on."""
    for _ in range(3):
        child = multiprocessing.get_context("fork").Process(target=lambda: report(loss=1.0))
        child.start()
        child.join()
