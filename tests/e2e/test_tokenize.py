#!/usr/bin/python3
"""Text to tokens to training: files that `memferry tokenize` makes, texts and conversations that
`memferry train` makes tokens of by itself, the cache, resuming, and (where $MF_REFERENCE_PYTHON or
python3 has the library `tokenizers`) the same tokens as that library on random texts."""
import json
import os
import shutil
import struct
import subprocess
import sys
import unittest

import harness
from harness import Daemon, FOLDER, read_bytes, write_run

TOKENIZERS = os.path.join(harness.FIXTURES, "tokenizers")
PYTHON = os.environ.get("MF_REFERENCE_PYTHON") or shutil.which("python3") or "python3"
HEADER = 128


def read_tokens(path):
    """(tokens, which are learned, documents) of a token file, by docs/DATA.md."""
    data = read_bytes(path)
    assert data[:8] == b"MFTOKENS"
    version, width, flags, _, count, documents = struct.unpack_from("<IIIIQQ", data, 8)
    assert version == 1
    tokens = struct.unpack_from(f"<{count}{'H' if width == 2 else 'I'}", data, HEADER)
    mask = (HEADER + count * width + 7) // 8 * 8
    learned = [not flags or data[mask + i // 8] >> (i % 8) & 1 for i in range(count)]
    assert len(data) == mask + (count + 7) // 8 * flags
    return tokens, learned, documents


def token_ids(name):
    with open(os.path.join(TOKENIZERS, name, "tokenizer.json"), encoding="utf-8") as file:
        data = json.load(file)
    return {**data["model"]["vocab"], **{t["content"]: t["id"] for t in data["added_tokens"]}}


def write_lines(path, objects):
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(thing) + "\n" for thing in objects)
    return path


def conversations(count):
    return [{"messages": [
        {"role": "user", "content": f"What is {i} and {i}?"},
        {"role": "assistant", "content": f"It is {2 * i}."}]} for i in range(count)]


class Tokenize(harness.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = Daemon(name="tokenize")
        # The tiny Llama's shapes with a vocabulary that these tokenizers fit in.
        with open(os.path.join(harness.FIXTURES, "llama", "config.json"), encoding="utf-8") as file:
            config = {**json.load(file), "vocab_size": 1024}
        cls.model = os.path.join(FOLDER, "model", "config.json")
        os.makedirs(os.path.dirname(cls.model))
        with open(cls.model, "w", encoding="utf-8") as file:
            json.dump(config, file)

    @classmethod
    def tearDownClass(cls):
        assert cls.daemon.stop() == 0, cls.daemon.text()

    def tokenize(self, name, path, *words, code=0):
        output = os.path.join(FOLDER, "tokens")
        result = self.daemon.cli("tokenize", "--tokenizer", os.path.join(TOKENIZERS, name),
                                 "--input", path, "--output", output, *words, code=code)
        return output if code == 0 else result.stderr

    def train(self, folder, code=0, resume=(), **keys):
        text = b"\n".join(b"the ferry number %d." % i for i in range(4000))
        config = write_run(folder, text=text, model=self.model,
                           **{"steps": 30, "eval_steps": 30, **keys})
        result = self.daemon.cli("train", "-c", config, *resume, code=code)
        if code != 0:
            return result.stderr, None
        with open(os.path.join(folder, "out", "metrics.jsonl"), encoding="utf-8") as file:
            return result.stderr, [json.loads(line) for line in file]

    def test_conversation(self):
        path = write_lines(os.path.join(FOLDER, "chat.jsonl"), conversations(3))
        tokens, learned, documents = read_tokens(self.tokenize("qwen2", path, "--template",
                                                               "chatml"))
        self.assertEqual(documents, 3)
        ids = token_ids("qwen2")
        ends = [i for i, token in enumerate(tokens) if token == ids["<|im_end|>"]]
        starts = [i for i, token in enumerate(tokens) if token == ids["<|im_start|>"]]
        self.assertEqual([bool(learned[i]) for i in ends], [False, True] * 3)
        self.assertFalse(any(learned[i] for i in starts))
        names = {number: text for text, number in ids.items()}
        answers = "".join(names[t] for t, one in zip(tokens, learned) if one)
        self.assertEqual(answers.replace("\u0120", " "),
                         "".join(f"It is {2 * i}.<|im_end|>" for i in range(3)))

    def test_no_document_is_cut(self):
        path = write_lines(os.path.join(FOLDER, "align.jsonl"), conversations(40))
        tokens, learned, _ = read_tokens(self.tokenize("qwen2", path, "--template", "chatml",
                                                       "--align", "64"))
        start = token_ids("qwen2")["<|im_start|>"]
        self.assertGreater(len(tokens), 640)
        for place in range(0, len(tokens), 64):
            self.assertEqual(tokens[place], start)
            self.assertFalse(learned[place])

    def test_refused(self):
        path = write_lines(os.path.join(FOLDER, "bad.jsonl"), [{"text": "a"}, {"txt": "b"}])
        self.assertIn("bad.jsonl, line 2 (byte 14)", self.tokenize("gpt2", path, code=1))
        self.assertIn("<|im_start|>",
                      self.tokenize("gpt2", path, "--template", "chatml", code=1))
        self.assertIn("no added token", self.tokenize("gpt2", path, "--end-token", "</s>", code=1))
        self.assertIn("tokenizer.json", self.daemon.cli(
            "tokenize", "--tokenizer", FOLDER, "-i", path, "-o", path + ".out", code=4).stderr)
        self.assertFalse(os.path.exists(path + ".out"))

    def test_train_on_text(self):
        data = {"text": "data.txt", "validation": "data.txt",
                "tokenizer": os.path.join(TOKENIZERS, "llama3")}
        folder = os.path.join(FOLDER, "text-run")
        told, lines = self.train(folder, data=data)
        self.assertIn("tokens, ", told)
        self.assertEqual(len(os.listdir(os.path.join(folder, "memferry-tokens"))), 1)
        self.assertLess(lines[-1]["eval_loss"], lines[0]["loss"])
        # The same again: the file is there, and the resolved config names it.
        with open(os.path.join(folder, "out", "run.json"), encoding="utf-8") as file:
            resolved = json.load(file)["memferry"]["data"]
        self.assertEqual(resolved["format"], "memferry")
        self.assertGreater(len(read_tokens(resolved["tokens"][0])[0]), 4000)
        told, _ = self.train(folder, data=data, output="out2")
        self.assertNotIn("tokens, ", told)

    def test_train_on_conversations_and_resume(self):
        folder = os.path.join(FOLDER, "chat-run")
        os.makedirs(folder)
        write_lines(os.path.join(folder, "chat.jsonl"), conversations(300))
        data = {"text": ["chat.jsonl"], "tokenizer": os.path.join(TOKENIZERS, "qwen2"),
                "template": "chatml", "align": 32, "validation_fraction": 0.1, "cache": "made"}
        _, straight = self.train(folder, data=data)
        self.assertLess(straight[-1]["loss"], straight[0]["loss"])
        shutil.rmtree(os.path.join(folder, "out"))
        self.train(folder, data=data, steps=15, eval_steps=15)
        _, lines = self.train(folder, data=data, resume=("--resume", "latest"))
        self.assertEqual([line["loss"] for line in lines], [line["loss"] for line in straight])
        self.assertEqual(len(os.listdir(os.path.join(folder, "made"))), 1)
        # Another text is other data: the checkpoint is not of it.
        write_lines(os.path.join(folder, "chat.jsonl"), conversations(299))
        told, _ = self.train(folder, data=data, resume=("--resume", "latest"), steps=40, code=1)
        self.assertIn("data", told)

    def test_train_refuses(self):
        folder = os.path.join(FOLDER, "bad-run")
        tokenizer = os.path.join(TOKENIZERS, "qwen2")
        for data, fragment in (
                ({"tokens": "data.txt", "tokenizer": tokenizer}, "a tokenizer is for"),
                ({"text": "data.txt", "tokenizer": tokenizer, "format": "raw_u16"},
                 "a tokenizer is for"),
                ({"text": "data.txt", "tokenizer": tokenizer, "template": "jinja"},
                 "must be chatml, llama3 or plain"),
                ({"text": "data.txt", "tokenizer": tokenizer, "aling": 7}, "did you mean"),
                ({"text": "data.txt", "template": "chatml"}, "does not tokenize"),
                ({"text": ["data.txt", "a.jsonl"]}, "a.jsonl is JSONL: name the folder"),
                ({"text": "data.txt", "tokenizer": "absent"}, "tokenizer.json")):
            with self.subTest(data=data):
                config = write_run(folder, model=self.model, data=data)
                self.assertIn(fragment, self.daemon.cli("train", "-c", config, code=None).stderr)

    def test_megatron(self):
        folder = os.path.join(FOLDER, "megatron")
        os.makedirs(folder)
        tokens = [i * i % 1000 for i in range(3000)]
        with open(os.path.join(folder, "set.bin"), "wb") as file:
            file.write(struct.pack("<3000i", *tokens))
        with open(os.path.join(folder, "set.idx"), "wb") as file:
            file.write(b"MMIDIDX\0\0" + struct.pack("<QBQQ", 1, 4, 3, 4))
            file.write(struct.pack("<3i3q4q", 1000, 500, 1500, 0, 4000, 6000, 0, 1, 2, 3))
        told, lines = self.train(folder, data={"tokens": "set.idx"}, eval_steps=0)
        self.assertLess(lines[-1]["loss"], lines[0]["loss"])

    def test_same_as_the_library(self):
        code = "import tokenizers; print(tokenizers.__version__)"
        if subprocess.run([PYTHON, "-c", code], capture_output=True, check=False).returncode != 0:
            self.skipTest(f"{PYTHON} has no tokenizers")
        for name in ("gpt2", "llama3", "qwen2"):
            with self.subTest(tokenizer=name):
                path = os.path.join(FOLDER, "random.jsonl")
                script = os.path.join(harness.SOURCE, "tests", "oracle", "make_tokenizers.py")
                result = subprocess.run([PYTHON, script, "--texts", path, "--tokenizer", name],
                                        capture_output=True, text=True, check=True)
                tokens, _, documents = read_tokens(self.tokenize(name, path))
                self.assertEqual(documents, 2000)
                self.assertEqual(list(tokens), json.loads(result.stdout))


if __name__ == "__main__":
    sys.exit(harness.main())
