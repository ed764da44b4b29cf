"""A trial on machines that share no folder, with a process of its job on each: the test carries files between them."""

import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nasflow.job.events import Ended, Event, Evicted, parse_event, read_lines
from nasflow.job.node_jobs import divide
from nasflow.job.spec import INVITATION, JobSpec, job_dir, trial_dir
from nasflow.system.small_files import write_private
from tests.flows.forked_commands import ForkedProgram, start_forked
from tests.training.wide import killed_job
from tests.training.wide.jobs import assert_equal, own_module, solo, state, trained, wide
from tests.training.wide.test_nodes import epochs


class Machines:
    """The roots of a job's machines."""

    def __init__(self, folder: Path, spec: JobSpec):
        self.roots = [folder / str(number) for number in range(spec.nodes)]
        self.log = folder / "log"
        self._folder = folder
        self._ids = divide(folder / "here", spec, "127.0.0.1")
        self._events = 0
        self.modes: set[int] = set()  # those that the file of an invitation has had

    def run(self, *killed: object, node: int = 1) -> tuple[int, list[Event]]:
        """The exit code of the job's process, and the events of this start.

        Args:
            killed: where a rank of machine `node` is.
        """
        for number, root in enumerate(self.roots):
            folder = job_dir(root, self._ids[number])
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy(job_dir(self._folder / "here", self._ids[number]) / "job.json", folder)
        with self._others(killed if node else (), node), self._carrying():
            first = self._start(0, *(() if node else killed))
            print(first.communicate(timeout=120)[0])  # shown if the test fails
        lines, self._events = read_lines(job_dir(self.roots[0], self._ids[0]) / "events.jsonl", self._events)
        return first.wait(), [event for line in lines if (event := parse_event(line)) is not None]

    def bring_epochs(self) -> None:
        """Copy what the first machine has saved to the others, as a service does before a job begins again."""
        own = trial_dir(self.roots[0], 0)
        for root in self.roots[1:]:
            trial_dir(root, 0).mkdir(parents=True, exist_ok=True)
            for file in own.glob("epoch-*"):
                shutil.copy(file, trial_dir(root, 0))

    def _start(self, number: int, *killed: object) -> ForkedProgram:
        file = job_dir(self.roots[number], self._ids[number]) / "job.json"
        command = ["python", killed_job.__file__, file, self.log, *killed]
        return start_forked(command, Path.cwd(), {**os.environ, "OMP_NUM_THREADS": "1"})

    @contextmanager
    def _others(self, killed: tuple[object, ...], node: int) -> Iterator[None]:
        programs = [self._start(number, *(killed if number == node else ())) for number in range(1, len(self.roots))]
        try:
            yield
        finally:
            for program in programs:
                program.kill()
                print(program.communicate(timeout=60)[0])

    @contextmanager
    def _carrying(self) -> Iterator[None]:
        """Carry invitations from the first machine to the others."""
        ended = threading.Event()

        def carry() -> None:
            file = job_dir(self.roots[0], self._ids[0]) / INVITATION
            while not ended.wait(0.02):
                with suppress(FileNotFoundError):  # there is none now
                    text, mode = file.read_text(), stat.S_IMODE(file.stat().st_mode)
                    self.modes.add(mode)
                    for number, root in enumerate(self.roots[1:], 1):
                        write_private(job_dir(root, self._ids[number]) / INVITATION, text)

        thread = threading.Thread(target=carry)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def test_machines_without_a_common_folder_train_as_one_process(tmp_path: Path) -> None:
    spec = wide("fsdp", 2, nodes=2)
    machines = Machines(tmp_path, spec)
    code, events = machines.run()
    assert code == 0
    assert epochs(events) == [1, 2, 3]
    assert_equal(state(machines.roots[0]), solo(spec, tmp_path / "solo"))
    assert trained(tmp_path) == {rank: [1, 1, 1] for rank in range(4)}
    assert machines.modes == {0o600}
    assert not job_dir(machines.roots[0], spec.job_id).joinpath(INVITATION).exists()


def test_a_rank_on_another_machine_is_killed_and_all_go_on(tmp_path: Path) -> None:
    spec = wide("fsdp", 1, nodes=3, epochs=4)
    machines = Machines(tmp_path, spec)
    code, before = machines.run("step", 2, 3, node=2)
    assert code == -9, "judged as if the job itself had been killed"
    machines.bring_epochs()
    code, after = machines.run()
    assert code == 0
    assert epochs([*before, *after]) == [1, 2, 3, 4], "each epoch is reported once"
    assert trained(tmp_path) == {rank: [1, 1, 1, 1] for rank in range(3)}
    assert_equal(state(machines.roots[0]), solo(spec, tmp_path / "solo"))


def test_a_new_machine_takes_the_place_of_the_first(tmp_path: Path) -> None:
    spec = wide("fsdp", 1, nodes=2, epochs=4)
    machines = Machines(tmp_path, spec)
    _, before = machines.run("step", 0, 3, node=0)
    machines.bring_epochs()
    machines.roots.reverse()
    events = job_dir(machines.roots[1], spec.job_id) / "events.jsonl"
    job_dir(machines.roots[0], spec.job_id).mkdir()
    shutil.copy(events, job_dir(machines.roots[0], spec.job_id))
    code, after = machines.run()
    assert code == 0
    assert epochs([*before, *after]) == [1, 2, 3, 4], "each epoch is reported once"
    assert_equal(state(machines.roots[0]), solo(spec, tmp_path / "solo"))


def test_what_a_rank_on_another_machine_raises_is_blamed_on_the_trial(tmp_path: Path) -> None:
    machines = Machines(tmp_path, wide("ddp", 1, nodes=2, **own_module("FailsOnTheLastRank")))
    code, events = machines.run()
    assert code == 0
    (evicted,) = [event for event in events if isinstance(event, Evicted)]
    assert "ValueError: this node can't go on" in evicted.error


def test_a_process_on_another_machine_that_ends_is_said(tmp_path: Path) -> None:
    machines = Machines(tmp_path, wide("ddp", 1, nodes=2, epochs=4))
    code, events = machines.run("job", 1, 2)
    assert code == 1
    assert isinstance(events[-1], Ended) and events[-1].infrastructure
    assert "node 1 of the trial's machines is lost" in str(events[-1].error)


def test_the_trials_of_a_job_one_after_the_other(tmp_path: Path) -> None:
    one = wide("ddp", 1, nodes=2, epochs=2)
    (member,) = one.members
    spec = one.model_copy(update={"members": [member, member.model_copy(update={"trial": 1, "seed": 5})]})
    machines = Machines(tmp_path, spec)
    begin = time.monotonic()
    code, events = machines.run()
    assert code == 0
    assert epochs(events) == [1, 2, 1, 2]
    assert time.monotonic() - begin < 60, "no process waited for another to give up"
