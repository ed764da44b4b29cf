"""What makes a work pool unfit for jobs is said in one sentence, before a search starts."""

import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from nasflow.config.services.prefect import PrefectServiceConfig
from nasflow.errors import ServiceError
from nasflow.flows.pool.service import PrefectService
from tests.flows.pool.pools import Pools

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("uses_server")]


def refusal(tmp_path, **options):
    with pytest.raises(ServiceError) as refused:
        PrefectService(PrefectServiceConfig(**options), tmp_path / "root").validate()
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "root").exists()
    return str(refused.value)


def test_no_server(tmp_path):
    with temporary_settings({PREFECT_API_URL: None}):
        said = refusal(tmp_path, work_pool="gpus")
    assert "training_service.kind: 'prefect' needs a Prefect server that its workers can reach" in said
    assert "set PREFECT_API_URL" in said


def test_a_server_that_is_not_there(tmp_path):
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert "http://127.0.0.1:9/api can't be reached" in refusal(tmp_path, work_pool="gpus")


def test_no_such_pool(tmp_path, pools: Pools):
    pools.make("there")
    said = refusal(tmp_path, work_pool="gpu")
    assert said.startswith("training_service.work_pool: Prefect has no work pool 'gpu' (there: ")
    assert said.endswith("'prefect work-pool create gpu --type process' makes one")


@pytest.mark.parametrize(
    ("name", "about", "words"),
    [
        ("paused", {"is_paused": True}, "'paused' is paused; 'prefect work-pool resume paused' lets it run jobs"),
        ("push", {"type": "cloud-run:push"}, "'push' is of type cloud-run:push, which has no workers; use a pool with"),
        ("managed", {"type": "prefect:managed"}, "'managed' is of type prefect:managed, which has no workers"),
        ("none", {"concurrency_limit": 0}, "the concurrency limit of 'none' is 0; 'prefect work-pool clear-conc"),
        ("alone", {}, "no worker polls 'alone'; start one where jobs are to run: prefect worker start --pool alone"),
    ],
)
def test_a_pool_that_runs_nothing(tmp_path, pools: Pools, name, about, words):
    pools.make(name, **about)
    assert f"training_service.work_pool: {words}" in refusal(tmp_path, work_pool=name)


@pytest.mark.parametrize(
    ("name", "about", "words"),
    [
        (None, None, "work pool '{pool}' has no queue 'fast' (there: default); 'prefect work-queue create fast --pool"),
        ("fast", {"is_paused": True}, "'fast' is paused; 'prefect work-queue resume fast --pool {pool}' lets it"),
        ("fast", {"concurrency_limit": 0}, "the concurrency limit of 'fast' is 0; 'prefect work-queue clear-conc"),
    ],
    ids=["missing", "paused", "no slots"],
)
def test_a_queue_that_runs_nothing(tmp_path, pools: Pools, name, about, words):
    pool = pools.make(tmp_path.name)
    if name:
        pools.server.post(f"/work_pools/{pool}/queues", {"name": name, **about})
    said = refusal(tmp_path, work_pool=pool, work_queue="fast")
    assert f"training_service.work_queue: {words.format(pool=pool)}" in said


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"imagee": "torch"}, ".imagee: work pool '{pool}' has no such variable; did you mean 'image'?"),
        ({"colour": 1}, ".colour: work pool '{pool}' has no such variable; it has: cpu, image"),
        ({"image": "torch", "cpu": "many"}, ".cpu: 'many' is not of type 'integer' (by work pool '{pool}')"),
        ({"cpu": 2}, ": 'image' is a required property (by work pool '{pool}')"),
    ],
    ids=["misspelt", "unknown", "wrong type", "missing"],
)
def test_wrong_job_variables(tmp_path, pools: Pools, variables, words):
    properties = {"image": {"type": "string"}, "cpu": {"type": "integer", "default": 1}}
    template = {
        "variables": {"type": "object", "properties": properties, "required": ["image"]},
        "job_configuration": {"image": "{{ image }}", "cpu": "{{ cpu }}"},
    }
    pool = pools.make(tmp_path.name, base_job_template=template)
    said = refusal(tmp_path, work_pool=pool, job_variables=variables)
    assert said == f"training_service.job_variables{words.format(pool=pool)}"
