"""A config's data from one path: `jaxretr train CONFIG --data PATH`.

It becomes ordinary settings (`data.train`, `data.dev_split`, ...), so that a run's config.json records what was read,
and a resumed run reads the same.
"""

import dataclasses
import logging
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from jaxretr.config import (
    OF_ALL_SETS,
    ArtConfig,
    Config,
    ContrastiveConfig,
    ContrastiveData,
    EmbeddingDistillationConfig,
    MixtureSet,
    RerankerConfig,
)
from jaxretr.data.collection import CORPUS
from jaxretr.data.formats.kinds import FORMATS, KINDS, file_kind
from jaxretr.data.lexical_set import DEV, LexicalSet, is_lexical_set
from jaxretr.data.readers import beir_splits, qrels_path
from jaxretr.data.source import Source, source_of
from jaxretr.runtime.errors import UsageError, UserError

log = logging.getLogger(__name__)

# Names of the split that chooses the best checkpoint. Never "test": a model chosen by a split cannot be measured on it.
_DEV_SPLITS = ("dev", "validation", "val", "valid")
_TRAIN = "train"

# The most questions that are held out if there is no such split; never more than a tenth of all.
_HELD_OUT = 1000

# Kinds whose files have passages in named fields, and questions.
_WITH_PASSAGES = ("beir", *(name for name, format in FORMATS.items() if format.has_passages))


def with_data(config: Config, path: str | Path, stated: Mapping[str, Any]) -> Config:
    """Point a config at a BEIR folder, a training file, a lexical set, or (text objectives) a corpus.

    Corpus, training questions or pairs, splits and dev data are taken from there; none of the config's own data
    remains. If there is no dev split, training questions are held out for one. A test split is used if it is stated,
    or if no other questions have judgements, with a warning.

    Args:
      stated: settings of the section `data` that the user gives, without "data."; their splits are used, and dev data
        among them replaces that of the path. None of them may replace all that the path stands for.

    Returns:
      The config with another section `data`. If the data has only judgements, the metric acc@k in `train.best_metric`
      becomes recall@k, and negatives that the data does not have are set to 0.

    Raises:
      UserError: the path is none of these, or has no training questions.
      UsageError: this kind of config cannot use it, or `stated` replaces it.
    """
    place = source_of(path)
    kind = "lexical" if is_lexical_set(str(place)) else file_kind(place)
    if isinstance(config, ArtConfig):
        mine, wanted = ("corpus", "questions"), _art
    else:
        judged = isinstance(config, ContrastiveConfig | RerankerConfig)
        mine, wanted = (("train",), _judged) if judged else (("corpora",), _text)
    if set(mine) <= set(stated):
        both = " and ".join(f"data.{name}" for name in mine)
        raise UsageError(f"{path}: is given as the data of {config.name}, and {both} as well; leave one of them out")
    return wanted(config, place, kind, stated)


def with_sets(config: Config, sets: Sequence[str | Path | MixtureSet], stated: Mapping[str, Any]) -> Config:
    """Point a contrastive config at several sets, see `data.mixture`.

    Args:
      config: the config, with the user's settings.
      sets: sets as they are, or paths, which are read as `with_data` reads them and called as their files or folders are.
      stated: settings of the section `data` that the user gives, without "data.".

    Raises:
      UserError: as `with_data`.
      UsageError: another kind of run, or settings that belong to each set.
    """
    if not isinstance(config, ContrastiveConfig):
        raise UsageError(f"data: {config.name} is another kind of run than those that train on several sets; give one")
    if wrong := sorted(set(stated) - set(OF_ALL_SETS)):
        raise UsageError(
            f"data.{wrong[0]}: belongs to each of several sets; give them as data.mixture, with all they need"
        )
    found: list[MixtureSet] = []
    for each in sets:
        if isinstance(each, MixtureSet):
            found.append(each)
            continue
        pointed: Any = with_data(config, each, {})
        if pointed.data.dev is not None and pointed.data.dev_questions is None:
            log.warning("%s: its dev set is not used, since a mixture has no validation loss", each)
        found.append(_as_set(pointed, each, config, {one.name for one in found}))
        config = dataclasses.replace(config, train=pointed.train)
    data = ContrastiveData(mixture=tuple(found), token_cache=config.data.token_cache)
    return dataclasses.replace(config, data=data)


