"""Azurite, Microsoft's emulator of Azure's blob storage, as a server of the tests' own."""

import base64
import fcntl
import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

FOLDER = Path.home() / ".cache" / "nasflow-tests" / "azurite"  # not XDG_CACHE_HOME, which tests have of their own
ACCOUNT, KEY = "searches", base64.b64encode(b"hush " * 12).decode()
_PACKAGE = "azurite@3.37.0"
_STARTS_WITHIN = 60.0  # seconds


def lacking() -> str:
    """What there is not, of what Azurite takes; nothing if it can be started, perhaps after it has been installed."""
    return "" if shutil.which("npm") else "npm (Debian: npm)"


def program() -> Path | None:
    """Azurite's program for blobs; None if npm can't install it. One process installs, others wait for it."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    found = FOLDER / "node_modules" / ".bin" / "azurite-blob"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not found.exists():
            options = ["--no-fund", "--no-audit", "--ignore-scripts", "--silent", "--prefix", str(FOLDER)]
            subprocess.run(["npm", "install", *options, _PACKAGE], check=False, cwd=FOLDER)
        return found if found.exists() else None


class Azurite:
    """A server with one container, below `folder`; the same interface as `S3`."""

    def __init__(self, program: Path, folder: Path):
        from azure.storage.blob import BlobServiceClient

        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        command = [str(program), "--blobHost", "127.0.0.1", "--blobPort", str(self.port), "--location", str(folder)]
        with (folder / "azurite.log").open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--silent", "--skipApiVersionCheck", "--disableTelemetry"],
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"},
                stdout=log,
                stderr=log,
            )
        self._await_start(folder / "azurite.log")
        container = BlobServiceClient.from_connection_string(self.connection()).get_container_client("bucket")
        container.create_container()
        self._container = container

    def connection(self, port: int | None = None) -> str:
        """Return the connection string, a secret, perhaps for a proxy's port."""
        where = f"BlobEndpoint=http://127.0.0.1:{port or self.port}/{ACCOUNT}"
        return f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};{where};"

    def storage(self, port: int | None = None) -> dict[str, Any]:
        """Return the section of the config, perhaps for a proxy's port."""
        return {"url": "az://bucket/searches", "options": {"connection_string": self.connection(port)}}

    def objects(self) -> list[str]:
        """Return the names of all objects."""
        return [str(blob.name) for blob in self._container.list_blobs()]

    def close(self) -> None:
        """End it."""
        self._process.terminate()
        self._process.wait(20)

    def _await_start(self, log: Path) -> None:
        deadline = time.monotonic() + _STARTS_WITHIN
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Azurite does not start: {log.read_text()}")
            time.sleep(0.1)
