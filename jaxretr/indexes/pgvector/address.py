"""A table of a database, and how messages show it: without its password."""

import re
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from jaxretr.runtime.errors import UserError, import_extra

psycopg = import_extra("psycopg", "pgvector")

PREFIX = "pgvector:"
DEFAULT_TABLE = "passages"

_URI = re.compile(r"(postgres(?:ql)?://[^?]*)(?:\?(.*))?", re.DOTALL)
_LAST_WORD = re.compile(r"(?:^|\s)table\s*=\s*(\S+)\s*$")

# Names of indexes are some letters longer, and PostgreSQL cuts names at 63 bytes.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,39}")

_FORM = "give postgresql://USER@HOST:PORT/DATABASE, or words such as 'host=... dbname=...'"


@dataclass(frozen=True)
class Address:
    """The address of a table in a PostgreSQL database.

    Attributes:
      conninfo: the address for libpq, with the password, if there is one.
      table: the table's name, in parts: (name) or (schema, name).
      shown: the address for messages, without a password.
      secrets: the texts that must not be shown.
    """

    conninfo: str = field(repr=False)
    table: tuple[str, ...]
    shown: str
    secrets: tuple[str, ...] = field(default=(), repr=False)

    @classmethod
    def parse(cls, text: str, table: str | None = None) -> "Address":
        """Read an address: a URI or libpq's keywords, with or without "pgvector:" before it.

        Args:
          text: may name the table: `?table=NAME` in a URI, `table=NAME` as the last keyword.
          table: the table's name, where the text has none; "passages" by default.

        Raises:
          UserError: it is no address, or the table's name is not of letters, digits and underscores.
        """
        text = text.removeprefix(PREFIX)
        text, named = _split_table(text)
        if named and table and named != table:
            raise UserError(f"the address names the table '{named}', but table={table}; give one of them")
        name = named or table or DEFAULT_TABLE
        parts = tuple(name.split("."))
        if len(parts) > 2 or not all(_NAME.fullmatch(part) for part in parts):
            raise UserError(
                f"{name[:80]!r} is not a valid table name here; use up to 40 letters, digits and underscores, after "
                "the schema and a dot if there is one"
            )
        if not text.startswith(("postgres://", "postgresql://")) and "=" not in text:
            raise UserError(f"this is not the address of a PostgreSQL database; {_FORM}")
        try:
            parameters: dict[str, Any] = dict(psycopg.conninfo.conninfo_to_dict(text))
        except (psycopg.Error, UnicodeError, ValueError):
            # libpq quotes what it cannot read, which may be the password.
            raise UserError(f"the address of the PostgreSQL database cannot be read; {_FORM}") from None
        secrets = tuple(str(parameters[key]) for key in ("password", "sslpassword") if parameters.get(key))
        parameters.setdefault("connect_timeout", 5)
        parameters.setdefault("tcp_user_timeout", 30_000)
        parameters.setdefault("application_name", "jaxretr")
        conninfo = psycopg.conninfo.make_conninfo(**parameters)
        return cls(conninfo, parts, _shown(parameters, ".".join(parts)), secrets)

    def clean(self, error: object) -> str:
        """An error's text in one line, without secrets."""
        text = " ".join(str(error).split())
        for secret in self.secrets:
            text = text.replace(secret, "***")
        return text[:300] or type(error).__name__


def _split_table(text: str) -> tuple[str, str | None]:
    """The address without the table's name, and that name."""
    if match := _URI.fullmatch(text):
        pairs = parse_qsl(match[2] or "", keep_blank_values=True)
        rest = [(key, value) for key, value in pairs if key != "table"]
        named = next((value for key, value in pairs if key == "table"), None)
        query = urlencode(rest, quote_via=quote)
        return match[1] + (f"?{query}" if query else ""), named
    if match := _LAST_WORD.search(text):
        return text[: match.start()], match[1]
    return text, None


def _shown(parameters: dict, table: str) -> str:
    user = f"{quote(str(parameters['user']))}@" if parameters.get("user") else ""
    host, port = str(parameters.get("host") or parameters.get("hostaddr") or ""), str(parameters.get("port") or "")
    place = "" if host.startswith("/") else host + (f":{port}" if port.strip(",") else "")
    query = f"?host={host}" if host.startswith("/") else ""
    database = quote(str(parameters.get("dbname") or ""))
    return f"postgresql://{user}{place}/{database}{query} table {table}"
