"""One search on the simulated cluster: `python -m benchmarks.slots.search FOLDER SLOTS SPREAD AHEAD ...`."""

import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.slots.cluster import Bar, SimulatedCluster
from nasflow.config.search import SearchConfig, parse_config
from nasflow.flows.search_flow import search
from nasflow.flows.session.session import search_session


@dataclass(frozen=True)
class Setting:
    """What is measured.

    Attributes:
        slots: of the cluster.
        spread: how many times as long as the shortest the longest trial may take; lengths are log-uniform.
        ahead: `budget.rounds_ahead`.
        rounds: of the search.
        per_slot: trials of a round for each slot.
        seconds: mean length of a trial.
        strategy: of the search.
    """

    slots: int
    spread: int
    ahead: int
    rounds: int
    per_slot: int
    seconds: float
    strategy: str = "evolution"

    def config(self, folder: Path) -> SearchConfig:
        """Return the config of the search."""
        budget: dict[str, Any] = {"rounds": self.rounds, "trials_per_round": self.slots * self.per_slot}
        return parse_config(
            {
                "name": "slots",
                "space": {"target": "benchmarks.slots.cluster:build", "params": {"spread": self.spread}},
                "evaluator": {"kind": "function", "target": "benchmarks.slots.cluster:train", "epochs": 1},
                "objectives": [{"metric": "value", "direction": "maximize"}],
                "strategy": {"kind": self.strategy},
                "budget": budget | ({"rounds_ahead": self.ahead} if self.ahead else {}),
                "merge": {"enabled": False},
                "training_service": {"kind": "debug"},
                "store": f"sqlite:///{folder / 'nasflow.db'}",
                "work_dir": str(folder),
            }
        )

    @property
    def shortest(self) -> float:
        """The length of the shortest trial, in seconds."""
        return self.seconds if self.spread == 1 else self.seconds * math.log(self.spread) / (self.spread - 1)


def busy_shares(bars: list[Bar], slots: int) -> tuple[float, float]:
    """Return the share of the slots' time in which they trained: of the search, and until its last job began."""
    first, last = min(bar.begin for bar in bars), max(bar.begin for bar in bars)
    end = max(bar.end for bar in bars)
    whole = sum(bar.end - bar.begin for bar in bars) / (slots * (end - first))
    return whole, sum(min(bar.end, last) - bar.begin for bar in bars) / (slots * (last - first))


def main(folder: Path, setting: Setting) -> None:
    """Run or resume a search, and write its jobs into `bars.json` when it has ended."""
    config = setting.config(folder)
    cluster = SimulatedCluster(config.study_dir, setting.slots, setting.shortest)
    with search_session(config, service=cluster):
        search(config)
    (folder / "bars.json").write_text(json.dumps([asdict(bar) for bar in cluster.bars]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Setting(**json.loads(sys.argv[2])))
