"""`nasflow doctor`: set-ups broken for real, one by one; it names the fault and how to mend it, and changes nothing."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED, temporary_settings
from sqlalchemy import update

from nasflow.config.search import load_config
from nasflow.errors import ConfigError
from nasflow.flows.commands.doctor.machine import check_slots
from nasflow.flows.commands.doctor.prefect import check_prefect, clock_finding
from nasflow.flows.server.automations import ZOMBIES
from nasflow.study.database.store import SchemaRow, Store
from tests.flows.forked_commands import run_forked, start_forked
from tests.flows.searches import PrefectServer, Searches

POOL = "doctored"
SEARCH = {
    "space": {"target": "spaces.py:mixed"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
    "training_service": {"kind": "local", "slots": 2},
}
GOOD = [
    "packages",
    "kernels",
    "config",
    "work_dir",
    "slots",
    "store",
    "server",
    "clock",
    "pool",
    "limit",
    "worker",
    "automation",
]


FIRST_FOUND = """
import sys
from nasflow.flows.cli import main
sys.path.insert(0, {place!r})
main()
"""


class Patient:
    """A sound set-up in a folder of its own, to be broken."""

    def __init__(self, searches: Searches):
        self.folder, self.server = searches.folder, searches.server
        compiler = self.folder / "bin" / "cc"  # it is looked for, not called
        compiler.parent.mkdir()
        compiler.touch(0o755)
        self.env = {"PATH": f"{compiler.parent}:{os.environ['PATH']}"}
        self.disk: tuple[Path, str] | None = None  # which the doctor alone sees
        self.doctor: list[str] = ["nasflow"]
        self.searches = searches
        self.config = searches.write("search", **SEARCH)
        self.pool = POOL
        Store(self.store, create=True).close()

    @property
    def store(self) -> str:
        return f"sqlite:///{self.folder / 'nasflow.db'}"

    def look(self, *arguments: object) -> tuple[int, str, str]:
        command = [*self.doctor, "doctor", self.config, "--work-pool", self.pool, *arguments]
        ended = run_forked(command, self.folder, {**self.server.env, **self.env}, timeout=240, disk=self.disk)
        return ended.returncode, ended.stdout, ended.stderr

    def findings(self, code: int) -> dict[str, tuple[str, str]]:
        """Of each check that is not ok: its level, and its words."""
        found, output, errors = self.look("--json")
        assert found == code, output + errors
        assert not errors, "and it says nothing else"
        return {
            finding["check"]: (finding["level"], f"{finding['saw']}; {finding['mend']}")
            for finding in json.loads(output)
            if finding["level"] != "ok"
        }

    def fault(self, check: str, level: str, *words: str) -> None:
        """It finds this one fault, and says all of these words about it."""
        findings = self.findings(2 if level == "broken" else 0)
        assert list(findings) == [check], findings
        assert findings[check][0] == level
        assert [word for word in words if word not in findings[check][1]] == [], findings[check][1]

    def on_disk(self, state: str, folder: Path) -> None:
        """From now on this folder is the mount point of a disk that only the doctor sees."""
        folder.mkdir(exist_ok=True)
        enter = ["unshare", *([] if os.geteuid() == 0 else ["--map-root-user"]), "--mount"]
        if subprocess.run([*enter, "true"], check=False, capture_output=True).returncode != 0:
            pytest.skip("this machine lets no one have a mount namespace")
        self.disk = (folder, state)


def set_up(server: PrefectServer) -> None:
    run_forked(["nasflow", "setup", "--work-pool", POOL], Path.cwd(), server.env, timeout=120).check_returncode()


@pytest.fixture(scope="module")
def sound_server(prefect_server: PrefectServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """The session's server, set up by `nasflow setup`, with a live worker; afterwards without the automation."""
    set_up(prefect_server)
    worker_command = ["prefect", "worker", "start", "--pool", POOL, "--name", "nurse"]
    worker = start_forked(worker_command, tmp_path_factory.mktemp("worker"), prefect_server.env)
    try:
        deadline = time.monotonic() + 60
        while not prefect_server.post(f"/work_pools/{POOL}/workers/filter", {}):
            assert worker.poll() is None and time.monotonic() < deadline, worker.said()
            time.sleep(0.2)
        yield prefect_server
    finally:
        worker.send_signal(signal.SIGTERM)
        worker.wait(60)
        for automation in automations(prefect_server):
            prefect_server.call("DELETE", f"/automations/{automation['id']}")


