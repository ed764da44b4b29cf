"""What programs of others do to the file of their reports."""

import io
import json
import os
from pathlib import Path

import pytest

from nasflow.job import activity
from nasflow.job.events import read_lines
from nasflow.training.program.function import Report
from nasflow.training.program.process import _Output
from tests.training.program.jobs import command, curve, error, final, function, make_job, train

METRICS = "Path(os.environ['NASFLOW_METRICS'])"
OVERWRITTEN = "the program has overwritten or removed the file that NASFLOW_METRICS names; append to it"


@pytest.mark.parametrize(
    ("code", "says"),
    [
        (f"{METRICS}.write_text('{{\"loss\": 1}}\\n'); time.sleep(.1); {METRICS}.write_text('{{}}')", OVERWRITTEN),
        (f"report(loss=1); time.sleep(.1); {METRICS}.unlink(); report(loss=2)", OVERWRITTEN),
        (f"{METRICS}.unlink(); {METRICS}.mkdir()", OVERWRITTEN),
        (f"{METRICS}.open('a').write('[' * 100_000 + '\\n')", "it is no JSON"),
        ("report(loss=1, epoch=100); report(loss=1, epoch=200)", "reported epoch 100, but never epoch 1"),
    ],
)
def test_one_sentence_says_what_is_wrong(tmp_path: Path, code: str, says: str) -> None:
    members = [{"width": 4}, {"width": 8}]
    code = f"report(loss=1) if trial['trial'] else exec({code!r})"
    events = train(make_job(command(code), tmp_path, members, space="values"), tmp_path)
    assert says in error(events) and "\n" not in error(events)
    assert curve(events, trial=1) == [1], "the job's other trials go on"


def test_the_last_line_needs_no_end_and_empty_ones_are_passed_over(tmp_path: Path) -> None:
    code = f'{METRICS}.open(\'a\').write(\'{{"loss": 3}}\\n\\n \\n{{"loss": 2}}\\r\\n{{"loss": 1}}\')'
    assert curve(train(make_job(command(code), tmp_path), tmp_path)) == [3, 2, 1]


def test_a_report_without_an_end_counts_when_its_program_was_killed(tmp_path: Path) -> None:
    part = f"{METRICS}.open('a').write('{{\"loss\": 1, \"epoch\": 1}}'); os.kill(os.getpid(), 9)"
    rest = "[report(loss=epoch, epoch=epoch) for epoch in range(2, 5)]"
    code = f"Path('died').exists() and ({rest}, sys.exit()); Path('died').touch(); (folder / 'saved').touch(); {part}"
    spec = make_job(command(code), tmp_path)
    first = train(spec, tmp_path)
    assert curve(first) == [1] and "SIGKILL" in error(first)
    assert curve([*first, *train(spec, tmp_path)]) == [1, 2, 3, 4]


def test_a_trial_that_failed_on_a_metric_begins_anew(tmp_path: Path) -> None:
    """What it reported and saved then is not read again."""
    code = (
        "saved = len([*folder.iterdir()]); (folder / 'saved').touch()\n"
        "report(loss=1, epoch=1); report(loss=2 if Path('mended').exists() else float('nan'), saved=saved, epoch=2)"
    )
    spec = make_job(command(code), tmp_path)
    first = train(spec, tmp_path)
    assert "loss is nan after epoch 2" in error(first)
    (tmp_path / "mended").touch()
    again = train(spec, tmp_path)
    assert curve([*first, *again]) == [1, 2]
    assert final(again).metrics["saved"] == 0


def test_each_epoch_that_is_repeated_has_the_time_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a program that saves nothing seems to hang, or to be in one long epoch, until it has caught up."""
    seen: list[str] = []
    monkeypatch.setattr(activity, "restart_epoch", lambda: seen.append("again"))
    monkeypatch.setattr(activity, "end_epoch", lambda: seen.append("end"))
    spec = make_job(command("report(loss=1); report(loss=2); sys.exit(1)"), tmp_path)
    for expected in (["end"] * 3, ["again"] * 2 + ["end"]):
        assert "exited with code 1" in error(train(spec, tmp_path))
        assert seen == expected, "two epochs, and the one that failed"
        seen.clear()


def test_a_function_shows_that_it_repeats_epochs(tmp_path: Path) -> None:
    """It waits for no answer after those."""
    report = Report(tmp_path / "reports", 2, io.StringIO("go on\n"))
    for loss in (3, 2, 1):
        report(loss=loss)
    assert len((tmp_path / "reports").read_text().splitlines()) == 3


def test_its_own_count_of_parameters_is_taken(tmp_path: Path) -> None:
    events = train(make_job(command("report(loss=1, parameters=1234)"), tmp_path, space="values"), tmp_path)
    assert final(events).metrics == {"loss": 1.0, "parameters": 1234.0}


def test_a_full_disk_does_not_end_a_program_that_prints() -> None:
    reading, writing = os.pipe()
    full = os.open("/dev/full", os.O_WRONLY)
    output = _Output(os.fdopen(reading, "rb", 0), full)
    with os.fdopen(writing, "wb", 0) as printed:
        for _ in range(4):
            printed.write(b"x" * 2**16)
    output.join()
    assert len(output.kept) == 2**13
    os.close(full)


def test_lines_end_at_newlines_alone(tmp_path: Path) -> None:
    lines = [json.dumps({"text": "a\u2028b\x85c"}, ensure_ascii=False), "{}"]
    (tmp_path / "events").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    assert read_lines(tmp_path / "events")[0] == lines


def test_a_function_may_exit_and_report_tensors_of_one_number(tmp_path: Path) -> None:
    events = train(make_job(function("exits"), tmp_path), tmp_path)
    assert curve(events) == [0.5] and final(events).stopped_early
