"""Several training sets as one: their passages and questions one set after the other, with batches, prompts and dev sets."""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh

from jaxretr.config import ContrastiveConfig, of_set
from jaxretr.data.batches import MixtureBatches, QuestionBatches
from jaxretr.data.corpus import Corpus
from jaxretr.data.duplicate_groups import duplicate_groups
from jaxretr.data.prompts import Prompt, RowPrompts
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.models.embed import JointConfig, prompt_of
from jaxretr.runtime.errors import UsageError
from jaxretr.runtime.notes import note
from jaxretr.runtime.parallel.mesh import put_rows
from jaxretr.training.runs.example_draws import Draws
from jaxretr.training.runs.run_examples import RunExamples, read_run_examples
from jaxretr.training.runs.run_inputs import digest
from jaxretr.training.runs.suites import shared_means
from jaxretr.training.runs.whole_corpus import CorpusPart, DevSet, Judged, Model, WholeCorpus
from jaxretr.training.state import TrainState

log = logging.getLogger(__name__)


class Member(NamedTuple):
    """One set of a mixture, and the places of what it brings among that of all sets."""

    name: str
    config: ContrastiveConfig
    """The run's config with this set alone."""
    examples: RunExamples
    number: int
    """Its place among the sets."""
    first_question: int
    first_row: int
    """Row of the first passage of its corpus; the corpora of all sets come first."""
    first_extra: int
    """Row of the first passage that its files have besides the corpus."""

    def rows(self, own: np.ndarray) -> np.ndarray:
        """Return the rows among all passages of some rows of its own, integers of any shape; NO_PASSAGE stays."""
        corpus = self.examples.corpus_rows
        moved = np.where(own < corpus, own + self.first_row, own - corpus + self.first_extra)
        return np.where(own == NO_PASSAGE, NO_PASSAGE, moved).astype(np.int32)


