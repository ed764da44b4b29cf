"""The copy of nasflow's package that searches under faults run on."""

import os
import subprocess
import sys

from tests.faults.package import Package

SHOW = "import nasflow, nasflow.flows; from importlib.metadata import version; print(nasflow.__version__)"
SHOW += "; assert nasflow.__version__ == version('nasflow'); print(nasflow.flows.__file__)"


def test_programs_import_the_copy_and_nothing_when_it_is_missing(tmp_path):
    package = Package(tmp_path / "package")

    def shown() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-P", "-c", SHOW]
        env = {**os.environ, **package.environment}
        return subprocess.run(command, cwd="/", env=env, capture_output=True, text=True, check=False)

    for release in ("0.1.1", "0.1.2"):
        assert shown().stdout.split() == [release, str(tmp_path / "package" / "nasflow" / "flows" / "__init__.py")]
        package.upgrade(0)
    (tmp_path / "package" / "nasflow").rename(tmp_path / "gone")
    assert "No module named 'nasflow'" in shown().stderr
