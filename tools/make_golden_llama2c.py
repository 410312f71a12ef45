"""Models in llama2.c's format: what the Rust tests read, and what they must find.

    pip install numpy==2.4.6
    python tools/make_golden_llama2c.py                                   # writes tests/golden/llama2c/{tiny,untied,tokenizer}.bin and tiny.json
    python tools/make_golden_llama2c.py --stories FOLDER [--run PROGRAM]  # writes tests/golden/llama2c/stories260K.json
    python tools/make_golden_llama2c.py --random-110m FILE                # writes 110M random parameters, for measuring speed

The functions below say in numpy what llama2.c's run.c does: they read its files, encode, and take the likeliest token each time.
FOLDER holds stories260K.bin and tok512.bin (karpathy's tinyllamas). PROGRAM is run.c, compiled; with it the text that it prints must be
the text of the ids found here.

A file is seven int32 (dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, negative for a head of its own, seq_len) and then float32,
all little-endian; a tokenizer is an int32 (the longest token) and for every token a float32 score, an int32 length and its bytes.
"""

import argparse
import json
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "llama2c"
BOS = 1
PROMPTS = ["", "Once upon a time", "Lily saw a big", "Tim's  dog\n", "naïve 😀 \"yes\"", " a"]


@dataclass
class Sizes:
    """The header of a model file."""

    dim: int
    hidden: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int
    context: int
    tied: bool

    @property
    def head(self) -> int:
        return self.dim // self.heads

    def shapes(self) -> list[tuple[str, tuple[int, ...]]]:
        """The arrays of a file, in its order."""
        keys = self.kv_heads * self.head
        layer = [
            ("rms_att", (self.dim,)),
            ("wq", (self.dim, self.dim)),
            ("wk", (keys, self.dim)),
            ("wv", (keys, self.dim)),
            ("wo", (self.dim, self.dim)),
            ("rms_ffn", (self.dim,)),
            ("w1", (self.hidden, self.dim)),
            ("w2", (self.dim, self.hidden)),
            ("w3", (self.hidden, self.dim)),
        ]
        shapes = [("embedding", (self.vocab, self.dim))]
        shapes += [(name, (self.layers, *shape)) for name, shape in layer]
        shapes += [("rms_final", (self.dim,)), ("freq_real", (self.context, self.head // 2)), ("freq_imag", (self.context, self.head // 2))]
        return shapes if self.tied else [*shapes, ("head", (self.vocab, self.dim))]


def write_model(path: Path, sizes: Sizes, seed: int) -> None:
    """A model of random weights. The two tables of angles are written as run.c's training code does and read by nobody."""
    rng = np.random.default_rng(seed)
    vocab = sizes.vocab if sizes.tied else -sizes.vocab
    header = (sizes.dim, sizes.hidden, sizes.layers, sizes.heads, sizes.kv_heads, vocab, sizes.context)
    with path.open("wb") as file:
        file.write(struct.pack("<7i", *header))
        for name, shape in sizes.shapes():
            for part in range(shape[0] if len(shape) == 3 else 1):
                one = shape[1:] if len(shape) == 3 else shape
                values = rng.standard_normal(one, dtype=np.float32) * np.float32(0.5 if sizes.dim < 100 else 0.02)
                if name.startswith("rms"):
                    values = 1 + values / 4
                file.write(np.ascontiguousarray(values, dtype="<f4").tobytes())


def read_model(path: Path) -> tuple[Sizes, dict[str, np.ndarray]]:
    data = path.read_bytes()
    dim, hidden, layers, heads, kv_heads, vocab, context = struct.unpack_from("<7i", data)
    sizes = Sizes(dim, hidden, layers, heads, kv_heads, abs(vocab), context, vocab > 0)
    offset, arrays = 28, {}
    for name, shape in sizes.shapes():
        count = int(np.prod(shape))
        arrays[name] = np.frombuffer(data, "<f4", count, offset).reshape(shape)
        offset += 4 * count
    assert offset == len(data), (offset, len(data))
    return sizes, arrays


def norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    return weight * (x / np.sqrt((x * x).mean() + 1e-5))


class Model:
    """A model that reads a token at a time and remembers keys and values, in float64."""

    def __init__(self, sizes: Sizes, w: dict[str, np.ndarray]):
        self.sizes = sizes
        self.w = {name: array.astype(np.float64) for name, array in w.items()}
        self.keys, self.values = ([np.zeros((0, sizes.kv_heads, sizes.head)) for _ in range(sizes.layers)] for _ in range(2))

    def read(self, token: int) -> np.ndarray:
        """The logits behind a token."""
        sizes, w = self.sizes, self.w
        x = w["embedding"][token].copy()
        angle = len(self.keys[0]) / 10000.0 ** (np.arange(0, sizes.head, 2) / sizes.head)
        cos, sin = np.cos(angle), np.sin(angle)

        def turn(rows: np.ndarray) -> np.ndarray:
            pairs = rows.reshape(-1, sizes.head // 2, 2)
            even, odd = pairs[..., 0], pairs[..., 1]
            return np.stack([even * cos - odd * sin, even * sin + odd * cos], axis=-1).reshape(-1, sizes.head)

        for layer in range(sizes.layers):
            h = norm(x, w["rms_att"][layer])
            q = turn(w["wq"][layer] @ h).reshape(sizes.kv_heads, -1, sizes.head)
            self.keys[layer] = np.concatenate([self.keys[layer], turn(w["wk"][layer] @ h)[None]])
            self.values[layer] = np.concatenate([self.values[layer], (w["wv"][layer] @ h).reshape(1, -1, sizes.head)])
            scores = np.einsum("kgd,tkd->kgt", q, self.keys[layer]) / np.sqrt(sizes.head)
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            x = x + w["wo"][layer] @ np.einsum("kgt,tkd->kgd", shares, self.values[layer]).reshape(-1)
            h = norm(x, w["rms_ffn"][layer])
            gate = w["w1"][layer] @ h
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ h))
        return (w["embedding"] if sizes.tied else w["head"]) @ norm(x, w["rms_final"])

    def read_all(self, ids: list[int]) -> np.ndarray:
        """The logits behind the last of some tokens."""
        return [self.read(token) for token in ids][-1]


def read_tokenizer(path: Path) -> tuple[list[bytes], list[float]]:
    data = path.read_bytes()
    offset, tokens, scores = 4, [], []
    while offset < len(data):
        score, length = struct.unpack_from("<fi", data, offset)
        tokens.append(data[offset + 8 : offset + 8 + length])
        scores.append(score)
        offset += 8 + length
    return tokens, scores


def write_tokenizer(path: Path) -> None:
    """A small vocabulary: specials, bytes, characters and a few merges, some of them of equal score."""
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n"] + [b"<0x%02X>" % byte for byte in range(256)]
    scores = [0.0] * len(pieces)
    merges = [" a", "at", "th", " th", "the", " the", "on", "ce", "once", "On", "Once", " t", "ti", "im", "me", "  ", "é", "ly", "il", "Li"]
    for rank, piece in enumerate(merges):
        pieces.append(piece.encode())
        scores.append(-float(rank // 2))
    for character in " abcdefghijklmnopqrstuvwxyzABLOT.,'":
        pieces.append(character.encode())
        scores.append(-100.0)
    with path.open("wb") as file:
        file.write(struct.pack("<i", max(map(len, pieces))))
        for piece, score in zip(pieces, scores):
            file.write(struct.pack("<fi", score, len(piece)) + piece)


def encode(tokens: list[bytes], scores: list[float], text: str) -> list[int]:
    """The tokens of a text behind the one that begins it."""
    known = {token: i for i, token in reversed(list(enumerate(tokens)))}
    ids = [BOS]
    if text:
        ids.append(known[b" "])
    for character in text:
        whole = character.encode()
        ids += [known[whole]] if whole in known else [byte + 3 for byte in whole]
    while True:
        best = (-1e10, -1, -1)
        for place in range(len(ids) - 1):
            merged = known.get(tokens[ids[place]] + tokens[ids[place + 1]])
            if merged is not None and scores[merged] > best[0]:
                best = (scores[merged], merged, place)
        if best[1] < 0:
            return ids
        ids[best[2] : best[2] + 2] = [best[1]]


def decode(tokens: list[bytes], ids: list[int]) -> bytes:
    """The text of tokens, as run.c prints it: no space right behind the beginning, byte tokens as bytes."""
    text, before = b"", BOS
    for token in ids:
        piece = tokens[token]
        if before == BOS and piece.startswith(b" "):
            piece = piece[1:]
        if len(piece) == 6 and piece.startswith(b"<0x"):
            piece = bytes([int(piece[3:5], 16)])
        text, before = text + piece, token
    return text


def greedy(sizes: Sizes, w: dict[str, np.ndarray], ids: list[int], length: int) -> tuple[list[int], float]:
    """The likeliest continuation up to `length` tokens in all, and how close the two best logits ever came."""
    model, ids, closest = Model(sizes, w), list(ids), np.inf
    logits = model.read_all(ids)
    while len(ids) < length:
        first, second = np.sort(logits)[-1], np.sort(logits)[-2]
        closest = min(closest, float((first - second) / abs(first)))
        token = int(logits.argmax())
        if token == BOS:
            break
        ids.append(token)
        logits = model.read(token)
    return ids, closest


def stories(folder: Path, program: str | None) -> None:
    sizes, w = read_model(folder / "stories260K.bin")
    tokens, scores = read_tokenizer(folder / "tok512.bin")
    cases = []
    for prompt in PROMPTS:
        start = encode(tokens, scores, prompt)
        ids, closest = greedy(sizes, w, start, 200)
        text = decode(tokens, ids[1:])
        if program:
            model, vocabulary = str(folder / "stories260K.bin"), str(folder / "tok512.bin")
            command = [program, model, "-z", vocabulary, "-t", "0", "-n", str(len(ids) - 1), "-i", prompt]
            printed = subprocess.run(command, capture_output=True, check=True).stdout
            # It leaves out bytes of byte tokens that are not ASCII.
            assert printed.rstrip(b"\n") == bytes(byte for byte in text if byte < 128).rstrip(b"\n"), (printed, text)
            print(f"{prompt!r}: run.c prints the same {len(ids) - 1} tokens")
        cases.append({"prompt": prompt, "start": start, "ids": ids, "text": text.decode("utf-8", "replace"), "closest": closest})
    (GOLDEN / "stories260K.json").write_text(json.dumps(cases, ensure_ascii=False, indent=1) + "\n")


def tiny() -> None:
    GOLDEN.mkdir(parents=True, exist_ok=True)
    write_tokenizer(GOLDEN / "tokenizer.bin")
    tokens, scores = read_tokenizer(GOLDEN / "tokenizer.bin")
    golden = {"encodings": [{"text": text, "ids": encode(tokens, scores, text)} for text in PROMPTS]}
    for name, tied in [("tiny", True), ("untied", False)]:
        path = GOLDEN / f"{name}.bin"
        write_model(path, Sizes(16, 20, 2, 4, 2, len(tokens), 24, tied), 7)
        sizes, w = read_model(path)
        start = encode(tokens, scores, PROMPTS[1])
        ids, closest = greedy(sizes, w, start, 20)
        golden[name] = {"start": start, "logits": Model(sizes, w).read_all(start).tolist(), "ids": ids, "closest": closest}
    (GOLDEN / "tiny.json").write_text(json.dumps(golden, ensure_ascii=False) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--stories", type=Path)
    parser.add_argument("--run")
    parser.add_argument("--random-110m", type=Path)
    args = parser.parse_args()
    if args.random_110m:
        write_model(args.random_110m, Sizes(768, 2048, 12, 12, 12, 32000, 1024, True), 1)
    elif args.stories:
        stories(args.stories, args.run)
    else:
        tiny()


if __name__ == "__main__":
    main()
