"""ART as published, for a pod: Natural Questions, 21 million passages, BERT-base towers, the T0-3B scorer.

Every hyper-parameter is the paper's (Sachan et al. 2023) or, where the paper is silent, the authors' code's. Put
psgs_w100.tsv, the NQ questions and the dev questions with answers into the folder that --data-folder names, and convert
T0-3B's weights to a folder of their own (any T5 v1.1 will do).

The paper's ablations on Natural Questions are this config with other settings:

  initialisation (figure 3)       --encoder.path FOLDER, of an encoder that was trained on masked salient spans (MSS), with
                                  --encoder.passage-path where its passage tower comes apart
  number of passages (table 5)    --art.top-k 2, 4, 8, 16, 64 or 128
  kinds of passages (table 7)     --data.judged DATA/biencoder-nq-train.json --art.top-k 0, and
    judged, 31 drawn                --art.positives 1 --art.uniform 31
    judged, BM25's, 30 drawn        --art.positives 1 --art.hard-negatives 1 --art.uniform 30
    32 drawn                      --art.top-k 0 --art.uniform 32
  teachers (table 8)              --scorer.path google/t5-v1_1-base, -xl, -xxl; google/t5-base-lm-adapt, -large, -xl, -xxl;
                                  bigscience/T0

Other questions and sizes have configs of their own: art_webq_t0_3b, art_triviaqa_t0_3b, art_squad_t0_3b, art_msmarco_t0_3b,
art_nq_t5_11b, art_nq_large.
"""

from jaxretr.config import Art, ArtConfig, ArtData, Encoder, LiveIndex, Optimizer, Scorer, Train

QUESTIONS = 79_168
BATCH = 64


def config(data_folder: str = "data") -> ArtConfig:
    return ArtConfig(
        name="art_nq_t0_3b",
        data=ArtData(
            corpus=f"{data_folder}/psgs_w100.tsv.gz",
            questions=f"{data_folder}/nq-train.tsv",
            dev_questions=f"{data_folder}/nq-dev.tsv",
        ),
        encoder=Encoder(
            path="bert-base-uncased",
            pooling="cls",
            max_question_length=64,
            max_passage_length=256,
            dropout=0.1,
            dtype="bfloat16",
        ),
        scorer=Scorer(path="bigscience/T0_3B", max_length=512, max_question_length=128, chunk=16, dtype="bfloat16"),
        art=Art(
            top_k=32,
            temperature=None,  # sqrt(768)
        ),
        # The paper's index is stale between two refreshes.
        index=LiveIndex(refresh_every=500, write_back=False, dtype="bfloat16"),
        optimizer=Optimizer(learning_rate=2e-5, weight_decay=0.1, clip=1.0, warmup=0.01, final=0.02),
        train=Train(
            steps=10 * QUESTIONS // BATCH,
            batch_size=BATCH,
            save_every=500,
            eval_every=500,
            best_metric="acc@20",
        ),
    )
