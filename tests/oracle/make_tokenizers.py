#!/usr/bin/env python3
"""Writes fixtures/tokenizers/: three small byte-level BPE tokenizers, one for each pattern, and
what the library that made them does with a few thousand texts.

    pip install tokenizers==0.23.3
    python3 tests/oracle/make_tokenizers.py [--out DIR]

Trained on /usr/share/common-licenses, so that the merges are those of real words. `gpt2` writes its
merges as texts and `qwen2` as pairs; `llama3` ignores merges where a piece is a token, and has a
prefix token; `qwen2` composes (NFC) and has added tokens that are not special."""
import argparse
import glob
import json
import os
import random
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

FOLDER = os.path.dirname(os.path.abspath(__file__))
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HEAD = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
STYLES = {
    "gpt2": (None, 700, ["<|endoftext|>"], "<|endoftext|>"),
    "llama3": (HEAD + r"\p{N}{1,3}" + TAIL, 900,
               ["<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                "<|eot_id|>"], "<|end_of_text|>"),
    "qwen2": (HEAD + r"\p{N}" + TAIL, 800, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
              "<|im_end|>"),
}
# What breaks tokenizers: blanks, line ends, contractions, digits, marks, scripts, emoji, controls.
PIECES = [
    " ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2028", "\u0085",
    "\x1c", "\x00", "\x7f", "\u200b", "\ufeff", "'s", "'S", "'ll", "'LL", "'\u017f", "'re", "'d",
    "'", "''", "\u2019s", "don't", "I'VE", "0", "1", "12", "123", "1234", "12345678901234567890",
    "\u0663", "\u00bd", "\u2163", "\u1d7d8", "a", "A", "the", " the", "License", "Licensee",
    " software", "e\u0301", "\u00e9", "\u0301", "a\u0323\u0302", "a\u0302\u0323", "\u0344",
    "\u212b", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u0958", "\u0915\u094d\u0937", "\u4e2d\u6587",
    "\u65e5\u672c\u8a9e", "\u0440\u0443\u0441", "\u0639\u0631\u0628\u064a", "\u0e44\u0e17\u0e22",
    "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea",
    "\U0001d54f", "\U00020000", "!", "?!", "...", ".\n", "-", "_", "<|", "|>", "<|endoftext",
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|eot_id|>", "<tool>", "</tool>", "<tool",
    "{\"a\": 1}", "x = y**2;", "http://example.org/a?b=c#d", "\\n", "$", "\u20ac", "%", "\u00ad",
    "\u0130", "\u01c5",
]


def make(name, files):
    pattern, size, special, _ = STYLES[name]
    tokenizer = Tokenizer(models.BPE(ignore_merges=name == "llama3"))
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    tokenizer.pre_tokenizer = byte_level if pattern is None else pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    if name == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.train(files, trainers.BpeTrainer(
        vocab_size=size, show_progress=False, special_tokens=special if name == "gpt2" else [],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    if name == "llama3":  # a token that no merge makes: only "ignore_merges" finds it
        data = json.loads(tokenizer.to_str())
        assert "Licensee" not in data["model"]["vocab"]
        data["model"]["vocab"]["Licensee"] = len(data["model"]["vocab"])
        tokenizer = Tokenizer.from_str(json.dumps(data))
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in special])
    if name == "qwen2":
        tokenizer.add_tokens([AddedToken("<tool>", normalized=False),
                              AddedToken("</tool>", normalized=True)])
    if name == "llama3":
        begin = "<|begin_of_text|>"
        tokenizer.post_processor = processors.Sequence([
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[
                (begin, tokenizer.token_to_id(begin))])])
    return tokenizer


def save(tokenizer, name, folder):
    os.makedirs(folder, exist_ok=True)
    data = json.loads(tokenizer.to_str())
    if name == "gpt2":  # as published files have it
        data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    path = os.path.join(folder, "tokenizer.json")
    with open(path, "w", encoding="utf-8") as file:
        json.dump(data, file, ensure_ascii=False, separators=(",", ":"))
        file.write("\n")
    with open(os.path.join(folder, "tokenizer_config.json"), "w", encoding="utf-8") as file:
        json.dump({"eos_token": STYLES[name][3]}, file)
        file.write("\n")
    return Tokenizer.from_file(path)


def texts(count, files, seed=20261201):
    """Pieces from the list, characters from everywhere, and pieces of real text."""
    dice = random.Random(seed)
    real = []
    for file in files:
        with open(file, encoding="utf-8", errors="replace") as stream:
            real.append(stream.read())
    for index in range(count):
        kind = index % 4
        if kind == 0:
            source = dice.choice(real)
            start = dice.randrange(len(source))
            yield source[start:start + dice.randrange(1, 120)]
        elif kind == 1:
            yield "".join(dice.choice(PIECES) for _ in range(dice.randrange(1, 12)))
        elif kind == 2:
            yield "".join(chr(point(dice)) for _ in range(dice.randrange(1, 8)))
        else:
            yield "".join(dice.choice((dice.choice(PIECES), chr(point(dice))))
                          for _ in range(dice.randrange(1, 10)))


def point(dice):
    limit = dice.choice((0x80, 0x250, 0x3000, 0x11000, 0x20000))
    value = dice.randrange(limit)
    return value if not 0xD800 <= value < 0xE000 else 0x2603


def digest(ids):
    """FNV-1a over the ids as 32-bit words."""
    value = 0x811C9DC5
    for token in ids:
        for byte in token.to_bytes(4, "little"):
            value = (value ^ byte) * 0x01000193 & 0xFFFFFFFF
    return value


def compare(path, name, files):
    """New texts to `path`; what the library makes of them, with end tokens, to stdout."""
    seed = random.randrange(1 << 32)
    tokenizer = Tokenizer.from_file(os.path.join(FOLDER, "fixtures", "tokenizers", name,
                                                 "tokenizer.json"))
    end = tokenizer.token_to_id(STYLES[name][3])
    tokens = []
    print(f"seed {seed}", file=sys.stderr)
    with open(path, "w", encoding="utf-8") as file:
        for text in texts(2000, files, seed):
            file.write(json.dumps({"text": text}) + "\n")
            tokens += tokenizer.encode(text).ids + [end]
    print(json.dumps(tokens))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--out", default=os.path.join(FOLDER, "fixtures", "tokenizers"))
    parser.add_argument("--count", type=int, default=2400)
    parser.add_argument("--texts", help="only compare: JSONL with new texts, for test_tokenize.py")
    parser.add_argument("--tokenizer", choices=STYLES, default="gpt2")
    arguments = parser.parse_args()
    files = sorted(f for f in glob.glob("/usr/share/common-licenses/*") if not os.path.islink(f))
    if arguments.texts:
        compare(arguments.texts, arguments.tokenizer, files)
        return
    cases = list(texts(arguments.count, files))
    cases[:2] = ["", "word" * 300 + " " * 70 + "9" * 50]
    names = list(STYLES)
    tokenizers = [save(make(name, files), name, os.path.join(arguments.out, name))
                  for name in names]
    lines = []
    for text in cases:
        line = {"text": text}
        for name, tokenizer in zip(names, tokenizers):
            both = []
            for plain in (False, True):
                tokenizer.encode_special_tokens = plain
                both.append(digest(tokenizer.encode(text, add_special_tokens=False).ids))
            line[name] = both[0] if both[0] == both[1] else both
        lines.append(json.dumps(line, ensure_ascii=False, separators=(",", ":")))
    with open(os.path.join(arguments.out, "cases.jsonl"), "w", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
