"""The URL of a study store: which databases there are, and how it is shown."""

from pathlib import Path

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from nasflow.config.secret.secrets import SecretLocation, reveal
from nasflow.errors import StudyError
from nasflow.system.present_folder import folder_outside

StoreUrl = str | SecretLocation
"""The URL of a store, or where a config says that it is."""


def parse_url(url: StoreUrl) -> URL:
    """Return the store's URL with its driver.

    Raises:
        ConfigError: the secret with the URL can't be read.
        StudyError: it can't hold studies.
    """
    example = "use sqlite:///nasflow.db or postgresql://user@host/database, with PGPASSWORD or ~/.pgpass"
    text = url if isinstance(url, str) else reveal(url, "store")
    try:
        text.encode()  # without lone surrogates
        parsed = make_url(text)
    except (ArgumentError, ValueError):
        raise StudyError(f"store: not a database URL; {example}") from None
    backend = parsed.drivername.split("+")[0]
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:" or parsed.database.startswith("file:"):
            raise StudyError(f"store: a study needs a file or a server to last; {example}")
        return parsed.set(drivername="sqlite", database=str(folder_outside() / parsed.database))
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise StudyError(f"store: {backend} is not supported; {example}")


def sqlite_file(url: StoreUrl) -> Path | None:
    """Return the file of a SQLite store; None of another. Raises as `parse_url`."""
    parsed = parse_url(url)
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def shown_url(url: URL) -> str:
    """Return the URL without passwords, for messages."""
    return url.set(query={}).render_as_string(hide_password=True)
