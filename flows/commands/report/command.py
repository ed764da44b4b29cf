"""`nasflow report`: writes a study as one HTML file."""

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
        out.write_bytes(page)
    except OSError as error:
        raise UserError(f"--html: {out} can't be written: {error.strerror}") from None
    console().print(f"{out}: {len(page) / 1e6:.1f} MB, opens in any browser, needs no network", soft_wrap=True)
