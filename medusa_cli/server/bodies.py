"""Bodies before they are parsed: a few bytes of JSON can become a kilobyte of objects, or of complaints about them."""

from __future__ import annotations

from medusa_cli.server.errors import wrong

MOST_VALUES = 100_000
"""Of a body, without the token ids of a prompt."""


def check_body(body: bytes, most: int) -> None:
    """ApiError 400 for what is not UTF-8, or may hold more than `most` values."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise wrong("the body is not JSON in UTF-8") from error
    if b"\0" in body:  # the parser would guess another encoding, in which nothing below holds
        raise wrong("the body is not JSON in UTF-8")
    if not has_at_most(body, most):
        raise wrong(f"the body holds more than {most} values")


def has_at_most(body: bytes, most: int) -> bool:
    """Whether texts, commas and opening brackets of JSON are at most `most`: values are never more than these.

    It knows texts from the rest as a parser does, up to where that one fails.
    """
    plain = body.replace(b"\\\\", b"").replace(b'\\"', b"")
    count = (plain.count(b'"') + 1) // 2
    if count > most:
        return False  # the parts below would take too much memory
    for outside in plain.split(b'"')[::2]:
        count += outside.count(b",") + outside.count(b"[") + outside.count(b"{")
    return count <= most
