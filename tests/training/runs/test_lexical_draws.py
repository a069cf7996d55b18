"""Lambda's examples: one of the teacher's first ranks and one of its last ones, drawn again at each step."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny import DATA, contrastive_config, few_padding_rows, write_models

from jaxretr import cli
from jaxretr.config import BertShape
from jaxretr.data.lexical_set import LexicalSet, Ranking, Selection
from jaxretr.data.readers import read_corpus
from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.runtime.errors import UsageError, UserError
from jaxretr.runtime.parallel.mesh import make_mesh
from jaxretr.training.loop import train
from jaxretr.training.runs.contrastive import ContrastiveRun
from jaxretr.training.runs.example_draws import LexicalDraws, as_training_set
from jaxretr.training.runs.run_examples import read_run_examples

QUERIES = ["who wrote it", "when was it", "where is it", "东京在哪里"]
# Ranks 1-3 are positives and 5-6 negatives; the third query has two positives and one negative.
FIRST = np.array([[0, 1, 2, 9, 3, 4], [5, 6, 7, 9, 8, 10], [11, 12, -1, -1, 13, -1], [14, 15, 16, 9, 17, 18]], np.int32)
SECOND = (FIRST + 1) % 19
SECOND[FIRST < 0] = NO_PASSAGE


def lexical_set(folder: Path, *teachers: np.ndarray) -> LexicalSet:
    corpus = read_corpus(DATA)
    rankings = [
        Ranking(f"teacher {number}", rows, np.where(rows < 0, 0, 100 * number + rows).astype(np.float32))
        for number, rows in enumerate(teachers)
    ]
    return LexicalSet.write(
        folder,
        QUERIES,
        np.full(len(QUERIES), -1, np.int32),
        rankings,
        selection=Selection(3, 5, 6),
        corpus_fingerprint=corpus.fingerprint(),
        corpus_rows=len(corpus),
        settings={},
    )


def draws(examples: LexicalSet, **changes: dict[str, Any]) -> LexicalDraws:
    config = contrastive_config(Path("unused"), **{"negatives": {"static": 1}, **changes})
    return LexicalDraws(config, examples, np.arange(20, dtype=np.int32)[::-1].copy())


def test_each_step_draws_one_positive_and_one_negative_of_each_query(tmp_path: Path) -> None:
    drawn = draws(lexical_set(tmp_path, FIRST))
    steps = np.stack([drawn.rows(np.arange(4), step)[0] for step in range(60)])  # [60, 4, 2]
    assert steps.dtype == np.int32 and drawn.places == 2 and drawn.positives == 1
    for query, row in enumerate(FIRST.tolist()):
        assert set(steps[:, query, 0].tolist()) == {rank for rank in row[:3] if rank >= 0}
        assert set(steps[:, query, 1].tolist()) == {rank for rank in row[4:] if rank >= 0}, "rank 4 is neither"
    again = draws(lexical_set(tmp_path, FIRST)).rows(np.arange(4), 7)[0]
    np.testing.assert_array_equal(again, steps[7], "a function of seed and step")
    # Three positives in 60 draws: each should be near a third.
    counts = np.bincount(np.searchsorted(FIRST[0, :3], steps[:, 0, 0]))
    assert counts.min() > 8, counts


def test_fewer_positives_more_negatives_and_all_positives_known(tmp_path: Path) -> None:
    drawn = draws(lexical_set(tmp_path, FIRST, SECOND), data={"teacher_positives": 1}, negatives={"static": 2})
    steps = np.stack([drawn.rows(np.array([2, 0]), step)[0] for step in range(60)])
    assert set(steps[:, 1, 0].tolist()) == {0, 1}, "rank 1 of either teacher"
    assert set(steps[:, 0, 0].tolist()) == {11, 12}
    for row in steps[:, 1].tolist():
        ranks = FIRST[0] if row[0] == 0 else SECOND[0]
        assert set(row[1:]) == set(ranks[4:].tolist()), "positive and negatives are of one teacher"
    assert (steps[:, 0, 2] == NO_PASSAGE).all(), "one negative is all there is"
    np.testing.assert_array_equal(drawn.known(np.array([2, 0])), [[19 - 11, 19 - 12], [19, 18]], "contents, not rows")
    drawn = draws(lexical_set(tmp_path, FIRST))
    np.testing.assert_array_equal(drawn.known(np.array([2])), [[8, 7, NO_PASSAGE]])
    drawn = draws(lexical_set(tmp_path, FIRST), negatives={"static": 1, "mask_known_positives": False})
    assert drawn.known(np.array([2])).shape == (1, 0) and drawn.known(np.array([2])).dtype == np.int32


def test_the_teachers_scores_follow_the_draws(tmp_path: Path) -> None:
    examples = lexical_set(tmp_path, FIRST, SECOND)
    for ranks in (None, 2):
        changes = {"distillation": {"loss": "kl"}, "data": {"teacher_positives": ranks}, "negatives": {"static": 2}}
        drawn = draws(examples, **changes)
        rows, scores = drawn.rows(np.arange(4), 3)
        assert scores is not None and scores.dtype == np.float32
        for row, of_row in zip(rows, scores, strict=True):
            number = int(of_row[0] >= 100)
            np.testing.assert_array_equal(of_row, np.where(row == NO_PASSAGE, np.nan, 100 * number + row))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"data": {"teacher_positives": 4}}, "has 1 to 3 a query"),
        ({"negatives": {"static": 3}}, "has 2 a query"),
        ({"contrastive": {"positives": "all"}}, "draws one positive"),
    ],
)
def test_what_a_lexical_set_cannot_give_is_refused(
    tmp_path: Path, changes: dict[str, dict[str, Any]], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        draws(lexical_set(tmp_path, FIRST), **changes)


def test_data_inspect_describes_a_set(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lexical_set(tmp_path, FIRST, SECOND)
    assert cli.main(["data", "inspect", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for expected in ("lexical set", "teacher 0, teacher 1", "3, 2", QUERIES[0]):
        assert expected in printed


def test_another_corpus_is_refused(tmp_path: Path) -> None:
    lexical_set(tmp_path / "set", FIRST)
    config = contrastive_config(tmp_path, data={"train": str(tmp_path / "set"), "corpus": str(DATA)})
    assert len(read_run_examples(config).texts) == 4
    rows = (DATA / "corpus.jsonl").read_text().splitlines()
    parts = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, lines in zip(parts, (rows[:7], rows[7:]), strict=True):
        path.write_text("\n".join(lines))
    data = dataclasses.replace(config.data, corpus=str(parts[0]), more_corpora=(str(parts[1]),))
    assert read_run_examples(dataclasses.replace(config, data=data)).corpus_rows == len(rows), "the same rows in files"
    data = dataclasses.replace(data, corpus=str(parts[1]), more_corpora=(str(parts[0]),))
    with pytest.raises(UserError, match="another corpus"):
        read_run_examples(dataclasses.replace(config, data=data))
    with pytest.raises(UserError, match="in an earlier corpus as well"):
        read_run_examples(dataclasses.replace(config, data=dataclasses.replace(data, more_corpora=(str(parts[1]),))))
    with pytest.raises(UsageError, match=r"data\.corpus"):
        read_run_examples(dataclasses.replace(config, data=dataclasses.replace(config.data, corpus=None)))


def test_lambda_learns_the_teachers_ranks(tmp_path: Path) -> None:
    """From new weights, validated on the mini-index of two passages a query."""
    write_models(tmp_path)
    lexical_set(tmp_path / "set", FIRST)
    config = contrastive_config(
        tmp_path,
        data={
            "train": str(tmp_path / "set"),
            "dev": str(tmp_path / "set"),
            "corpus": str(DATA),
            "dev_questions": None,
            "teacher_positives": 1,
        },
        negatives={"static": 1, "mask_known_positives": True},
        validation={"hard_negatives": 1, "other_negatives": 0},
        optimizer={"learning_rate": 5e-3},
        train={"steps": 60, "batch_size": 8, "eval_every": 60, "save_every": 60, "best_metric": "mrr"},
    )
    encoder = dataclasses.replace(config.encoder, fresh=BertShape(16, 1, 2, 32))
    config = dataclasses.replace(config, encoder=encoder)
    with few_padding_rows():
        run = ContrastiveRun(config, make_mesh(), tmp_path / "run")
        before = run.evaluate(run.init())
        pool = as_training_set(LexicalSet.open(tmp_path / "set"), read_corpus(DATA))
        assert {len(pool.positives[i]) for i in range(4)} == {1} and before["mrr"] < 0.9
        figures = train(config, tmp_path / "trained")
    assert figures["mrr"] > 0.8, (before, figures)