def _as_set(
    pointed: ContrastiveConfig, path: str | Path, config: ContrastiveConfig, taken: Collection[str]
) -> MixtureSet:
    """Return the data of a config that was pointed at a path as a set with a name that is not taken."""
    name = re.sub(r"[^\w-]+", "-", source_of(path).name.partition("[")[0].rpartition(":")[2].partition(".")[0]) or "set"
    names = [name, *(f"{name}-{number}" for number in range(2, len(taken) + 2))]
    values = vars(pointed.data)
    shared = {field.name: values[field.name] for field in dataclasses.fields(MixtureSet) if field.name in values}
    negatives = pointed.negatives if pointed.negatives != config.negatives else None
    free = next(each for each in names if each not in taken)
    return MixtureSet(**{**shared, "token_cache": None}, name=free, negatives=negatives)


# ---- supervised runs -------------------------------------------------------------------------------------------------


def _judged(config: Any, path: Source, kind: str, stated: Mapping[str, Any]) -> Config:
    # Only lexical sets have their dev set inside.
    wants_lexical = isinstance(config, ContrastiveConfig) and config.data.dev == str(Path(config.data.train) / DEV)
    if wants_lexical and kind != "lexical":
        raise UsageError(
            f"{path}: {config.name} learns from a lexical set; make one with: jaxretr mine lexical --corpus {path} "
            "--dev 500 --out LEXICAL, and give it as data=LEXICAL"
        )
    values: dict[str, Any] = {
        "train": str(path),
        "train_format": None,
        "split": _TRAIN,
        "corpus": None,
        "more_corpora": (),
        "mined": None,
        "dev": None,
        "dev_split": "dev",
        "dev_questions": None,
        "dev_qrels": None,
        "dev_run": None,
        "held_out": 0,
        "mixture": (),
        "mixture_temperature": 1.0,
        "mixed_batches": False,
    }
    if kind == "lexical" and isinstance(config, ContrastiveConfig):
        files = LexicalSet.open(str(path)).settings.get("corpus", {}).get("files", [])
        if not files and "corpus" not in stated:
            raise UsageError(f"{path}: does not name the corpus that it was made from; name it with data.corpus=FILE")
        dev = Path(str(path)) / DEV
        values |= {"corpus": next(iter(files), None), "more_corpora": tuple(files[1:])}
        values |= {"dev": str(dev)} if dev.is_dir() else {}
    elif kind == "beir":
        values |= {"teacher_positives": None, "split": _train_split(path, stated.get("split"))}
        dev = stated.get("dev_split") or _dev_split(path, values["split"])
        if dev is not None:
            qrels = qrels_path(path, dev, "data.dev_split")
            values |= {"dev": str(path), "dev_split": dev, "dev_questions": str(path), "dev_qrels": str(qrels)}
    elif kind in FORMATS:
        # With ids alone: the passages' table of its collection, if it has one.
        corpus = path.sibling(CORPUS) if FORMATS[kind].bare_ids else path
        if corpus is None and "corpus" not in stated:
            raise UsageError(
                f"{path}: has only the ids of its passages ({kind}); name their corpus with data.corpus=FILE"
            )
        values |= {"teacher_positives": None, "corpus": corpus and str(corpus)}
    else:
        raise _useless(path, kind, "a BEIR folder (corpus.jsonl, queries.jsonl, qrels/train.tsv) or a training file")
    if kind != "lexical" and values["dev"] is None and not {"dev", "dev_questions"} & set(stated):
        values["held_out"] = stated.get("held_out", _HELD_OUT)
    negatives = config.negatives
    if negatives.mined and "mined" not in stated:
        log.warning(
            "%s: negatives.mined is 0 now, since data.mined is of other data; mine your own with jaxretr mine, and set "
            "data.mined=FILE negatives.mined=%d",
            config.name,
            negatives.mined,
        )
        negatives = dataclasses.replace(negatives, mined=0)
    if negatives.static and kind == "beir":
        log.warning("%s: negatives.static is 0 now, since a BEIR folder has only positives", config.name)
        negatives = dataclasses.replace(negatives, static=0)
    split, dev = (values["split"], values["dev_split"]) if kind == "beir" else (None, None)
    _say(path, split, dev, values, bool({"dev", "dev_questions"} & set(stated)))
    # A cross-encoder's run has fewer of these settings, and one of its own.
    known = {field.name for field in dataclasses.fields(config.data)}
    values = {name: value for name, value in values.items() if name in known}
    data: Any = dataclasses.replace(config.data, **values)
    config = dataclasses.replace(config, data=data, negatives=negatives)
    return _with_metric_of_judgements(config)


def _train_split(folder: Source, stated: str | None) -> str:
    splits = beir_splits(folder)
    if stated is not None or _TRAIN in splits:
        return stated or _TRAIN
    if len(splits) == 1:
        log.warning(
            "%s: split '%s' has the only judgements, and is trained on; measure the model on other questions: on these it "
            "would look better than it is",
            f"{folder}/qrels",
            splits[0],
        )
        return splits[0]
    there = f"only {', '.join(splits)}" if splits else "none"
    remedy = "add qrels/train.tsv"
    if splits:
        remedy += f", or name a split that you will not measure on: data.split={splits[0]}"
    raise UserError(f"{folder}: no split 'train' ({there}), and supervised training needs judged questions; {remedy}")


