"""A whole search on a work pool."""

from typing import Any

import pytest
import yaml

from nasflow.config.search import parse_config
from nasflow.config.services.prefect import PrefectServiceConfig
from tests.flows.pool.pools import PATIENCE, Pools
from tests.flows.searches import HERE, Searches

pytestmark = [pytest.mark.long, pytest.mark.timeout(3 * PATIENCE)]
CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 10, 12, 14, 16, 18]}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 2},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 1, "trials_per_round": 4},
    "training_service": {"kind": "local", "slots": 2},
}


def test_a_search_on_a_pool_finds_the_same_as_here(searches: Searches, undisturbed, pools: Pools):
    on_pool = {"kind": "prefect", "work_pool": pools.make("search"), "max_jobs": 2, "poll_seconds": 0.5}
    searches.write("search", **CONFIG | {"training_service": on_pool})
    with pools.worker("search", "of-search", program=True):
        searches.run("run", "search.yaml")
    assert searches.json("leaderboard", "search") == undisturbed
    assert set(pools.states(searches.folder / "nasflow-runs/search")) == {"COMPLETED"}


def test_a_search_on_a_pool_without_a_worker_is_refused_in_one_sentence(searches: Searches, pools: Pools):
    on_pool = {"kind": "prefect", "work_pool": pools.make("nobody")}
    searches.write("search", **CONFIG | {"training_service": on_pool})
    said = searches.run("run", "search.yaml", code=2)
    assert "training_service.work_pool: no worker polls 'nobody'" in said
    assert "Traceback" not in said
    assert "no worker polls 'nobody'" in searches.run("doctor", "search.yaml", code=2)


def test_setup_makes_the_pool_and_the_deployment_of_jobs(searches: Searches, pools: Pools):
    searches.write("search", **CONFIG | {"training_service": {"kind": "prefect", "work_pool": "set-up"}})
    for done in ("created", "found"):
        made = searches.json("setup", "search.yaml", "--work-pool", "of-searches")["made"]
        assert [(thing["what"], thing["name"], thing["done"]) for thing in made[-2:]] == [
            ("jobs' work pool", "set-up", done),
            ("jobs' deployment", "set-up-0.1.0", done),
        ]


def test_the_config_of_the_docs_is_valid():
    text = (HERE.parents[2] / "docs/work-pools.md").read_text()
    config = parse_config(yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0]))
    assert isinstance(config.training_service, PrefectServiceConfig)
