"""Which hosts get a job that needs several, and what becomes of its parts: the records, without a host."""

from pathlib import Path

import pytest

from nasflow.job.node_jobs import is_node_job, job_of
from nasflow.job.spec import JobSpec, job_dir
from nasflow.training_service.base import JobStatus
from nasflow.training_service.ssh.records import Offer, SshRecords
from tests.training.wide.jobs import wide


def spec_of(root: Path, job_id: str) -> JobSpec:
    return JobSpec.model_validate_json((job_dir(root, job_id) / "job.json").read_bytes())


def spec(job_id: str, nodes: int = 1) -> JobSpec:
    return wide(devices=2, nodes=nodes).model_copy(update={"job_id": job_id})


@pytest.fixture
def records(tmp_path: Path) -> SshRecords:
    found = SshRecords(tmp_path / "root")
    for host in "abc":
        found.claims(host).mkdir(parents=True)
    return found


def claims(records: SshRecords) -> dict[str, list[str]]:
    return {host: [*records.known(host)] for host in records.hosts()}


def test_a_job_begins_once_as_many_hosts_have_room_as_it_needs(records: SshRecords) -> None:
    records.enqueue(spec("job", 3))
    assert records.take("a", 1, Offer("10.0.0.1", on_gpus=False)) == []
    assert records.take("b", 1, Offer("10.0.0.2", on_gpus=False)) == []
    assert records.take("a", 1, Offer("10.0.0.1", on_gpus=False)) == [], "one host, however often it asks"
    taken = records.take("c", 1, Offer("10.0.0.3", on_gpus=False))
    assert len(taken) == 1
    given = {job_id: host for host, jobs in claims(records).items() for job_id in jobs}
    assert sorted(given) == ["job", "job-node-1", "job-node-2"]
    assert {*given.values()} == {*"abc"}
    assert given[taken[0]] == "c"
    addresses = {"a": "10.0.0.1", "b": "10.0.0.2", "c": "10.0.0.3"}
    for number, job_id in enumerate(sorted(given)):
        node = spec_of(records.root, job_id).node
        assert node is not None
        assert (node.number, node.first) == (number, addresses[given["job"]])
    assert spec_of(records.root, "job-node-1").limits.stalled is None
    assert records.queued() == {}
    assert records.unfinished() == ["job"]


def test_hosts_with_gpus_and_without_do_not_train_one_trial(records: SshRecords) -> None:
    records.enqueue(spec("job", 2))
    assert records.take("a", 1, Offer("10.0.0.1", on_gpus=True)) == []
    assert records.take("b", 1, Offer("10.0.0.2", on_gpus=False)) == []
    assert records.take("c", 1, Offer("10.0.0.3", on_gpus=True)) == ["job-node-1"]
    assert claims(records) == {"a": ["job"], "b": [], "c": ["job-node-1"]}


def test_a_slot_that_is_kept_free_is_given_to_nobody_else(records: SshRecords) -> None:
    records.enqueue(spec("large", 2))
    records.enqueue(spec("other-large", 2))
    for number in range(4):
        records.enqueue(spec(f"small-{number}"))
    assert records.take("a", 1, Offer("a", on_gpus=False)) == []
    assert records.take("a", 3, Offer("a", on_gpus=False)) == ["small-0", "small-1"], "those behind it take the others"
    assert [*records.queued()] == ["large", "other-large", "small-2", "small-3"]
    records.withdraw("a")  # it does not answer
    assert records.take("b", 1, Offer("b", on_gpus=False)) == []
    assert records.take("a", 0, Offer("a", on_gpus=False)) == [], "no room any more"
    assert records.take("c", 2, Offer("c", on_gpus=False)) == ["large-node-1", "small-2"], (
        "one slot for it, the other as ever"
    )
    assert claims(records)["b"] == ["large"]
    assert records.take("b", 1, Offer("b", on_gpus=False)) == [], "now it keeps a slot for the next"
    assert records.take("c", 1, Offer("c", on_gpus=False)) == ["other-large-node-1"]


