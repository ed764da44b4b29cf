"""Python environments for programs whose packages don't fit nasflow's, made once below `~/.cache/nasflow-tests`."""

import fcntl
import hashlib
import subprocess
import sys
from pathlib import Path

import pytest


def own_environment(name: str, requirements: Path) -> Path:
    """Return an environment with these packages, made if it is missing; skip the test if that can't be done.

    Args:
        name: of what is installed, for its folder and the reason of a skip.
        requirements: all packages, with their hashes.
    """
    version = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = Path.home() / ".cache" / "nasflow-tests" / f"{name.lower().replace(' ', '-')}-{version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            install = ["install", "-qq", "--disable-pip-version-check", "--no-compile"]
            for command in (
                [sys.executable, "-m", "venv", "--clear", place],
                [place / "bin" / "python", "-m", "pip", *install, "--require-hashes", "--no-deps", "-r", requirements],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.skip(f"needs {name}, which can't be installed: {(done.stderr or done.stdout)[-300:]}")
            (place / "made").touch()
    return place
