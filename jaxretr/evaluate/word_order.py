"""`jaxretr.word_order`: the effect of the order of a question's words on a model's metrics."""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxretr.data.named.names import data_path
from jaxretr.data.readers import Corpus, read_corpus
from jaxretr.data.word_shuffle import shuffle_words
from jaxretr.evaluate import metrics as measures
from jaxretr.evaluate.measuring import Search
from jaxretr.evaluate.robustness import Robustness, Split, measure_altered, read_splits, share_changed
from jaxretr.evaluate.searches import bm25_search, encoder_search
from jaxretr.stores.encoding import Encoder, loaded

log = logging.getLogger(__name__)

METRICS = ("recall@20", "recall@100", "ndcg@10")


@dataclass(frozen=True)
class Shuffled:
    """The effect of shuffling on the questions of one split.

    Attributes:
      questions: the number of questions that the split judges.
      reordered: the share of questions whose words are in another order after shuffling, over all shuffles.
      metrics: {metric: the shuffled questions compared with the original ones}.
    """

    questions: int
    reordered: float
    metrics: dict[str, Robustness]


@dataclass(frozen=True, repr=False)
class WordOrder:
    """Metrics with the original and with shuffled questions.

    Attributes:
      splits: the results of each split of the BEIR folder.
      seeds: the seeds of the shuffles, whose mean is compared.
    """

    splits: Mapping[str, Shuffled]
    seeds: Sequence[int]

    def __repr__(self) -> str:
        return f"WordOrder({', '.join(self.splits)}; {len(self.seeds)} shuffles)"

    def to_json(self) -> str:
        """All metrics as a JSON object."""
        splits = {}
        for split, result in self.splits.items():
            of_metrics = {}
            for name, found in result.metrics.items():
                compared = found.comparison.as_json()
                of_metrics[name] = {
                    "original": compared.pop("mean_b"),
                    "shuffled": compared.pop("mean_a"),
                    **compared,
                    "of_seeds": found.of_draws,
                }
            splits[split] = {"questions": result.questions, "reordered": result.reordered, "metrics": of_metrics}
        return json.dumps({"seeds": list(self.seeds), "splits": splits}, indent=1)

    def table(self) -> str:
        """All metrics as a table for people."""
        seeds, many = self.seeds, len(self.seeds) > 1
        lines = []
        for split, result in self.splits.items():
            lines.append(
                f"{split}: {result.questions} questions, {100 * result.reordered:.1f} % in another order, "
                + (f"mean of seeds {seeds[0]} to {seeds[-1]}" if many else f"seed {seeds[0]}")
            )
            lines.append(
                f"{'':<16}{'original':>10}{'shuffled':>10}{'difference':>12}{'95% interval':>20}{'p':>10}"
                f"{'p (t-test)':>12}{'better/equal/worse':>20}" + (f"{'lowest, highest seed':>24}" if many else "")
            )
            for name, found in result.metrics.items():
                c = found.comparison
                interval = f"[{c.low:+.4f}, {c.high:+.4f}]"
                counts = f"{c.wins}/{c.ties}/{c.losses}"
                of_seeds = f"{min(found.of_draws):.4f}, {max(found.of_draws):.4f}"
                lines.append(
                    f"{name:<16}{c.mean_b:>10.4f}{c.mean_a:>10.4f}{c.difference:>+12.4f}{interval:>20}"
                    f"{c.p_value:>10.4f}{c.t_test_p_value:>12.4f}{counts:>20}" + (f"{of_seeds:>24}" if many else "")
                )
        return "\n".join(lines)


def word_order(
    encoder: Encoder | str | Path | Callable[[], Encoder] | None,
    *,
    beir: str | Path,
    splits: Sequence[str] = ("test",),
    seeds: Sequence[int] = (0,),
    metrics: Sequence[str] = METRICS,
    batch_size: int | None = None,
) -> WordOrder:
    """Measures a model with the questions of a BEIR folder, and with their words shuffled.

    A model that only matches words loses nothing, as BM25 does.

    Args:
      encoder: the model, a path or name as `load_encoder` takes it, or a function that loads it; None: BM25.
      beir: a folder with corpus, queries and qrels.
      splits: splits of the folder's judgements.
      seeds: seeds of the shuffles.
      metrics: for instance "ndcg@10"; `jaxretr.evaluate.metrics` lists them.
      batch_size: texts per batch; None: chosen for the device.

    Raises:
      UsageError: an unknown metric.
      UserError: bad input.
    """
    # Find every error of the arguments and files before a model is loaded.
    of_names = read_splits(beir, splits)[1]
    measures.evaluate({"": {}}, {}, metrics)
    folder = data_path(beir)
    corpus = read_corpus(folder)
    search = bm25_search(corpus) if encoder is None else encoder_search(loaded(encoder), corpus, batch_size)
    found = {
        name: _shuffled(search, corpus, split, metrics, seeds, f"{folder.name}, {name}")
        for name, split in of_names.items()
    }
    return WordOrder(found, list(seeds))


def _shuffled(
    search: Search, corpus: Corpus, split: Split, names: Sequence[str], seeds: Sequence[int], what: str
) -> Shuffled:
    draws = [[shuffle_words(text, seed) for text in split.texts] for seed in seeds]
    measured = measure_altered(search, corpus, split, {"shuffled": draws}, names, what)
    share = share_changed(split.texts, draws, str.split)
    if share < 0.5:
        log.warning(
            "%s: shuffling changes only %.0f %% of the questions: the others have one word between spaces, or few",
            what,
            100 * share,
        )
    return Shuffled(len(split.qrels), share, {name: measured.robustness("shuffled", name) for name in names})
