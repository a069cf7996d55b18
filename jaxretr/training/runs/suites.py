"""`train.suites`: whole collections that each evaluation encodes with the current weights and searches."""

import dataclasses
import logging
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jax.sharding import Mesh

from jaxretr.config import Typos
from jaxretr.data.readers import read_beir
from jaxretr.data.source import source_of
from jaxretr.data.token_store import TokenStore
from jaxretr.evaluate.suite import DataSet, find_data_sets
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.notes import note
from jaxretr.training.runs.run_inputs import digest
from jaxretr.training.runs.whole_corpus import DevSet, Judged, Model, WholeCorpus, token_store, widths_of
from jaxretr.training.state import TrainState
from jaxretr.training.steps.live_index import IndexProgram

log = logging.getLogger(__name__)

# Splits to measure on, if a collection has several: a test split only if it has no other, since the model that a split
# chose cannot be measured on it.
_SPLITS = ("dev", "validation", "val", "valid", "test")

_SHORT = {"nano-beir": "ir_datasets:nano-beir"}


class _Member(NamedTuple):
    """One collection of a suite."""

    name: str
    store: TokenStore
    whole: WholeCorpus
    dev: DevSet


class Suites:
    """The collections of a run's suites, on the devices; without any, nothing is read and nothing is measured.

    Their metrics are called SUITE:METRIC, for instance nano-beir:ndcg@10, the mean over the suite's collections; those
    of a collection of a suite with several SUITE/COLLECTION:METRIC.
    """

    def __init__(self, suites: Sequence[str], model: Model, program: IndexProgram, mesh: Mesh, stores: Path):
        """Read and tokenise the collections.

        Args:
          suites: names or folders, as `train.suites` gives them.
          model: model with the tokenizer, templates and lengths.
          program: constants of the run, whose encoding and search are compiled again for each collection's size.
          mesh: the devices, which share each collection's rows.

        Raises:
          UserError: a suite has no collection with questions and judgements, or one cannot be read.
          UsageError: two suites have one name.
        """
        self._members: dict[str, list[_Member]] = {}
        for suite, data_sets in suites_of(suites).items():
            self._members[suite] = []
            for one in data_sets:
                beir = read_beir(one.folder, one.split)
                store = token_store(model, beir.corpus, stores, name="passage")
                sized = dataclasses.replace(program, corpus_rows=len(beir.corpus), passage_widths=widths_of(store))
                whole = WholeCorpus(store, sized, mesh)
                judged = Judged(beir.questions, beir.qrels, str(one.folder))
                # The questions unchanged, also in runs that train for typos.
                dev = DevSet(judged, beir.corpus, model, stores, Typos())
                self._members[suite].append(_Member(one.name, store, whole, dev))
                note(
                    log.info,
                    "%s: each evaluation encodes its %d passages for %d questions of split %s",
                    one.folder,
                    len(beir.corpus),
                    len(beir.questions),
                    one.split,
                )

    @property
    def names(self) -> set[str]:
        """Names of the suites."""
        return {*self._members}

    @property
    def size(self) -> str:
        """Number of questions and passages of all collections, as text for the log; empty without any."""
        members = [member for members in self._members.values() for member in members]
        counts = (sum(len(each.dev.questions) for each in members), sum(each.whole.store.num_rows for each in members))
        return f"suites of {counts[0]} questions, {counts[1]} passages" if members else ""

    def digest(self) -> str:
        """Return a sha256 (hexadecimal) over the collections' passages, questions and judgements."""
        members = [member for members in self._members.values() for member in members]
        return digest([[each.store.content, each.dev.digest()] for each in members])

    def metrics(self, train: TrainState) -> dict[str, float]:
        """Encode and search every collection with the current weights, one after the other; return the metrics."""
        found: dict[str, float] = {}
        for suite, members in self._members.items():
            of_members = [member.dev.metrics(train, member.whole) for member in members]
            if len(members) > 1:
                for member, metrics in zip(members, of_members, strict=True):
                    found |= {f"{suite}/{member.name}:{name}": value for name, value in metrics.items()}
            found |= {f"{suite}:{name}": value for name, value in shared_means(of_members).items()}
        return found


def shared_means(metrics: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Return the means of the metrics that all collections have: one without answers has no acc@k."""
    shared = [name for name in metrics[0] if all(name in each for each in metrics)]
    return {name: math.fsum(each[name] for each in metrics) / len(metrics) for name in shared}


def suites_of(suites: Sequence[str]) -> dict[str, list[DataSet]]:
    """Return {suite's name: its collections}; the name is the last part of a name, or a folder's own.

    Raises:
      UserError: a suite has no collection.
      UsageError: two suites have one name.
    """
    found: dict[str, list[DataSet]] = {}
    for suite in suites:
        root = source_of(_SHORT.get(suite, suite))
        name = root.name.partition("[")[0].rpartition(":")[2]
        if name in found:
            raise UsageError(f"train.suites: two are called '{name}'; leave one out, or rename its folder")
        data_sets, skipped = find_data_sets(root, _SPLITS)
        for each, why in skipped.items():
            note(log.warning, "%s: %s is skipped: %s", suite, each, why)
        if not data_sets:
            raise UserError(
                f"train.suites: {suite} has no collection with questions and judgements; name one, or a folder of BEIR folders"
            )
        found[name] = data_sets
    return found
