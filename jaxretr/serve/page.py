"""Static pages, one file each, and the headers sent with them."""

import base64
import functools
import hashlib
import re
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

PAGE = Path(__file__).with_name("page.html")

_INLINE = re.compile(rb"<(script|style)>(.*?)</\1>", re.DOTALL)


@functools.cache
def read_page(path: Path) -> tuple[bytes, dict[str, str]]:
    """Read an HTML file once; its scripts and styles are inline, and not in attributes such as onclick and style.

    Returns:
      The bytes to send, UTF-8, and the headers to send with them: the Content-Security-Policy allows the page's own
      scripts and styles by their hashes and no others, and requests to nothing but the service; the ETag changes with
      the content, and browsers revalidate every time.
    """
    content = path.read_bytes()
    hashes: dict[bytes, list[str]] = {b"script": [], b"style": []}
    for kind, text in _INLINE.findall(content):
        hashes[kind].append(f"'sha256-{base64.b64encode(hashlib.sha256(text).digest()).decode()}'")
    policy = [
        "default-src 'none'",
        "script-src " + (" ".join(hashes[b"script"]) or "'none'"),
        "style-src " + (" ".join(hashes[b"style"]) or "'none'"),
        "connect-src 'self'",
        "img-src data:",  # the icon
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # innerHTML and its like throw
        "trusted-types 'none'",
    ]
    return content, {
        "content-type": "text/html; charset=utf-8",
        "content-security-policy": "; ".join(policy),
        "etag": f'"{hashlib.sha256(content).hexdigest()[:32]}"',
        "cache-control": "no-cache",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-opener-policy": "same-origin",
    }


def answer_page(path: Path, request: Request) -> Response:
    """The response to a request for a page: 304 if the browser has it already."""
    content, headers = read_page(path)
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if headers["etag"] in known:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers)
