"""`.nasflowignore` files, and the names that they are asked about."""

from pathlib import Path

from nasflow.errors import ServiceError
from nasflow.training_service.ship.ignore_rules import FILE, IgnoreRules
from tests.fuzz.target import Target

_NAMES = (
    "a",
    "a" * 255,
    "a/" * 200 + "b",
    "ab" * 120,
    f"{'a' * 60}/" * 30 + "c",
    "",
    "é\udce9\n",
    "]",
    "[z-a]",
    "!",
    "\\",
)
_SEEDS = (
    b"*\n!*/\n!*.py\n__pycache__/\n/flows/\n",
    b"# data\ndata/\n*.ckpt\n!pretrained.ckpt\n\\#x\n\\!x\na\\ b\n",
    b"/a/**/b\n**/c\nd/**\n[ab]?[!c-e][]x]*\n",
    b"*a*a*a*a*a*a*a*a*b\n",
)
_TOKENS = (
    *(
        b"*",
        b"**",
        b"**/",
        b"/**/",
        b"/",
        b"?",
        b"[",
        b"]",
        b"[z-a]",
        b"[!",
        b"[^]",
        b"[[:alpha:]]",
        b"\\",
        b"!",
        b"#",
        b"\n",
    ),
    *(
        b"*a",
        b"a*",
        b"[ab]*",
        b"?*",
        b"(",
        b"(?:",
        b"{9999}",
        b"|",
        b"$",
        b"+",
        b"\xff",
        b"\0",
        b" ",
        b"\r",
        b"\xe2\x80\xa8",
    ),
)


def _read(data: bytes, folder: Path) -> int:
    (folder / FILE).write_bytes(data)
    rules = IgnoreRules.read(folder / FILE, "")
    own = [line.replace("*", "aaaa") for line in data.decode(errors="replace").splitlines()[:20]]
    for name in (*_NAMES, *own):
        for is_folder in (False, True):
            rules.left_out(name, is_folder)
    return 1


TARGET = Target("ignore file", _SEEDS, _read, (ServiceError,), _TOKENS)
