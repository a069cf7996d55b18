"""The limits of the service."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What `jaxretr serve` sets by its options.

    Attributes:
      max_body: bytes of a request's body.
      body_seconds: until a request's body must have arrived.
      max_queue: requests that are accepted at a time, of embeddings, searches and writes together, and of re-ranking.
      max_queue_tokens: tokens that wait for the encoder.
      max_batch_tokens: tokens of a batch; None: what suits the device.
      rate: requests of a key, or without keys of an address, such as "100/minute"; None: any number.
      allow_origins: of browsers' pages that may call the service (CORS); none by default, "*" for all.
      log_texts: whether logs quote queries.
      grace: seconds in which accepted requests are finished after a signal to stop.
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
