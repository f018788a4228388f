"""Measure how often each rank of the shipped Medusa and Hydra heads is right; write ranks.json.

    python -m tools.rank_tables PROMPTS.jsonl --prompts 48 --tokens 64

The model answers the prompts greedily, and the heads read its states along the answers.
"""

import argparse
import json
import sys
from pathlib import Path

import torch

from sapwood import LLM
from sapwood.backends.torch.load import load
from sapwood.common.drafter_store import SHIPPED
from sapwood.heads.load_head import open_head
from sapwood.tokenizer.tokenizer import Tokenizer
from sapwood.train import ranks
from sapwood.train.batches import TrainBatch
from sapwood.train.prompts import ChatFrame, read
from sapwood.train.teacher import Teacher

MODEL = "smollm2"
KINDS = ("medusa", "hydra")
LONGEST = 400  # tokens of a prompt


def main() -> None:
    """Answer, measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--prompts", type=int, default=48)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    backend, folder = load(MODEL, threads=given.threads, stock=True)
    frame = ChatFrame.of(Tokenizer.load(folder), MODEL)
    prompts = [list(one.tokens) for one in read(given.file, frame, LONGEST).items][: given.prompts]
    with LLM(MODEL, threads=given.threads) as llm:
        answers = [list(llm.generate(tokens, max_tokens=given.tokens).tokens) for tokens in prompts]
    teacher = Teacher(backend)
    for kind in KINDS:
        place = SHIPPED / MODEL / kind
        head, _ = open_head(
            place, kind, teacher.model, MODEL, device=teacher.device, dtype=teacher.dtype
        )
        head.attach(teacher.embedding, teacher.head)
        pairs = zip(prompts, answers, strict=True)
        table = ranks.measure(head, teacher, (batch(teacher, *pair) for pair in pairs))
        ranks.save(place, table)
        best = json.dumps([[round(share, 3) for share in level[:3]] for level in table])
        sys.stdout.write(f"{kind} {best}\n")


def batch(teacher: Teacher, prompt: list[int], answer: list[int]) -> TrainBatch:
    """One text with the target's states."""
    tokens = torch.tensor([[*prompt, *answer]])
    features, final = teacher.read(tokens, [])
    return TrainBatch(
        tokens,
        torch.tensor([tokens.shape[1]]),
        torch.tensor([len(prompt)]),
        features,
        final,
    )


if __name__ == "__main__":
    main()
