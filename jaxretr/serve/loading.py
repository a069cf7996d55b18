"""Loads the model, the indexes and the re-ranker that `jaxretr serve` is given."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from jaxretr.config import EngineName
from jaxretr.embeddings.encoding import Encoder
from jaxretr.indexes.index import Index
from jaxretr.indexes.live.database import is_live
from jaxretr.indexes.live.kind import check_dense
from jaxretr.indexes.opening import check_name, named, open_index
from jaxretr.models.any_scorer import Scorer
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.serve.service import Service
from jaxretr.serve.settings import Settings


@dataclass(frozen=True)
class Parts:
    """The model, indexes and limits that a service is made of.

    Attributes:
      encoder: a function that loads the model.
      indexes: a live index (made if there is none), an embedding store, an exact or certified index, pgvector:DSN or
        lance:DIR, as NAME=PLACE or a place alone.
      corpora: titles and texts of a store's, exact or certified index's passages. NAME=FILE, or a file alone where there
        is one index.
      data: where indexes are made that requests ask for.
      reranker: a function that loads the re-ranker; None: there is none.
      settings: the limits.
      engine: whose codes propose candidates in large live indexes; by default scann; faiss where ScaNN does not work.
    """

    encoder: Callable[[], Encoder]
    indexes: Sequence[str] = ()
    corpora: Sequence[str] = ()
    data: Path | None = None
    reranker: Callable[[], Scorer] | None = None
    settings: Settings = field(default_factory=Settings)
    engine: EngineName | None = None

    def __post_init__(self) -> None:
        """Raise UsageError for names that occur twice, or a corpus without an index."""
        self._named()

    def _named(self) -> dict[str, tuple[str, str | None]]:
        """The place and the corpus of each index that is given, by its name."""
        places: dict[str, tuple[str, str | None]] = {}
        for text in self.indexes:
            name, place = named(text)
            if name in places:
                raise UsageError(f"indexes={text}: there are two indexes {name!r}; give NAME={place}")
            places[name] = place, None
        for text in self.corpora:
            name, equals, file = text.partition("=")
            if not equals or name not in places:
                if len(places) != 1 or (equals and not Path(text).exists()):
                    listing = ", ".join(places) or "none"
                    raise UsageError(f"corpora={text}: give NAME=FILE with the name of an index ({listing})")
                name, file = next(iter(places)), text
            if places[name][1] is not None:
                raise UsageError(f"corpora={text}: the index {name!r} has one already; give one each")
            places[name] = places[name][0], file
        return places

    def load(self) -> Service:
        """Load all parts; return a service that is not started."""
        encoder = self.encoder()
        if self.data is not None:
            check_dense(f"data={self.data}", encoder)
        indexes: dict[str, Index] = {}
        try:
            named_places = self._named()
            for name, (place, corpus) in named_places.items():
                indexes[name] = open_index(place, encoder, corpus, name=name, engine=self.engine)
            opened = {Path(place).expanduser().resolve() for place, _ in named_places.values()}
            for folder in _made_before(self.data):
                if folder.resolve() in opened:
                    continue
                if folder.name in indexes:
                    raise UserError(f"{folder}: there is an index {folder.name} as well; give that another name")
                indexes[folder.name] = open_index(str(folder), encoder, name=folder.name, engine=self.engine)
            reranker = None if self.reranker is None else self.reranker()
            return Service(
                encoder,
                indexes,
                reranker=reranker,
                settings=self.settings,
                data=self.data,
                make=lambda folder, name: open_index(str(folder), encoder, name=name, engine=self.engine),
            )
        except BaseException:
            for index in indexes.values():
                index.close()
            raise


def _made_before(data: Path | None) -> list[Path]:
    """The live folders that earlier requests created."""
    if data is None:
        return []
    try:
        data.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"data={data}: {error.strerror}; give a folder that can be written") from None
    folders = [folder for folder in sorted(data.iterdir()) if is_live(folder)]
    for folder in folders:
        check_name(folder.name)
    return folders
