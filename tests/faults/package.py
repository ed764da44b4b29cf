"""A copy of nasflow's package, which a search runs on, and which is replaced as `pip install --upgrade` does it."""

import shutil
import time
from pathlib import Path

_ROOT = Path(__file__).parents[2]
# An editable installation would find the repository's files while the copy's are missing.
_CUSTOMIZE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if getattr(finder, "__name__", "") != "_EditableFinder"]
"""


class Package:
    """The package in a folder of its own.

    Attributes:
        version: of what is there now.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self.version = ""
        self._releases = 0
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(_CUSTOMIZE)
        self._install()

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables of the programs that use it."""
        return {"PYTHONPATH": str(self._folder)}

    def upgrade(self, seconds: float) -> None:
        """Put the same code there as another version; it is missing for so many seconds and the time of copying."""
        stash = self._folder / "~asflow"
        (self._folder / "nasflow").rename(stash)
        time.sleep(seconds)
        self._install()
        shutil.rmtree(stash)

    def _install(self) -> None:
        for info in self._folder.glob("*.dist-info"):
            shutil.rmtree(info)
        self._releases += 1
        self.version = f"0.1.{self._releases}"
        package = self._folder / "nasflow"
        for source, target in ((_ROOT / "nasflow", package), (_ROOT / "flows", package / "flows")):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(source, target, ignore=ignored, copy_function=shutil.copyfile)  # with new times
        with (package / "__init__.py").open("a") as file:
            file.write(f'\n__version__ = "{self.version}"\n')
        info = self._folder / f"nasflow-{self.version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: nasflow\nVersion: {self.version}\n")
