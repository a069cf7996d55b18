"""The supervised objective as its definition reads: loops over questions and passages, in float64, in PyTorch.

Nothing is streamed, masked by arithmetic or shared between devices: what a question is compared with is a list.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxretr.objectives.contrastive import NO_PASSAGE, ContrastiveProgram


@dataclass
class Examples:
    """A whole batch, on the host."""

    rows: np.ndarray
    """Corpus rows of the passages, [B, C]; NO_PASSAGE where there is none."""
    known: np.ndarray
    """Contents of judged positives, [B, Q]."""
    contents: np.ndarray
    """Of every corpus row, [N]."""
    index: np.ndarray
    """Embeddings of every corpus row, [N, D]."""
    teacher: np.ndarray | None = None

    def content(self, i: int, place: int) -> int:
        row = self.rows[i, place]
        return NO_PASSAGE if row == NO_PASSAGE else int(self.contents[row])

    def positives(self, program: ContrastiveProgram, i: int) -> list[int]:
        """Places of question i's positives."""
        return [place for place in range(program.positives) if self.rows[i, place] != NO_PASSAGE]

    def relevant(self, program: ContrastiveProgram, i: int) -> set[int]:
        """Contents that are no negatives of question i."""
        relevant: set[int] = set()
        if program.mask_known_positives:
            relevant |= set(self.known[i].tolist())
        if program.mask_duplicates:
            relevant |= {self.content(i, place) for place in self.positives(program, i)}
        return relevant


def loss(program: ContrastiveProgram, q: Any, p: Any, examples: Examples) -> tuple[Any, float]:
    """The batch's loss, and the mean number of negatives that each question met within the batch.

    Args:
      program: the run's settings.
      q: embeddings, float64 tensor [B, D].
      p: of each question's passages, [B, C, D].
      examples: what they are.
    """
    import torch
    from torch.nn.functional import cross_entropy

    b = len(q)
    total = torch.zeros((), dtype=torch.float64)
    count = 0
    for dim in program.sizes:

        def cut(x: Any, dim: int = dim) -> Any:
            # The whole ones come normalised; a prefix of one is shorter than 1.
            normalise = program.encoder.normalise and dim < x.shape[-1]
            return torch.nn.functional.normalize(x[..., :dim], dim=-1) if normalise else x[..., :dim]

        questions, passages, index = cut(q), cut(p), cut(torch.tensor(examples.index, dtype=torch.float64))
        scores = torch.einsum("id,jcd->ijc", questions, passages) / program.temperature
        count = 0
        for i in range(b):
            negatives = [scores[i, j, place] for j, place in negatives_of(program, examples, i)]
            count += len(negatives)
            if program.corpus_softmax:
                others = distant_of(program, examples, i)
                negatives += list(index[others] @ questions[i] / program.temperature)
            losses = []
            for place in examples.positives(program, i):
                each = cross_entropy(torch.stack([scores[i, i, place], *negatives])[None], torch.tensor([0]))
                if program.symmetric:
                    of_questions = [
                        scores[j, i, place]
                        for j in range(b)
                        if j != i and examples.content(i, place) not in examples.relevant(program, j)
                    ]
                    logits = torch.stack([scores[i, i, place], *of_questions])[None]
                    each = (each + cross_entropy(logits, torch.tensor([0]))) / 2
                losses.append(each)
            if losses:
                total = total + program.contrastive_weight * sum(losses) / len(losses) / b
        if program.distillation != "none":
            total = total + program.distillation_weight * distilled(program, questions, passages, examples) / b
    return total, count / b


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


def distilled(program: ContrastiveProgram, questions: Any, passages: Any, examples: Examples) -> Any:
    """The sum of all questions' distillation losses."""
    import torch

    teacher = examples.teacher
    assert teacher is not None
    total = torch.zeros((), dtype=torch.float64)
    for i in range(len(questions)):
        places = [
            place
            for place in range(teacher.shape[1])
            if examples.rows[i, place] != NO_PASSAGE and not np.isnan(teacher[i, place])
        ]
        student = {place: questions[i] @ passages[i, place] for place in places}
        if program.distillation == "margin_mse":
            if 0 in places and len(places) > 1:
                errors = [
                    (student[0] - student[place]) - float(teacher[i, 0] - teacher[i, place]) for place in places[1:]
                ]
                total = total + sum(error**2 for error in errors) / len(errors)
        elif len(places) > 1:
            target = torch.softmax(torch.tensor(teacher[i, places] / program.teacher_temperature).double(), dim=-1)
            model = torch.log_softmax(torch.stack([student[place] for place in places]) / program.temperature, dim=-1)
            total = total + (target * (target.log() - model)).sum()
    return total
