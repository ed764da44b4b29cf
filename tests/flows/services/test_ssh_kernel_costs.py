"""A search on a host that has measured nothing, where it shall fuse as on this machine."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.searches import Searches
from tests.sshd import ssh_section, start_sshd

CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 12, 16], "delay": 0.0}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 3},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 2, "trials_per_round": 8},
    "training_service": {"kind": "local", "slots": 1},
}


def plans(searches: Searches) -> list[dict[str, Any]]:
    return [
        {"units": event["units"], "alone": event["alone"]}
        for event in searches.events("search")
        if event["kind"] == "planned"
    ]


def searches_here(folder: Path, prefect_server: Any) -> Iterator[Searches]:
    """Searches by costs that are measured for each: on a machine that is busy meanwhile, nothing may seem to pay."""
    for attempt in range(4):
        for file in Path(os.environ["XDG_CACHE_HOME"]).rglob("kernel-costs-*"):
            file.unlink()
        place = folder / f"here-{attempt}"
        place.mkdir()
        here = Searches(place, prefect_server)
        here.write("search", **CONFIG)
        here.run("run", "search.yaml")
        yield here


@pytest.mark.long
def test_a_host_with_a_home_of_its_own_plans_as_this_machine_does(tmp_path: Path, prefect_server: Any) -> None:
    (tmp_path / "there").mkdir()
    there = Searches(tmp_path / "there", prefect_server)
    here = next(
        (found for found in searches_here(tmp_path, prefect_server) if any(p["units"] for p in plans(found))), None
    )
    assert here is not None, "something is fused, or there is nothing to compare"
    with start_sshd(tmp_path / "host") as host:
        section = ssh_section([host], tmp_path / "known_hosts", hosts=[host.config_host(slots=1)])
        there.write("search", **CONFIG | {"training_service": section})
        there.run("run", "search.yaml")
        assert not list(host.home.rglob("kernel-costs-*")), "the host measured nothing"
    assert plans(there) == plans(here)
    assert not [event for event in there.events("search") if event["kind"] == "measured"]
    assert there.json("leaderboard", "search") == here.json("leaderboard", "search")
