"""Text that others wrote, such as labels, annotations and messages, as terminals and logs may show it.

A control character (C0, DEL, C1), a line separator or a mark of writing direction becomes U+FFFD and its four hex
digits: ESC is `�001b`. It is not left out, because a name without it could equal another's name.
"""

import json
import re

_UNSAFE = "\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_ANY_UNSAFE, _UNSAFE_OR_MARK = re.compile(f"[{_UNSAFE}]"), re.compile(f"[{_UNSAFE}\ufffd]")
_BREAKS = str.maketrans("\t\n\r", "   ")
# In JSON. A backslash that is escaped itself is matched, so that what follows it is no escape.
_ESCAPED = re.compile(rb"\\(?:\\|[nrtbf]|u(?:00(?:[0189][0-9a-fA-F]|7[fF])|061[cC]|20(?:0[eEfF]|2[89a-eA-E]|6[6-9])))")
_NOT_ASCII = re.compile(
    rb"\x7f|\xc2[\x80-\x9f]|\xd8\x9c|\xe2\x80[\x8e\x8f\xa8-\xae]|\xe2\x81[\xa6-\xa9]"  # _UNSAFE from DEL on, in UTF-8
)


def plain(text: str) -> str:
    """In one line: a tab or the end of a line becomes a space. Plain text stays as it is."""
    return text if text.isprintable() else _ANY_UNSAFE.sub(_written_out, text.translate(_BREAKS))


def plain_key(text: str) -> str:
    """For values that are compared or asked for again: `original` gives the text back, so no two become equal."""
    return text if text.isascii() and text.isprintable() else _UNSAFE_OR_MARK.sub(_written_out, text)


def original(key: str) -> str:
    return re.sub("\ufffd([0-9a-f]{4})", lambda found: chr(int(found[1], 16)), key)


def quoted(text: str) -> str:
    """As PromQL and JSON read it, with an escape for each unsafe character."""
    return _ANY_UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False))


def plain_json(data: bytes) -> bytes:
    """JSON text with `plain` of all its texts. It runs for whole lists of Pods, so it decodes none of them."""
    data = _ESCAPED.sub(_plain_escape, data)
    if data.isascii() and b"\x7f" not in data:
        return data
    return _NOT_ASCII.sub(lambda found: plain(found[0].decode()).encode(), data)


def _plain_escape(found: re.Match[bytes]) -> bytes:
    return found[0] if found[0] == rb"\\" else plain(json.loads(b'"%b"' % found[0])).encode()


def _written_out(found: re.Match[str]) -> str:
    return f"\ufffd{ord(found[0]):04x}"