@pytest.fixture
def patient(tmp_path: Path, sound_server: PrefectServer) -> Patient:
    return Patient(Searches(tmp_path, sound_server))


def automations(server: PrefectServer) -> list[dict[str, Any]]:
    return [found for found in server.post("/automations/filter", {}) if found["name"] == ZOMBIES]


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.long
def test_a_sound_set_up_is_all_ok_and_stays_as_it_is(patient):
    before = content(patient.folder)
    code, output, errors = patient.look()
    assert (code, errors) == (0, "")
    assert [line.split()[:2] for line in output.splitlines()] == [
        ["ok", check] for check in [*GOOD[:5], "store", *GOOD[5:]]
    ], output
    assert "2 for each search: cpu-0, cpu-1" in output
    assert "alive: nurse" in output
    assert content(patient.folder) == before


def test_the_server_is_down(patient):
    patient.env["PREFECT_API_URL"] = "http://127.0.0.1:9/api"
    patient.fault("server", "broken", "http://127.0.0.1:9/api can't be reached", "prefect server start")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda url: url.removesuffix("/api"), "answers, but not as Prefect's API does"),
        (lambda url: url.removeprefix("http://"), "is not a URL"),
    ],
    ids=["without /api", "without http"],
)
def test_the_api_url_is_wrong(patient, change, words):
    url = change(patient.server.url)
    patient.env["PREFECT_API_URL"] = url
    patient.fault("server", "broken", f"{url} {words}", "set PREFECT_API_URL", "http://127.0.0.1:4200/api")


def test_no_server_is_configured_and_none_is_started(patient, tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    patient.env |= {"PREFECT_API_URL": "", "PREFECT_HOME": str(home)}
    patient.fault("server", "warning", "none is configured", "prefect server start", "PREFECT_API_URL")
    assert not list(home.glob("*.db"))


def test_no_server_is_configured_and_none_may_start():
    with temporary_settings({PREFECT_API_URL: None, PREFECT_SERVER_EPHEMERAL_ENABLED: False}):
        (finding,) = check_prefect(POOL, is_kept=False)
    assert (finding.check, finding.level) == ("server", "broken")
    assert "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE lets none start" in finding.saw
    assert "'nasflow server start'" in finding.mend and "PREFECT_API_URL" in finding.mend


def test_a_fastapi_with_which_the_server_does_not_start(patient, tmp_path_factory):
    place = tmp_path_factory.mktemp("site")
    info = place / "fastapi-0.165.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: fastapi\nVersion: 0.165.0\n")
    patient.doctor = ["python", "-c", FIRST_FOUND.format(place=str(place))]
    words = ("fastapi 0.165.0 is installed", "server does not start", "-m pip install 'fastapi<0.151'")
    patient.fault("packages", "broken", *words)


def test_there_is_no_compiler(patient, tmp_path_factory):
    patient.env["PATH"] = str(tmp_path_factory.mktemp("bin"))
    patient.fault("kernels", "warning", "there is no C compiler", "install one of cc, gcc, clang")


def test_the_work_pool_is_missing(patient):
    patient.pool = "mistyped"
    words = ("there is no work pool 'mistyped'", POOL, "nasflow setup --work-pool mistyped")
    patient.fault("pool", "broken", *words)


def test_the_work_pool_is_paused(patient):
    patient.server.call("PATCH", f"/work_pools/{POOL}", is_paused=True)
    try:
        patient.fault("pool", "broken", "is paused", f"prefect work-pool resume {POOL}")
    finally:
        patient.server.call("PATCH", f"/work_pools/{POOL}", is_paused=False)


def test_the_work_pool_has_no_slots(patient):
    patient.server.call("PATCH", f"/work_pools/{POOL}", concurrency_limit=0)
    try:
        patient.fault("limit", "broken", "has no slots", f"nasflow setup --work-pool {POOL} --slots N")
    finally:
        patient.server.call("PATCH", f"/work_pools/{POOL}", concurrency_limit=None)


