"""Static pages: one file each, with nothing from elsewhere."""

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """A page and the policy that lets a browser run its own scripts and no others.

    Attributes:
      content: HTML.
      policy: the header Content-Security-Policy.
    """

    content: bytes
    policy: str

    @classmethod
    def read(cls, path: Path) -> "Page":
        """Reads a file of HTML, whose scripts are inline and without attributes such as onclick."""
        content = path.read_bytes()
        digests = [base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(content)]
        scripts = " ".join(f"'sha256-{digest}'" for digest in digests) or "'none'"
        return cls(
            content,
            f"default-src 'none'; script-src {scripts}; style-src 'unsafe-inline'; img-src 'self' data:; "
            "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
        )

    async def answer(self) -> Response:
        """The response."""
        headers = {"content-security-policy": self.policy, "cache-control": "no-cache"}
        return Response(self.content, media_type="text/html", headers=headers)
