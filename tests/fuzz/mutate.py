"""Damage to input: to its bytes, and to trees of JSON."""

import json
import random
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from tests.fuzz.target import Target

MOST_BYTES = 2**16
_NUMBERS = (b"0", b"-1", b"1", b"255", b"65536", b"2147483648", b"-9223372036854775809", b"18446744073709551616")
_MORE_NUMBERS = (
    *_NUMBERS,
    b"1e308",
    b"1e999",
    b"-0",
    b"0.1",
    b"NaN",
    b"9" * 400,
    b"9" * 5000,
    b"0x1f",
    b"1_0",
    b"\xd9\xa3",
)
_TIMES = (1, 1, 1, 2, 10, 300, 3000)
_CODECS = ("latin-1", "utf-16", "utf-16-le", "utf-32", "utf-8-sig", "cp037", "utf-7")
_ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64 + 1, 10**400, 10**4000, 0.5, -0.5, 1e308),
    *(float("nan"), float("inf"), "", " ", "x", "x" * 1000, "\ud800", "\0", "a\nb\x1b[2J", "\u2028", "\U0010ffff"),
    *("~nobodyhere/x", "~", "../../x", "/", ".", "a/b:c", "2024-13-45", "1e-3", "{env: X}", "file://", "s3://u:p@h/x"),
    *([], {}, [[]], [1, 2], ["a", "b"], {"a": 1}, {"": 1}, {"\ud800": 1}, {"kind": "x"}, {"kind": ["x"]}),
    *({"int": [1, 2]}, {"int": ["a", "b"]}, {"int": [2, 1]}, {"float": [0, 1], "log": True}, {"float": [1]}),
    *({"pick": []}, {"pick": [1, 1]}, {"pick": [[1]]}, {"pick": [None, "a", 0.5]}, {"$tensor": ["0", 0, [1]]}),
    *([0] * 2000, {f"key{n}": n for n in range(300)}),
)


def mutated(rng: random.Random, target: Target) -> bytes:
    """Return one of a target's seeds with none to many changes."""
    data = rng.choice(target.seeds)
    for _ in range(rng.choice((0, 1, 1, 1, 2, 3, 5, 9))):
        if target.reshape is not None and rng.random() < 0.5:
            with suppress(RecursionError):  # it is deep enough
                data = target.reshape(rng, data)
        else:
            data = rng.choice(_CHANGES)(rng, data, target)
        data = data[:MOST_BYTES]
    return data


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    start = rng.randint(0, len(data))
    return start, min(len(data), start + rng.choice((1, 1, 2, 4, 16, 64, 512, 4096)))


def _flip(rng: random.Random, data: bytes, _target: Target) -> bytes:
    if not data:
        return b"\0"
    place = rng.randrange(len(data))
    return data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def _noise(rng: random.Random, data: bytes, _target: Target) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + rng.randbytes(end - start) + data[end if rng.random() < 0.5 else start :]


def _cut(rng: random.Random, data: bytes, _target: Target) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:] if rng.random() < 0.8 else data[:start]


def _repeat(rng: random.Random, data: bytes, _target: Target) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice(_TIMES) + data[end:]


def _token(rng: random.Random, data: bytes, target: Target) -> bytes:
    start, end = _span(rng, data)
    token = rng.choice(target.tokens or (b"\0",)) * rng.choice(_TIMES)
    return data[:start] + token + data[end if rng.random() < 0.3 else start :]


def _splice(rng: random.Random, data: bytes, target: Target) -> bytes:
    other = rng.choice(target.seeds)
    (start, end), (first, last) = _span(rng, data), _span(rng, other)
    return data[:start] + other[first:last] + data[end:]


def _number(rng: random.Random, data: bytes, _target: Target) -> bytes:
    numbers = list(re.finditer(rb"-?\d+(\.\d+)?", data))
    if not numbers:
        return data
    one = rng.choice(numbers)
    return data[: one.start()] + rng.choice(_MORE_NUMBERS) + data[one.end() :]


def _recode(rng: random.Random, data: bytes, _target: Target) -> bytes:
    return data.decode(errors="replace").encode(rng.choice(_CODECS), errors="replace")


_CHANGES: tuple[Callable[[random.Random, bytes, Target], bytes], ...] = (
    *(_flip, _noise, _cut, _cut, _repeat, _token, _token, _splice, _number, _recode),
)


def reshape_json(rng: random.Random, data: bytes) -> bytes:
    """Change the tree in a JSON text; text that is none stays."""
    try:
        tree = json.loads(data)
    except ValueError:
        return data
    return json.dumps(odd_tree(rng, tree)).encode()


def odd_tree(rng: random.Random, tree: Any) -> Any:
    """Return a tree with one change: a value replaced, dropped, moved, wrapped, or a key that is not known."""
    places = list(_places(tree))
    if not places:
        return rng.choice(_ODD)
    around, key = rng.choice(places)
    match rng.randrange(6):
        case 0 | 1:
            around[key] = rng.choice(_ODD)
        case 2:
            del around[key]
        case 3:
            other, place = rng.choice(places)
            around[key] = json.loads(json.dumps(other[place]))
        case 4:
            for _ in range(rng.choice((1, 1, 20, 60, 150))):
                around[key] = [around[key]] if rng.random() < 0.5 else {"a": around[key]}
        case _ if isinstance(around, dict):
            around[rng.choice((f"{key}x", key[:-1], key.upper(), "", "\ud800", "a.b"))] = around.pop(key)
    return tree


def _places(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each value of a tree as what is around it and its key there."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, item in items:
        yield tree, key
        yield from _places(item)