class Mixture:
    """The sets of a run; one, called "", of a run that trains on one.

    Attributes:
      examples: what a run needs of all of them; the dev examples are a single set's.
      batches: examples of each step.
    """

    def __init__(self, config: ContrastiveConfig):
        """Read the sets.

        Raises:
          UserError: as `read_run_examples`.
          UsageError: dev questions without a corpus, and as there; of a mixture it names the set.
        """
        read = dict[str, RunExamples]()
        for name, member in (members := config.members).items():
            with of_set(name):
                read[name] = read_run_examples(member)
                # What a single set holds out also gives the validation loss, which needs no corpus.
                searched = member.data.has_dev_questions if name else member.data.dev_questions is not None
                if searched and not read[name].corpus_rows:
                    asked = "data.dev_questions" if member.data.dev_questions is not None else "data.held_out"
                    raise UsageError(f"{asked} is searched for in a corpus; name it with data.corpus=FILE")
        self.members = list[Member]()
        question, row, extra = 0, 0, sum(each.corpus_rows for each in read.values())
        for number, (name, each) in enumerate(read.items()):
            self.members.append(Member(name, members[name], each, number, question, row, extra))
            question += len(each.texts)
            row += each.corpus_rows
            extra += len(each.passages) - each.corpus_rows
        data, train = config.data, config.train
        if not data.mixture:
            self.examples = self.members[0].examples
            self.batches = QuestionBatches(len(self.examples.texts), train.batch_size, train.seed)
            return
        self.examples = self._joined(mixed=data.mixed_batches)
        sizes = [len(each.texts) for each in read.values()]
        shares = [
            size ** (1 / data.mixture_temperature) if one.weight is None else one.weight
            for size, one in zip(sizes, data.mixture, strict=True)
        ]
        self.batches = MixtureBatches(sizes, shares, train.batch_size, train.seed, mixed=data.mixed_batches)
        for each, share in zip(self.members, shares, strict=True):
            note(
                log.info,
                "set %s: %d questions, %d passages (%d of them searched), %.3g of the %s",
                each.name,
                len(each.examples.texts),
                len(each.examples.passages),
                each.examples.corpus_rows,
                share / sum(shares),
                "questions" if data.mixed_batches else "batches",
            )

    def _joined(self, *, mixed: bool) -> RunExamples:
        corpora, extras = list[Corpus](), list[Corpus]()
        for name, each in ((each.name, each.examples) for each in self.members):
            whole = each.passages
            named = Corpus([f"{name}/{id}" for id in whole.ids], whole.titles, whole.texts)
            corpora.append(named.first(each.corpus_rows))
            extras.append(Corpus(*(column[each.corpus_rows :] for column in (named.ids, named.titles, named.texts))))
        columns = zip(*((part.ids, part.titles, part.texts) for part in corpora + extras), strict=True)
        passages = Corpus(*([text for part in column for text in part] for column in columns))
        contents = duplicate_groups(passages)
        draws = _MixtureDraws(self, contents, mixed=mixed)
        texts = _Chained([each.examples.texts for each in self.members])
        return RunExamples(texts, draws, None, passages, sum(map(len, corpora)), contents)

    @property
    def mixes(self) -> bool:
        """Whether there are several sets, or one with a name."""
        return self.members[0].name != ""

    def sets_of(self, questions: np.ndarray) -> np.ndarray:
        """Return the number of the set of each question, int32."""
        firsts = [each.first_question for each in self.members]
        return (np.searchsorted(firsts, questions, side="right") - 1).astype(np.int32)

    # ---- prompts -----------------------------------------------------------------------------------------------------

    def prompts(self, model: Model) -> tuple[Prompt, Prompt]:
        """Return the prompts of the questions and of the passages, by their numbers and rows."""
        queries, corpora, extras = list[tuple[str, int]](), list[tuple[str, int]](), list[tuple[str, int]]()
        for member in self.members:
            (query, passage), read = _prompts_of(member, model), member.examples
            queries.append((query, len(read.texts)))
            corpora.append((passage, read.corpus_rows))
            extras.append((passage, len(read.passages) - read.corpus_rows))
        return _shared(queries), _shared(corpora + extras)

    # ---- evaluation --------------------------------------------------------------------------------------------------

    def row_sets(self, mesh: Mesh, rows: int) -> jax.Array:
        """Return the number of the set whose corpus each of N rows is in, int32 [N] on the devices; -1: in none."""
        sets = np.repeat(
            np.array([*range(len(self.members)), -1], np.int32),
            [*(each.examples.corpus_rows for each in self.members), rows - self.examples.corpus_rows],
        )
        return put_rows(mesh, sets, (rows,), np.int32)

    def dev_sets(
        self, make: Callable[[Judged | None, Corpus, CorpusPart], DevSet], row_sets: jax.Array, model: Model
    ) -> "DevSets":
        """Return the sets' dev questions.

        Args:
          make: function that returns those of a part of the corpus.
          row_sets: as `row_sets` returns them.
          model: model with the prompts.
        """
        found = {}
        for each in self.members:
            judged, corpus = each.examples.evaluated_on(each.config.data, each.examples.corpus_rows)
            if judged is not None:
                part = CorpusPart(each.first_row, row_sets == each.number, _prompts_of(each, model)[0])
                found[each.name] = make(judged, corpus, part)
        return DevSets(found)


class DevSets(DevSet):
    """Dev questions of several sets, each searched for in the corpus of its set.

    Metrics are called NAME:METRIC, and METRIC is the mean over the sets that have any.
    """

    def __init__(self, sets: Mapping[str, DevSet]):
        self.sets = sets
        self.questions = [question for each in sets.values() for question in each.questions]

    def digest(self) -> str:
        return digest({name: each.digest() for name, each in self.sets.items()})

    def metrics(self, train: TrainState, whole: WholeCorpus, live: Any = None) -> dict[str, float]:
        """See `DevSet`; the corpora are encoded once."""
        if not self.sets:
            return {}
        fresh = whole.searchable(train, live)
        found = {name: each.metrics(train, whole, fresh) for name, each in self.sets.items()}
        of_sets = {f"{name}:{metric}": value for name, metrics in found.items() for metric, value in metrics.items()}
        return {**of_sets, **shared_means([*found.values()])}


# ---- prompts, texts, places ------------------------------------------------------------------------------------------


