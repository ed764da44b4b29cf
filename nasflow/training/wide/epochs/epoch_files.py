"""The epochs of ranks as files of their trial's folder: services carry these to and from machines, but no folders."""

import errno
import logging
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from nasflow.job.disk_full import is_full
from nasflow.resumable.multi_node import MANIFEST, epoch_folder, epochs_in, names_in

logger = logging.getLogger(__name__)

_NAME = re.compile(r"epoch-(\d{4,})\.ranks\.(\d+)\.(\d+)", re.ASCII)
_NO_LINKS = frozenset({errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class _Name(NamedTuple):
    """The name of a file: its epoch, its job's generation, and its place among the epoch's files; 0 is the manifest."""

    epoch: int
    generation: int
    place: int

    def file(self) -> str:
        return f"epoch-{self.epoch:04d}.ranks.{self.generation}.{self.place}"


def ranks_folder(trial: Path, generation: int) -> Path:
    """Return where the ranks of a job save, by the folder of their trial."""
    return trial / "ranks" / str(generation)


def show(trial: Path, generation: int) -> None:
    """Let the epochs that ranks of a generation have saved be files in their trial's folder, by hard links.

    Those of epochs that have been dropped are removed, and those of earlier generations. Where there are no hard links,
    nothing is shown: no service carries files from there, because that takes them, too.

    Args:
        trial: the trial's folder.
    """
    folder, shown = ranks_folder(trial, generation), set[_Name]()
    for epoch in epochs_in(folder):
        of_epoch = epoch_folder(folder, epoch)
        try:
            # the manifest is the last, so that what it names is there
            for place, name in [*enumerate(names_in(of_epoch / MANIFEST), 1), (0, MANIFEST)]:
                shown.add(target := _Name(epoch, generation, place))
                _link(of_epoch / name, trial / target.file())
        except (FileNotFoundError, ValueError) as error:
            logger.warning("what ranks have saved of epoch %d of %s is damaged: %s", epoch, trial.name, error)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            logger.info("epochs can't be shown in %s: %s", trial, error)
            return
    for old in [name for name in _shown(trial) if name.generation <= generation and name not in shown]:
        (trial / old.file()).unlink(missing_ok=True)


def bring(trial: Path) -> None:
    """Put the epochs that are files in a trial's folder where ranks load them.

    What ranks have saved there stays if it is the same. Another machine may have trained the same epoch again since.
    """
    for name in [name for name in _shown(trial) if name.place == 0]:
        target = epoch_folder(ranks_folder(trial, name.generation), name.epoch)
        try:
            if _is_same(target / MANIFEST, trial / name.file()):
                continue
            found = names_in(trial / name.file())
            _gather(
                target,
                {each: trial / name._replace(place=k).file() for k, each in enumerate(found, 1)}
                | {MANIFEST: trial / name.file()},
            )
        except (OSError, ValueError) as error:  # the host was lost that sent it, or is not to be trusted
            if is_full(error):
                raise
            logger.warning("what ranks have saved of epoch %d of %s is not complete: %s", name.epoch, trial.name, error)


def remove(trial: Path) -> None:
    """Remove all that ranks have saved of a trial that has ended: its own checkpoint has the weights."""
    for name in _shown(trial):
        (trial / name.file()).unlink(missing_ok=True)
    shutil.rmtree(trial / "ranks", ignore_errors=True)


def _shown(trial: Path) -> Iterator[_Name]:
    found = [match for match in map(_NAME.fullmatch, os.listdir(trial)) if match]  # noqa: PTH208  # names, not paths
    return (_Name(*map(int, match.groups())) for match in found)


def _is_same(manifest: Path, other: Path) -> bool:
    return manifest.exists() and manifest.read_bytes() == other.read_bytes()


def _gather(folder: Path, files: dict[str, Path]) -> None:
    """Make a folder of links to files, by their names in it, in place of another. It appears when it is whole."""
    aside = folder.with_name(f".aside-{secrets.token_hex(8)}")
    aside.mkdir(parents=True)
    try:
        for name, file in files.items():
            if Path(name).name != name:
                raise ValueError(f"it names a file {name!r:.100}")
            os.link(file, aside / name)
        shutil.rmtree(folder, ignore_errors=True)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside)
        raise


def _link(file: Path, target: Path) -> None:
    """Make a hard link in place of what is there."""
    if target.exists() and target.samefile(file):
        return
    aside = target.with_name(f".{target.name}.new")
    aside.unlink(missing_ok=True)
    os.link(file, aside)
    aside.replace(target)