def test_a_work_pool_without_worker_of_an_unknown_type(patient):
    patient.server.call("POST", "/work_pools/", name="strange", type="ecs")
    patient.pool = "strange"
    findings = patient.findings(0)
    assert {check: level for check, (level, _) in findings.items()} == {"pool": "warning", "worker": "warning"}
    assert "type ecs" in findings["pool"][1] and "process, docker, kubernetes" in findings["pool"][1]
    assert "no live worker" in findings["worker"][1]
    assert "prefect worker start --pool strange" in findings["worker"][1]


def test_the_automation_is_missing_off_or_too_impatient(patient):
    (present,) = automations(patient.server)
    patient.env["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] = "900"
    patient.fault("automation", "broken", "dead 540 s after", "every 900 s", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY")
    patient.env.clear()
    patient.server.call("PATCH", f"/automations/{present['id']}", enabled=False)
    patient.fault("automation", "warning", "is switched off", "switch it on")
    patient.server.call("DELETE", f"/automations/{present['id']}")
    try:
        patient.fault("automation", "broken", "there is no automation", "stays Running", "'nasflow setup' creates it")
    finally:
        set_up(patient.server)


def test_a_gpu_that_is_not_there(patient):
    service = {"kind": "local", "gpus": [64]}
    patient.config = patient.searches.write("search", **SEARCH | {"training_service": service})
    patient.fault("slots", "broken", "there is no GPU 64", "leave the key out to train on the CPU")


def test_jobs_that_can_t_be_given_a_secret(tmp_path):
    """A search would be refused; the command makes a finding of each error of this check."""
    searches = Searches(tmp_path, PrefectServer("", {}))
    url = "sftp://user:hush@host/folder"
    file = searches.write("search", **SEARCH | {"training_service": {"kind": "slurm"}}, checkpoint={"url": url})
    with pytest.raises(ConfigError, match=r"checkpoint\.url: jobs of training_service 'slurm' can't be given its"):
        list(check_slots(load_config(file)))


def test_a_config_that_is_not_valid(patient):
    patient.config.write_text(patient.config.read_text() + "budgets: {}\n")
    patient.fault("config", "broken", "budgets: unknown key; did you mean 'budget'?")


def test_a_study_store_of_a_newer_nasflow(patient):
    store = Store(patient.store)
    with store.write("schema") as session:
        session.execute(update(SchemaRow).values(version=99))
    store.close()
    patient.fault("store", "broken", "written by a newer nasflow", "upgrade nasflow")


def test_a_read_only_database(patient):
    folder = patient.folder / "disk"
    folder.mkdir()
    (patient.folder / "nasflow.db").rename(folder / "nasflow.db")
    patient.config = patient.searches.write("search", **SEARCH, store="sqlite:///disk/nasflow.db")
    patient.on_disk("read-only", folder)
    patient.fault("store", "broken", f"{folder}/nasflow.db can't be written (", "let your user write it")


def test_a_full_disk(patient):
    folder = patient.folder / "disk"
    patient.config = patient.searches.write("search", **SEARCH, work_dir="disk/runs")
    patient.on_disk("full", folder)
    patient.fault("work_dir", "broken", "the disk is full", f"0 MiB free in {folder}", "make room there")


def test_a_disk_that_is_nearly_full(patient):
    patient.config = patient.searches.write("search", **SEARCH, work_dir="disk/runs")
    patient.on_disk("nearly-full", patient.folder / "disk")
    patient.fault("work_dir", "warning", "the disk is nearly full: 512 MiB free", "make room there")


def test_a_work_dir_that_can_t_be_written(patient):
    folder = patient.folder / "disk"
    patient.config = patient.searches.write("search", **SEARCH, work_dir="disk/runs")
    patient.on_disk("read-only", folder)
    patient.fault("work_dir", "broken", f"can't write in {folder} (Read-only file system)", "name a folder")


def test_a_work_dir_below_a_file(patient):
    (patient.folder / "nasflow-runs").touch()
    patient.fault("work_dir", "broken", f"{patient.folder}/nasflow-runs is not a folder", "name another")


@pytest.mark.parametrize(
    ("seconds", "level", "words"),
    [(-9, "ok", "in step"), (9, "ok", "in step"), (-60, "warning", "60 s behind"), (90, "warning", "90 s ahead of")],
)
def test_the_clock(seconds, level, words):
    theirs = datetime(2026, 11, 1, tzinfo=UTC)
    finding = clock_finding(theirs, theirs + timedelta(seconds=seconds))
    assert (finding.level, words in finding.saw) == (level, True)