def _prompts_of(member: Member, model: Model) -> tuple[str, str]:
    """Return the prompts of a set's questions and passages."""
    config, given = model.config, member.config.encoder
    base = config.base if isinstance(config, JointConfig) else config
    query, passage = (prompt_of(base, prompt) for prompt in (given.query_prompt, given.passage_prompt))
    return config.query_prompt if query is None else query, config.passage_prompt if passage is None else passage


def _shared(blocks: Sequence[tuple[str, int]]) -> Prompt:
    """Return one prompt where all rows have the same."""
    first = blocks[0][0]
    return first if all(prompt == first for prompt, _ in blocks) else RowPrompts(blocks)


class _Chained(Sequence[str]):
    """Texts of several sequences one after the other, which may be on disk."""

    def __init__(self, parts: Sequence[Sequence[str]]):
        self.parts = parts
        self._firsts = np.cumsum([0, *map(len, parts)])

    def __len__(self) -> int:
        return int(self._firsts[-1])

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice):
            start, stop, step = place.indices(len(self))
            if step != 1:
                return [self[each] for each in range(start, stop, step)]
            inside = zip(self.parts, self._firsts.tolist(), strict=False)
            return [text for part, first in inside for text in part[max(0, start - first) : max(0, stop - first)]]
        if not -len(self) <= place < len(self):
            raise IndexError(place)
        place %= len(self)
        number = int(np.searchsorted(self._firsts, place, side="right")) - 1
        return self.parts[number][place - int(self._firsts[number])]


# ---- draws -----------------------------------------------------------------------------------------------------------


class _MixtureDraws(Draws):
    """Draws of several sets' passages, as rows among those of all sets; see `Draws`.

    Batches of one set have its own places, mixed batches those of all sets.
    """

    def __init__(self, mixture: Mixture, contents: np.ndarray, *, mixed: bool):
        self.members, self.contents, self.mixed, self._sets_of = mixture.members, contents, mixed, mixture.sets_of
        self.positives = max(each.examples.draws.positives for each in self.members)
        self.content = [each.examples.draws.content for each in self.members]

    @property
    def places(self) -> int:
        return self.positives + max(each.examples.draws.places - each.examples.draws.positives for each in self.members)

    @cached_property
    def known_width(self) -> int:
        """The most contents that are no negatives of a question: one width, and one program, for all sets."""
        nobody = np.zeros(1, np.int64)
        return max(each.examples.draws.known(nobody).shape[1] for each in self.members)

    def rows(self, chosen: np.ndarray, step: int) -> tuple[np.ndarray, np.ndarray | None]:
        parts = [(mine, member, *member.examples.draws.rows(own, step)) for mine, member, own in self._divided(chosen)]
        if not self.mixed:
            [(_, member, rows, teacher)] = parts
            return member.rows(rows), teacher
        drawn = np.full((len(chosen), self.places), NO_PASSAGE, np.int32)
        scores = np.full((len(chosen), self.places), np.nan, np.float32)
        for mine, member, rows, teacher in parts:
            # Positives in their places and negatives in theirs.
            positives = member.examples.draws.positives
            places = np.r_[0:positives, self.positives : self.positives + rows.shape[1] - positives]
            drawn[np.ix_(mine, places)] = member.rows(rows)
            if teacher is not None:
                scores[np.ix_(mine, places)] = teacher
        return drawn, scores if any(teacher is not None for *_, teacher in parts) else None

    def known(self, chosen: np.ndarray) -> np.ndarray:
        known = np.full((len(chosen), self.known_width), NO_PASSAGE, np.int32)
        for mine, member, own in self._divided(chosen):
            rows = member.rows(member.examples.draws.known(own))
            known[mine, : rows.shape[1]] = np.where(rows == NO_PASSAGE, NO_PASSAGE, self.contents[rows])
        return known

    def _divided(self, chosen: np.ndarray) -> list[tuple[np.ndarray, Member, np.ndarray]]:
        """Return the places of each set's questions among the chosen ones, the set, and their numbers in it."""
        sets = self._sets_of(chosen)
        found = [np.flatnonzero(sets == number) for number in range(len(self.members))]
        pairs = zip(found, self.members, strict=True)
        return [(mine, member, chosen[mine] - member.first_question) for mine, member in pairs if len(mine)]
