"""Seeds derived from what a thing is, never from when it runs, so that order and restarts change nothing."""

import hashlib


def derive_seed(*parts: object) -> int:
    """Return a 63-bit seed from the text of `parts`: the same in every process and version of Python."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
