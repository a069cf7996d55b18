"""DDR's relevance module (Zhan et al. 2023, sections 3.2 and 3.3.1): adapters in the frozen source domain module.

--encoder.path names the source domain module, by default what ddr_msmarco_dam.py wrote; bert-base-uncased is
the paper's ablation without disentangled fine-tuning. The BEIR folder msmarco (corpus, queries, qrels/train.tsv,
qrels/dev.tsv) is in the folder that --data-folder names, and hard negatives are mined once:

    jaxretr mine --corpus DATA/msmarco --train DATA/msmarco --ranks 1:200 --out DATA/msmarco-bm25.jsonl

The original mines them with several retrievers (sentence-transformers/msmarco-hard-negatives): as lines of {query_id, query,
positive_document_ids, negative_document_ids} in a file that --data.train names, such files can be read as well. Another
departure: the best of four checkpoints by the dev questions' MRR@10 is kept, instead of the last one. The original
encodes documents with up to 512 tokens when it searches; here the model keeps the lengths that it is trained with.
ddr_msmarco_dam.py has the commands in their order.
"""

from jaxretr.config import (
    AdapterShape,
    Contrastive,
    ContrastiveConfig,
    ContrastiveData,
    Encoder,
    Negatives,
    Optimizer,
    Train,
)

QUESTIONS = 502_939
BATCH = 128
STEPS = 5 * QUESTIONS // BATCH


def config(data_folder: str = "data") -> ContrastiveConfig:
    return ContrastiveConfig(
        name="ddr_msmarco_rem",
        data=ContrastiveData(
            train=f"{data_folder}/msmarco-bm25.jsonl",
            corpus=f"{data_folder}/msmarco",
            dev_questions=f"{data_folder}/msmarco",
            dev_qrels=f"{data_folder}/msmarco/qrels/dev.tsv",
        ),
        encoder=Encoder(
            path="runs/ddr/msmarco_dam/model",
            adapter=AdapterShape(lora_rank=192, lora_targets=("query", "value"), bottleneck=192, scale=4.0),
            shared=True,
            pooling="mean",
            normalise=False,
            max_question_length=24,
            max_passage_length=128,
            # The frozen encoder's; the adapters have none.
            dropout=0.1,
            dtype="bfloat16",
        ),
        # 128 x (1 + 3) passages, and of them none that is judged right for the question counts against it. The original
        # knows them by their ids; here a copy of such a passage is one as well. It has no mask for other duplicates.
        negatives=Negatives(static=3, mask_known_positives=True, mask_duplicates=False),
        contrastive=Contrastive(temperature=1.0, chunk=64),
        optimizer=Optimizer(learning_rate=2e-5, weight_decay=0.0, clip=1.0, warmup=0.0, final=1.0),
        train=Train(
            steps=STEPS, batch_size=BATCH, log_every=50, save_every=1000, eval_every=5000, best_metric="mrr@10"
        ),
    )
