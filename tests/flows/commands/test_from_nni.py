"""`nasflow from-nni` as a person uses it."""

import sys
from pathlib import Path

import pytest

from nasflow.config.search import load_config
from nasflow.flows.cli import main

SAMPLES = Path(__file__).parents[2] / "config" / "from_nni" / "samples"


@pytest.fixture
def run(monkeypatch, capsys):
    def from_nni(file: Path) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["nasflow", "from-nni", str(file)])
        with pytest.raises(SystemExit) as ended:
            main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out, told.err

    return from_nni


def test_the_config_is_on_stdout_and_what_is_left_to_do_on_stderr(run, tmp_path):
    code, out, err = run(SAMPLES / "remote.yml")
    assert code == 0
    (tmp_path / "search.yaml").write_text(out)
    assert load_config(tmp_path / "search.yaml").training_service.kind == "ssh"
    assert "set the environment variable SSH_PASSWORD_GPU_2_LAB" in err
    assert all(": " in line for line in err.splitlines()), "a key and what to do, a line each"
    assert "SECRET-" not in out + err


def test_an_incomplete_config_is_printed_and_said_to_be_so(run, tmp_path):
    (tmp_path / "config.yml").write_text("trainingService: {platform: remote}")
    code, out, err = run(tmp_path / "config.yml")
    assert (code, "kind: ssh" in out) == (0, True)
    assert "there are no machines" in err
    assert "the printed config is not complete: the printed config: training_service.hosts" in err


def test_another_file_is_one_sentence(run, tmp_path):
    (tmp_path / "config.yml").write_text("name: mnist")
    code, out, err = run(tmp_path / "config.yml")
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "is no config of an NNI experiment" in err
    assert len(err.splitlines()) == 1
