"""The supervised objective as its definition reads: loops over questions and passages, in float64, in PyTorch.

Nothing is streamed, masked by arithmetic or shared between devices: what a question is compared with is a list.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxretr.losses.contrastive import NO_PASSAGE
from jaxretr.training.steps.batch_loss import ContrastiveProgram


@dataclass
class Examples:
    """A whole batch, on the host."""

    rows: np.ndarray
    """Corpus rows of the passages, [B, C]; NO_PASSAGE where there is none."""
    known: np.ndarray
    """Contents of what is no negative wherever it comes from, [B, Q]."""
    contents: np.ndarray
    """Of every corpus row, [N]."""
    index: np.ndarray
    """Embeddings of every corpus row, [N, D]."""
    teacher: np.ndarray | None = None
    texts: np.ndarray | None = None
    """What the questions are, [B]: equal numbers for equal texts; None: all different."""

    def same(self, i: int, j: int) -> bool:
        """Whether two questions have the same text."""
        return i == j if self.texts is None else bool(self.texts[i] == self.texts[j])

    def content(self, i: int, place: int) -> int:
        row = self.rows[i, place]
        return NO_PASSAGE if row == NO_PASSAGE else int(self.contents[row])

    def positives(self, program: ContrastiveProgram, i: int) -> list[int]:
        """Places of question i's positives."""
        return [place for place in range(program.positives) if self.rows[i, place] != NO_PASSAGE]

    def relevant(self, program: ContrastiveProgram, i: int) -> set[int]:
        """Contents that are not negatives of question i."""
        relevant: set[int] = set(self.known[i].tolist())
        if program.negatives.mask_duplicates:
            relevant |= {self.content(i, place) for place in self.positives(program, i)}
        return relevant


def as_it_is(rows: Any) -> Any:
    """How passages are stored, if they are not rounded."""
    return rows


def loss(
    program: ContrastiveProgram,
    q: Any,
    p: Any,
    examples: Examples,
    forms: Any = None,
    stored: Callable[[Any], Any] = as_it_is,
) -> tuple[Any, float]:
    """The batch's loss, and the mean number of negatives that each question met within the batch.

    Args:
      program: the run's settings.
      q: embeddings, float64 tensor [B, D].
      p: of each question's passages, [B, C, D].
      examples: what they are.
      forms: of each question's misspelt forms, [B, V, D].
      stored: how an index stores passages, [..., D'] -> the same; a gradient goes through it as if it did nothing.
    """
    import torch

    b = len(q)
    total = torch.zeros((), dtype=torch.float64)
    for dim in program.sizes:

        def cut(x: Any, dim: int = dim) -> Any:
            # The whole ones come normalised; a prefix of one is shorter than 1.
            normalise = program.encoder.normalise and dim < x.shape[-1]
            return torch.nn.functional.normalize(x[..., :dim], dim=-1) if normalise else x[..., :dim]

        def as_stored(x: Any) -> Any:
            return x + (stored(x) - x).detach()

        index = as_stored(cut(torch.tensor(examples.index, dtype=torch.float64)))
        questions, passages = cut(q), as_stored(cut(p))
        for i in range(b):
            own = to_passages(program, questions[i], passages, index, examples, i)
            if program.contrastive.symmetric:
                asked = questions[:, None]
                if program.typos.multi_positive:
                    asked = torch.cat([asked, cut(forms)], dim=1)
                own = (own + to_questions(program, passages[i], asked, examples, i)) / 2
            own = program.distillation.contrastive_weight * own
            if program.distillation.loss != "none":
                own = own + program.distillation.weight * distilled(program, questions[i], passages[i], examples, i)
            if forms is not None:
                own = program.typos.clean_weight * own
                own = own + for_typos(program, questions, cut(forms), passages, index, examples, i)
            total = total + own / b
    return total, sum(len(negatives_of(program, examples, i)) for i in range(b)) / b


def to_passages(program: ContrastiveProgram, vector: Any, passages: Any, index: Any, examples: Examples, i: int) -> Any:
    """Question i's cross-entropy, read with `vector`: each positive against the negatives alone, and the mean."""
    negatives = [vector @ passages[j, place] for j, place in negatives_of(program, examples, i)]
    if program.contrastive.corpus_softmax:
        negatives += list(index[distant_of(program, examples, i)] @ vector)
    places = examples.positives(program, i)
    return mean_of([entropy(program, vector @ passages[i, place], negatives) for place in places])


