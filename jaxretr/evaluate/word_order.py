"""`jaxretr.word_order`: the effect of the order of a question's words on a model's metrics."""

import dataclasses
import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxretr.data.readers import read_corpus
from jaxretr.data.source import source_of
from jaxretr.data.word_shuffle import shuffle_words
from jaxretr.embeddings.encoding import Encoder, loaded
from jaxretr.evaluate import metrics as measures
from jaxretr.evaluate.results import QUESTION, Block, Results
from jaxretr.evaluate.robustness import AlteredValues, Robustness, measure_altered, read_splits, share_changed
from jaxretr.evaluate.searches import bm25_search, encoder_search
from jaxretr.evaluate.significance import Comparison
from jaxretr.evaluate.tables import Cell, Grid, Row

log = logging.getLogger(__name__)

METRICS = ("recall@20", "recall@100", "ndcg@10")

_SHUFFLED = "shuffled"


@dataclass(frozen=True, repr=False)
class WordOrder(Results):
    """Metrics with the original and with shuffled questions.

    Attributes:
      questions: {split of the BEIR folder: number of questions that it judges}.
      reordered: {split: share of questions whose words are in another order after shuffling, over all shuffles}.
      values: {split: the metrics of every question}.
      seeds: the seeds of the shuffles, whose mean is compared.
    """

    questions: Mapping[str, int]
    reordered: Mapping[str, float]
    values: Mapping[str, AlteredValues]
    seeds: Sequence[int]

    @functools.cached_property
    def metrics(self) -> dict[str, dict[str, Robustness]]:
        """{split: {metric: the shuffled questions compared with the original ones}}."""
        return {
            split: {metric: split_values.robustness(_SHUFFLED, metric) for metric in split_values.original}
            for split, split_values in self.values.items()
        }

    def __repr__(self) -> str:
        return f"WordOrder({', '.join(self.questions)}; {len(self.seeds)} shuffles)"

    def content(self) -> dict[str, Any]:
        """All metrics for JSON."""
        splits = {}
        for split, of_metrics in self.metrics.items():
            metrics = {
                name: {
                    "original": result.comparison.mean_b,
                    **result.comparison.named("shuffled", "original"),
                    "of_seeds": result.of_draws,
                }
                for name, result in of_metrics.items()
            }
            splits[split] = {"questions": self.questions[split], "reordered": self.reordered[split], "metrics": metrics}
        return {"seeds": self.seeds, "splits": splits}

    def blocks(self) -> Iterator[Block]:
        """The values of every question, first the original ones and then those of each shuffle."""
        for split, split_values in self.values.items():
            yield {"split": split, QUESTION: "", "seed": "original"}, split_values.original
            for seed, values in zip(self.seeds, split_values.draws[_SHUFFLED], strict=True):
                yield {"split": split, QUESTION: "", "seed": str(seed)}, values

    def grids(self) -> list[Grid]:
        """A table of each split."""
        seeds, many = self.seeds, len(self.seeds) > 1
        means = f"mean of seeds {seeds[0]} to {seeds[-1]}" if many else f"seed {seeds[0]}"
        columns = ["original", "shuffled", *Comparison.HEADS, "better/equal/worse", *["lowest, highest seed"] * many]
        grids = []
        for split, of_metrics in self.metrics.items():
            rows = []
            for name, result in of_metrics.items():
                compared = result.comparison
                of_seeds = f"{min(result.of_draws):.4f}, {max(result.of_draws):.4f}"
                cells = f"{compared.mean_b:.4f}", f"{compared.mean_a:.4f}", *compared.cells, *[of_seeds] * many
                rows.append(Row(name, list(map(Cell, cells))))
            reordered = f"{100 * self.reordered[split]:.1f} % in another order"
            title = f"{split}: {self.questions[split]} questions, {reordered}, {means}"
            grids.append(Grid(title, "metric", columns, rows))
        return grids


def word_order(
    encoder: Encoder | str | Path | Callable[[], Encoder] | None,
    *,
    beir: str | Path,
    splits: Sequence[str] = ("test",),
    seeds: Sequence[int] = (0,),
    metrics: Sequence[str] = METRICS,
    batch_size: int | None = None,
) -> WordOrder:
    """Measure a model with the questions of a BEIR folder, and with their words shuffled.

    A model that only matches words loses nothing, as BM25 does.

    Args:
      encoder: the model, a path or name as `load_encoder` takes it, or a function that loads it; None: BM25.
      beir: a BEIR folder, with corpus, queries and qrels.
      splits: splits of the BEIR folder's qrels.
      seeds: seeds of the shuffles.
      metrics: names of metrics, such as ndcg@10. `jaxretr.evaluate.metrics` lists them.
      batch_size: texts per batch; by default chosen for the device.

    Raises:
      UsageError: an unknown metric.
      UserError: bad input.
    """
    # Find every error of the arguments and files before a model is loaded.
    of_names = read_splits(beir, splits)[1]
    measures.evaluate({"": {}}, {}, metrics)
    folder = source_of(beir)
    corpus = read_corpus(folder)
    search = bm25_search(corpus) if encoder is None else encoder_search(loaded(encoder), corpus, batch_size)
    reordered, values = {}, {}
    for name, split in of_names.items():
        draws = [[shuffle_words(text, seed) for text in split.texts] for seed in seeds]
        what = f"{folder.name}, {name}"
        on = dataclasses.replace(split, corpus=corpus)
        values[name] = measure_altered(search, on, {_SHUFFLED: draws}, metrics, what)
        reordered[name] = share_changed(split.texts, draws, str.split)
        if reordered[name] < 0.5:
            log.warning(
                "%s: shuffling changes only %.0f %% of the questions: the others have one word between spaces, or few",
                what,
                100 * reordered[name],
            )
    judged = {name: len(split.qrels or ()) for name, split in of_names.items()}
    return WordOrder(judged, reordered, values, list(seeds))
