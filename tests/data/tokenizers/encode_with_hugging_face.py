"""Encodes texts with Hugging Face's `tokenizers`, for hugging_face_test.cpp.

encode_with_hugging_face.py JOBS: a JSON list of {"tokenizer", "text", "special", "out"}, paths but for
"special": whether names of special tokens in the text are these tokens. `tokenizer` is a tokenizer.json, or a
folder with encoder.json and vocab.bpe. Writes the ids to "out" with blanks between them.
encode_with_hugging_face.py --train TEXT VOCAB_SIZE OUT: trains as `tokenize train` does.
"""
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers


def load(path):
    if path.is_file():
        return Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.BPE.from_file(str(path / "encoder.json"), str(path / "vocab.bpe")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def train(text, vocab_size, out):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    options = {"vocab_size": int(vocab_size), "min_frequency": 2, "special_tokens": ["<|endoftext|>"]}
    trainer = trainers.BpeTrainer(initial_alphabet=alphabet, show_progress=False, **options)
    tokenizer.train_from_iterator([Path(text).read_bytes().decode()], trainer)
    tokenizer.save(out)


if sys.argv[1] == "--train":
    train(*sys.argv[2:])
else:
    for job in json.loads(Path(sys.argv[1]).read_text()):
        tokenizer = load(Path(job["tokenizer"]))
        tokenizer.encode_special_tokens = not job["special"]
        text = Path(job["text"]).read_bytes().decode()
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        Path(job["out"]).write_text(" ".join(map(str, ids)))
