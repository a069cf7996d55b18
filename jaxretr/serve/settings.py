"""The limits of the service."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The limits that the options of `jaxretr serve` set.

    Attributes:
      max_body: bytes of a request's body.
      body_seconds: seconds within which a request's body must arrive.
      max_queue: requests accepted at a time: embeddings, searches and writes together, and as many for re-ranking.
      max_queue_tokens: tokens that may wait in a queue.
      max_batch_tokens: tokens of a batch; None: chosen for the device.
      rate: requests per key, or per address without keys, such as "100/minute"; None: any number.
      allow_origins: origins whose pages may call the service (CORS); none by default, "*" for all.
      log_texts: whether logs quote queries.
      grace: seconds to finish accepted requests after a signal to stop.
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
