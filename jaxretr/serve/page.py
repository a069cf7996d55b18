"""The search page, with the headers that it is sent with."""

import base64
import functools
import hashlib
import re
from pathlib import Path

PAGE = Path(__file__).with_name("page.html")

_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


@functools.cache
def page() -> tuple[bytes, dict[str, str]]:
    """Reads page.html once.

    Returns:
      The bytes to send, UTF-8, and the headers to send with them: the Content-Security-Policy allows the page's own inline
      scripts and style by their hashes and no others, and requests to nothing but the service; the ETag changes with the
      content, and the browser asks every time.
    """
    content = PAGE.read_bytes()
    hashes: dict[bytes, list[str]] = {b"script": [], b"style": []}
    for kind, text in _INLINE.findall(content):
        hashes[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'")
    policy = [
        "default-src 'none'",
        f"script-src {' '.join(hashes[b'script'])}",
        f"style-src {' '.join(hashes[b'style'])}",
        "connect-src 'self'",
        "img-src data:",  # the icon
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # innerHTML and its like throw
        "trusted-types 'none'",
    ]
    headers = {
        "Content-Type": "text/html; charset=utf-8",
        "Content-Security-Policy": "; ".join(policy),
        "ETag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        "Cache-Control": "no-cache",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Opener-Policy": "same-origin",
    }
    return content, headers