def to_questions(program: ContrastiveProgram, own: Any, asked: Any, examples: Examples, i: int) -> Any:
    """The other direction: forms [B, F, D] of all questions, of which those of question i are the positives."""
    losses = []
    for place in examples.positives(program, i):
        negatives = [
            own[place] @ form
            for j in range(len(asked))
            if j != i and examples.content(i, place) not in examples.relevant(program, j)
            for form in asked[j]
        ]
        losses.append(mean_of([entropy(program, own[place] @ form, negatives) for form in asked[i]]))
    return mean_of(losses)


def for_typos(
    program: ContrastiveProgram, questions: Any, forms: Any, passages: Any, index: Any, examples: Examples, i: int
) -> Any:
    """All terms that question i's misspelt forms [V, D] bring."""
    import torch

    typos, b = program.typos, len(questions)
    total = torch.zeros((), dtype=torch.float64)
    if typos.contrast_weight:
        negatives = [questions[i] @ form for j in range(b) if not examples.same(i, j) for form in forms[j]]
        each = [entropy(program, questions[i] @ form, negatives) for form in forms[i]]
        total = total + typos.contrast_weight * mean_of(each)
    for form in forms[i]:
        if typos.passage_weight:
            own = program.distillation.contrastive_weight * to_passages(program, form, passages, index, examples, i)
            if program.distillation.loss != "none":
                own = own + program.distillation.weight * distilled(program, form, passages[i], examples, i)
            total = total + typos.passage_weight * own / len(forms[i])
        if typos.self_teaching_weight:
            there = torch.tensor(examples.rows != NO_PASSAGE)
            target = passages[there].detach() @ questions[i].detach() / program.contrastive.temperature
            taught = divergence(target, passages[there] @ form / program.contrastive.temperature)
            total = total + typos.self_teaching_weight * taught / len(forms[i])
    for v in range(forms.shape[1]):
        if typos.passage_self_teaching_weight:
            target = questions.detach() @ passages[i, 0].detach() / program.contrastive.temperature
            taught = divergence(target, forms[:, v] @ passages[i, 0] / program.contrastive.temperature)
            total = total + typos.passage_self_teaching_weight * taught / forms.shape[1]
    return total


def entropy(program: ContrastiveProgram, positive: Any, negatives: list[Any]) -> Any:
    """-log softmax of the positive's score."""
    import torch

    scores = torch.stack([positive, *negatives]) / program.contrastive.temperature
    return torch.nn.functional.cross_entropy(scores[None], torch.tensor([0]))


def divergence(target: Any, model: Any) -> Any:
    """KL(softmax(target) || softmax(model))."""
    import torch

    target = torch.softmax(target, dim=-1)
    return (target * (target.log() - torch.log_softmax(model, dim=-1))).sum()


def mean_of(losses: list[Any]) -> Any:
    """The mean; 0 of none."""
    import torch

    return sum(losses) / len(losses) if losses else torch.zeros((), dtype=torch.float64)


def negatives_of(program: ContrastiveProgram, examples: Examples, i: int) -> list[tuple[int, int]]:
    """(question, place) of the batch's passages that are negatives of question i."""
    return [
        (j, place)
        for j in range(len(examples.rows))
        for place in range(examples.rows.shape[1])
        if examples.rows[j, place] != NO_PASSAGE
        and not (j == i and place < program.positives)
        and examples.content(j, place) not in examples.relevant(program, i)
    ]


def distant_of(program: ContrastiveProgram, examples: Examples, i: int) -> list[int]:
    """Corpus rows outside the batch that are negatives of question i."""
    near = set(examples.rows.ravel().tolist())
    return [
        row
        for row in range(program.corpus_rows)
        if row not in near and int(examples.contents[row]) not in examples.relevant(program, i)
    ]


def distilled(program: ContrastiveProgram, vector: Any, own: Any, examples: Examples, i: int) -> Any:
    """Question i's distillation loss, read with `vector`, over its own passages [C, D]."""
    import torch

    teacher = examples.teacher
    assert teacher is not None
    nothing = torch.zeros((), dtype=torch.float64)
    places = [
        place
        for place in range(teacher.shape[1])
        if examples.rows[i, place] != NO_PASSAGE and not np.isnan(teacher[i, place])
    ]
    student = {place: vector @ own[place] for place in places}
    if len(places) < 2:
        return nothing
    if program.distillation.loss == "margin_mse":
        if 0 not in places:
            return nothing
        errors = [(student[0] - student[place]) - float(teacher[i, 0] - teacher[i, place]) for place in places[1:]]
        return sum(error**2 for error in errors) / len(errors)
    target = torch.tensor(teacher[i, places] / program.distillation.teacher_temperature).double()
    return divergence(target, torch.stack([student[place] for place in places]) / program.contrastive.temperature)
