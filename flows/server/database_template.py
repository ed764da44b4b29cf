"""A migrated database of Prefect's, kept in the user's cache folder as the begin of new ones.

Prefect makes a database by running all of its migrations, and registers its block types in it: five seconds of
computing at the first start of a server. A copy takes none. The template has nothing of a user in it: it is made apart,
and no server runs on it.
"""

import asyncio
import hashlib
import json
import os
import shutil
import sqlite3
import tempfile
import time
import traceback
from importlib.metadata import entry_points, version
from importlib.util import find_spec
from pathlib import Path

from nasflow.system.caches import cache_dir
from nasflow.training_service.machine.processes import die_with_parent

_URL = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
_OLD_URL = "PREFECT_API_DATABASE_CONNECTION_URL"
_REGISTER = "PREFECT_API_BLOCKS_REGISTER_ON_START"
_MOST = 4  # templates, of different versions
_ABANDONED = 3600.0  # seconds


class DatabaseTemplate:
    """The template for what is installed: Prefect, its migrations, SQLite, collections of Prefect's blocks."""

    def __init__(self) -> None:
        self._folder = cache_dir() / "prefect-databases"
        package = find_spec("prefect")
        home = Path(package.origin or "").parent if package else Path()
        migrations = sorted(file.name for file in home.glob("server/database/_migrations/versions/sqlite/*.py"))
        blocks = sorted(
            f"{point.name} {point.dist and point.dist.version}" for point in entry_points(group="prefect.collections")
        )
        what = json.dumps([version("prefect"), migrations, sqlite3.sqlite_version, blocks])
        self._prefix = f"{version('prefect')}-{hashlib.sha256(what.encode()).hexdigest()[:16]}-"

    def copy_to(self, file: Path) -> bool:
        """Make the database `file`, unless it exists; it is complete or absent. Returns whether there is a template.

        Nothing is made on a file system without hard links: Prefect then makes its database itself.
        """
        template = self._read()
        if template is None:
            return False
        with tempfile.NamedTemporaryFile(dir=file.parent, prefix=f"{file.name}.") as new:
            new.write(template)
            new.flush()
            os.fsync(new.fileno())
            Path(new.name).chmod(0o600)
            try:
                os.link(new.name, file)
            except FileExistsError:
                pass  # another server was first
            except OSError:
                return False
        os.environ[_REGISTER] = "false"
        _refresh_settings()
        return True

    def make(self) -> None:
        """Make the template in a fork, for Prefect keeps the database that it knew first. Call it without threads.

        A template that can't be made is left out: the server migrates its database itself.
        """
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent)
                self._make()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)

    def _read(self) -> bytes | None:
        """Return the template; None if there is none. A damaged one is removed."""
        for file in sorted(self._folder.glob(f"{self._prefix}*.db")):
            content = file.read_bytes()
            if file.stem == self._prefix + _digest(content):
                return content
            file.unlink(missing_ok=True)
        return None

    def _make(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        for left in self._folder.glob("making-*"):
            if time.time() - left.stat().st_mtime > _ABANDONED:
                shutil.rmtree(left, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=self._folder, prefix="making-") as name:
            made, whole = Path(name) / "made.db", Path(name) / "whole.db"
            os.environ.pop(_OLD_URL, None)
            os.environ[_URL] = f"sqlite+aiosqlite:///{made}"
            _refresh_settings()
            asyncio.run(_migrate())
            with sqlite3.connect(made) as database:
                database.execute("VACUUM INTO ?", [str(whole)])
            content = whole.read_bytes()
            with whole.open("rb") as file:
                os.fsync(file.fileno())
            whole.replace(self._folder / f"{self._prefix}{_digest(content)}.db")
        templates = sorted(self._folder.glob("*.db"), key=lambda file: file.stat().st_mtime)
        for old in templates[:-_MOST]:
            old.unlink(missing_ok=True)


async def _migrate() -> None:
    from prefect.plugins import load_prefect_collections  # noqa: PLC0415 - in the server's program only
    from prefect.server.database import provide_database_interface  # noqa: PLC0415 - as above
    from prefect.server.models.block_registration import run_block_auto_registration  # noqa: PLC0415 - as above

    load_prefect_collections()
    database = provide_database_interface()
    await database.create_db()
    session = await database.session()
    async with session:
        await run_block_auto_registration(session=session)
    await (await database.engine()).dispose()


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:32]


def _refresh_settings() -> None:
    from prefect.context import refresh_global_settings_context  # noqa: PLC0415 - in the server's program only

    refresh_global_settings_context()
