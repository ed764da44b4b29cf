"""URLs of stores and of storage for checkpoints."""

import random
from contextlib import suppress
from pathlib import Path

from nasflow.checkpoint.url_store import UrlStore
from nasflow.config.search import parse_config
from nasflow.errors import UserError
from nasflow.study.database.store import parse_url, shown_url
from tests.fuzz.target import Target

_SEEDS = (
    b"sqlite:///nasflow.db",
    b"postgresql://user:password@host:5432/database?sslmode=require",
    b"postgresql+psycopg://[::1]/db",
    b"s3://bucket/folder",
    b"file:///folder/of/checkpoints",
    b"memory://folder",
    b"simplecache::file:///folder",
)
_TOKENS = (
    *(
        b":",
        b"/",
        b"//",
        b"@",
        b"?",
        b"#",
        b"[",
        b"]",
        b"%",
        b"%zz",
        b"%00",
        b"%ff",
        b"::",
        b"\\",
        b" ",
        b"\n",
        b"\t",
        b"\0",
        b";",
    ),
    *(
        b"\xed\xa0\x80",
        b"\xff",
        b"\xe2\x84\xab",
        b":99999",
        b":-1",
        b"://",
        b"..",
        b"~nobodyhere",
        b"?password=x",
        b"&a=b",
        b"{",
        b"$",
    ),
    *(b"file://", b"memory://", b"sqlite://", b"mysql://", b"github://", b"zip://", b"dir::"),
)


def _reshape(rng: random.Random, data: bytes) -> bytes:
    """Put the parts of two URLs together."""
    scheme, _, rest = data.partition(b"://")
    other, _, more = rng.choice(_SEEDS).partition(b"://")
    return rng.choice((scheme, other)) + b"://" + rng.choice((rest, more, rest + more, more.replace(b"/", b"//")))


def _read(data: bytes, folder: Path) -> int:
    try:
        text = data.decode(errors="surrogatepass")
    except UnicodeDecodeError:
        text = data.decode(errors="surrogateescape")
    target = {"target": "nasflow.evaluator.data:Digits"}
    values = {"name": "n", "space": {"target": "a:b"}, "evaluator": {"kind": "classification", "data": target}}
    taken, refusal = 0, None
    for section in ({"store": text}, {"checkpoint": {"url": text}}):
        try:
            parse_config({**values, **section})
            taken += 1
        except UserError as error:
            refusal = error
    try:
        shown_url(parse_url(text))
        taken += 1
    except UserError as error:
        refusal = error
    if text.startswith(("memory://", f"file://{folder}")):
        with suppress(ValueError, ImportError, OSError):  # a storage may raise anything, which its caller reports
            UrlStore(f"{text.rstrip('/')}/study/00003").epochs()
    if not taken and refusal is not None:
        raise refusal
    return taken


TARGET = Target("URL", _SEEDS, _read, (UserError,), _TOKENS, _reshape)