def _dev_split(folder: Source, train: str) -> str | None:
    splits = beir_splits(folder)
    return next((name for name in _DEV_SPLITS if name in splits and name != train), None)


# ---- questions alone -------------------------------------------------------------------------------------------------


def _art(config: Any, path: Source, kind: str, stated: Mapping[str, Any]) -> Config:
    if kind not in _WITH_PASSAGES:
        raise _useless(path, kind, "a BEIR folder (corpus.jsonl, queries.jsonl) or a training file with passages")
    values: dict[str, Any] = {
        "corpus": str(path),
        "questions": str(path),
        "questions_split": None,
        "exclude_splits": (),
        "judged": config.data.judged and str(path),
        "dev_questions": None,
        "dev_qrels": None,
        "held_out": 0,
    }
    judged, dev = kind != "beir", None
    if kind == "beir":
        splits = beir_splits(path)
        split = stated.get("questions_split") or (_TRAIN if _TRAIN in splits else None)
        values |= {"questions_split": split} if split else {"exclude_splits": tuple(splits)}
        judged, dev = split is not None, _dev_split(path, split or _TRAIN)
    if "dev_questions" not in stated:
        if dev is not None:
            qrels = qrels_path(path, dev)
            values |= {"dev_questions": str(path), "dev_qrels": str(qrels)}
        else:
            values["held_out"] = stated.get("held_out", _HELD_OUT if judged else 0)
    _say(path, values["questions_split"], dev, values, "dev_questions" in stated)
    config = dataclasses.replace(config, data=dataclasses.replace(config.data, **values))
    return _with_metric_of_judgements(config)


# ---- text alone ------------------------------------------------------------------------------------------------------


def _text(config: Any, path: Source, kind: str, stated: Mapping[str, Any]) -> Config:
    if kind not in ("corpus", *_WITH_PASSAGES):
        raise _useless(path, kind, "a corpus, a BEIR folder or a training file with passages")
    values: dict[str, Any] = {"corpora": (str(path),), "pairs": None, "exclude_pairs": None, "pair_share": 0.0}
    trains = kind == "beir" and _TRAIN in beir_splits(path)
    if trains and config.data.pairs is not None:
        values |= {"pairs": str(path), "pair_share": config.data.pair_share}
    if isinstance(config, EmbeddingDistillationConfig):
        questions = (str(path),) if trains else ()
        config = dataclasses.replace(config, questions=questions, exclude_questions=(), questions_split=_TRAIN)
    return dataclasses.replace(config, data=dataclasses.replace(config.data, **values))


# ---- for all ---------------------------------------------------------------------------------------------------------


def _useless(path: Source, kind: str, wanted: str) -> UsageError:
    what = "a lexical set" if kind == "lexical" else KINDS[kind].title
    return UsageError(f"{path}: looks like {what}; give data={wanted}")


def _with_metric_of_judgements(config: Any) -> Any:
    """Return the config with recall@k if its best checkpoint is chosen by acc@k, which needs answers."""
    name, _, k = config.train.best_metric.partition("@")
    if name != "acc" or not k:
        return config
    k = k if k in ("5", "20", "100") else "20"
    return dataclasses.replace(config, train=dataclasses.replace(config.train, best_metric=f"recall@{k}"))


def _say(path: Source, split: str | None, dev: str | None, values: Mapping[str, Any], stated: bool) -> None:
    """Log the training data, and the data that choose the best checkpoint; `split` and `dev` are a BEIR folder's."""
    trained = (
        f"split {split}" if split else "questions of no split" if values.get("exclude_splits") else "its questions"
    )
    if values["held_out"]:
        chosen = f"a tenth of them, at most {values['held_out']}, which are held out"
    elif values["dev_questions"] is not None:
        chosen = f"split {dev}"
    elif values.get("dev") or stated:
        chosen = values.get("dev") or "the given dev data"
    else:
        log.warning(
            "%s: trains on %s; no judgements choose a checkpoint (never those of a test split), so the last step's "
            "model is kept; add qrels/dev.tsv, give data.dev_questions and data.dev_qrels, or let ART's teacher choose with "
            "data.held_out=64 train.best_metric=teacher@5",
            path,
            trained,
        )
        return
    log.info("%s: trains on %s; the best checkpoint is chosen by %s", path, trained, chosen)
