"""The limits of the service."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits that the options of `jaxretr serve` set.

    Attributes:
      max_body: bytes of a request's body; 8 MiB by default.
      body_seconds: seconds within which a request's body must arrive.
      max_queue: requests accepted at a time: embeddings, searches and writes together, and as many for re-ranking.
      max_queue_tokens: tokens that may wait for the model; 262144 by default.
      max_batch_tokens: tokens of a batch; by default chosen for the device.
      rate: requests of a key, or without keys of an address, such as 100/minute; by default any number.
      allow_origins: origins whose pages may call the service, such as https://example.org (CORS); by default none, * for
        all.
      log_texts: quote queries in the log.
      grace: seconds to finish what was accepted, after a signal to stop.
    """

    max_body: int = 8 * 2**20
    body_seconds: float = 30.0
    max_queue: int = 512
    max_queue_tokens: int = 2**18
    max_batch_tokens: int | None = None
    rate: str | None = None
    allow_origins: tuple[str, ...] = ()
    log_texts: bool = False
    grace: float = 30.0
