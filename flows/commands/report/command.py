"""`nasflow report`: writes a study as one HTML file."""

import contextlib
from pathlib import Path

from nasflow.errors import UserError
from nasflow.report.html.page import study_page
from nasflow.study.study import Study

from ..console import console
from .facts import study_facts


def write_report(study: Study, out: Path) -> None:
    """Write the report of a study; an earlier one at `out` is replaced.

    Raises:
        UserError: `out` can't be written.
    """
    page = study_page(study_facts(study)).encode()
    try:
        _replace(out, page)
    except OSError as error:
        raise UserError(f"--html: {out} can't be written: {error.strerror}") from None
    console().print(f"{out}: {len(page) / 1e6:.1f} MB, opens in any browser, needs no network", soft_wrap=True)


def _replace(file: Path, content: bytes) -> None:
    """Write a file beside the earlier one, which stays until the new one is complete."""
    if file.exists() and not file.is_file():  # a pipe, or a device
        file.write_bytes(content)
        return
    file = file.resolve()  # a link stays one
    aside = file.with_name(f".{file.name}.new")
    try:
        aside.write_bytes(content)
        aside.replace(file)
    except OSError:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