def test_jobs_before_it_come_first(records: SshRecords) -> None:
    records.enqueue(spec("small"))
    records.enqueue(spec("large", 2))
    assert records.take("a", 1, Offer("a", on_gpus=False)) == ["small"]
    assert records.take("b", 1, Offer("b", on_gpus=False)) == []
    assert records.take("a", 1, Offer("a", on_gpus=False)) == ["large-node-1"]


def test_a_job_that_waits_long_for_hosts_is_mentioned_once(
    records: SshRecords, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    records.enqueue(spec("job", 3))
    for now in range(1000, 1200, 10):  # noqa: B007 - read by the lambda
        records.take("a", 1, Offer("a", on_gpus=False))
        records.take("b", 1, Offer("b", on_gpus=False))
    assert [record.getMessage() for record in caplog.records] == [
        "job needs 3 hosts (evaluator.parallel.nodes), and for 30 s only these have had a free slot: a, b"
    ]


def begin(records: SshRecords) -> None:
    records.enqueue(spec("job", 2))
    records.take("a", 1, Offer("a", on_gpus=False))
    records.take("b", 1, Offer("b", on_gpus=False))
    assert claims(records) == {"a": ["job"], "b": ["job-node-1"], "c": []}


def test_a_node_job_ends_with_its_job(records: SshRecords) -> None:
    begin(records)
    records.drop_claim("a", "job")
    assert claims(records) == {"a": [], "b": [], "c": []}


@pytest.mark.parametrize("lost", ["a", "b"])
def test_a_job_is_lost_with_any_of_its_hosts(records: SshRecords, lost: str) -> None:
    begin(records)
    records.lose(lost, "the power is gone")
    outcome = records.outcome("job")
    assert outcome is not None
    assert (outcome.status, outcome.reason) == (JobStatus.LOST, "the power is gone")
    assert claims(records) == {"a": [], "b": [], "c": []}
    records.lose("b", "again")
    assert records.outcome("job-node-1") is None
    assert records.unfinished() == []


def test_a_node_job_of_an_earlier_start_does_not_count(records: SshRecords) -> None:
    begin(records)
    word = (records.claims("b") / "job-node-1").read_text()
    records.lose("a", "gone")
    records.enqueue(spec("job", 2))
    records.take("a", 1, Offer("a", on_gpus=False))
    records.take("c", 1, Offer("c", on_gpus=False))
    (records.claims("b") / "job-node-1").write_text(word)  # b was silent all the time
    records.end_node_job("b", "job-node-1", "it has ended")
    assert records.outcome("job") is None, "others train it now"
    assert claims(records) == {"a": ["job"], "b": [], "c": ["job-node-1"]}


def test_a_controller_that_is_killed_while_it_gives_a_job_to_hosts(
    records: SshRecords, monkeypatch: pytest.MonkeyPatch
) -> None:
    records.enqueue(spec("job", 2))
    records.take("a", 1, Offer("a", on_gpus=False))
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            records.take("b", 1, Offer("b", on_gpus=False))
    again = SshRecords(records.root)
    assert claims(again) == {"a": [], "b": [], "c": []}
    assert [*again.queued()] == ["job"]
    assert again.unfinished() == ["job"]
    again.take("b", 1, Offer("b", on_gpus=False))
    again.take("c", 1, Offer("c", on_gpus=False))
    assert claims(again) == {"a": [], "b": ["job"], "c": ["job-node-1"]}


def test_names() -> None:
    assert not is_node_job("round-3-job-1")
    assert is_node_job("round-3-job-1-node-12")
    assert job_of("round-3-job-1-node-12") == "round-3-job-1"
    with pytest.raises(ValueError, match=r"job-1 is no node job"):
        job_of("job-1")
