#!/usr/bin/env python3
"""Golden files for crates/text, made by Hugging Face `tokenizers`.

Needs Python 3.10 or newer and exactly tokenizers==0.23.3:

    python3 -m venv venv && venv/bin/pip install tokenizers==0.23.3
    venv/bin/python tools/make_golden_tokenizer.py            # writes tests/golden/tokenizer/{texts,*.golden,*.imported}.json
    cargo test -p ironmill-text -- --ignored rewrite          # writes tests/golden/tokenizer/*.tokenizer.json
    venv/bin/python tools/make_golden_tokenizer.py --check    # those load there and give the golden ids

`texts.json` holds the documents and the probe strings. Each `NAME.golden.json` holds one training: its settings, the
merges, the ids of every probe as ordinary text, and where they differ the ids with special tokens recognised (else
null). The Rust tests train on the same documents and must find the same.

Each `NAME.imported.json` holds a whole tokenizer.json of a kind that is read but not trained here, with the ids of every probe
(all added tokens recognised, those that are not special, and framed by the post-processor) and the text they decode to.
All texts are written for this file, or drawn from word lists below by a fixed generator.
"""

import json
import sys
from pathlib import Path

import tokenizers
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

VERSION = "0.23.3"
FOLDER = Path(__file__).resolve().parent.parent / "tests" / "golden" / "tokenizer"

CL100K = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

# Llama 3 has cl100k's regular expression. gpt2 is not here: it is ByteLevel's own.
REGEXES = {"cl100k": CL100K, "o200k": O200K, "llama3": CL100K, "qwen2": QWEN2}

# `max_token_length` is ours: no token is longer. The Hugging Face trainer keeps tokens shorter than its own limit.
CASES = {
    "gpt2": dict(pattern="gpt2", vocab_size=1100, special=["<|endoftext|>"]),
    "cl100k": dict(pattern="cl100k", vocab_size=1100, special=["<|endoftext|>", "<|end|>", "<|end|><|end|>"]),
    "o200k": dict(pattern="o200k", vocab_size=1000, special=["<|endoftext|>", "<|endofprompt|>"]),
    "llama3": dict(pattern="llama3", vocab_size=500, special=["<|begin_of_text|>", "<|endoftext|>"]),
    "qwen2": dict(pattern="qwen2", vocab_size=800, special=["<|endoftext|>", "<|im_start|>", "<|im_end|>"]),
    "limits": dict(pattern="gpt2", vocab_size=3000, special=[], min_count=4, max_token_length=5),
    "regex": dict(pattern=r"[a-z]+|\d", vocab_size=700, special=["<s>"]),
}

DOCUMENTS = [
    "The mill stood by the river, and the river turned the wheel. When the rain was heavy the wheel ran fast, and the "
    "miller's daughter laughed; when the summer was dry it stood still, and nobody laughed at all.\n\nOne morning she "
    "found a small iron key under the third stone. \"It isn't ours,\" said the miller. \"Then whose is it?\" she asked.",
    "Whose was it? They'd asked the smith, they'd asked the baker, they had asked the old woman who sold eggs. I've "
    "never seen it, said one. I'm sure it's from the castle, said another. We'll see, the miller said, we'll see.",
    "A list of things to carry:\n  - bread (2 loaves)\n  - water, 1500 ml\n  - rope: 12 m, 8 mm\n  - the key\n\n\n"
    "Do NOT carry: stones, worries, or more than 10 kg. See page 42, table 3.14, or call 555-0199 before 17:30.",
    "Млин стояв біля річки, і річка крутила колесо. Коли йшов дощ, колесо крутилося швидко, і мельникова донька "
    "сміялася; коли літо було сухе, колесо стояло, і ніхто не сміявся.\nОдного ранку вона знайшла малий залізний ключ "
    "під третім каменем. «Він не наш», — сказав мельник. «То чий же він?» — спитала вона. П'ять днів вони питали.",
    "Ключ лежав на столі. Донька дивилася на ключ, мельник дивився на доньку, а кіт дивився на сметану. Увечері прийшов "
    "коваль і сказав: «Такий ключ робив ще мій дід». Її очі засяяли. Завтра, сказала вона, завтра підемо до замку.",
    "河边有一座磨坊,河水推动着水车。下雨的时候水车转得很快,磨坊主的女儿就笑;夏天干旱的时候水车不动,谁也不笑。"
    "一天早上,她在第三块石头下面找到了一把小小的铁钥匙。“这不是我们的。”磨坊主说。“那是谁的呢?”她问。",
    "钥匙放在桌子上。女儿看着钥匙,磨坊主看着女儿,猫看着奶油。晚上铁匠来了,他说:“这样的钥匙是我爷爷做的。”"
    "明天,她说,明天我们去城堡。城堡在山上,山上有雪,雪下有一扇门。门有1个锁,2个把手,30颗钉子。",
    "Good morning ☀️! The wheel 🎡 is turning, the bread 🍞🍞🍞 is ready, and the cat 🐈 sleeps. 👩‍🌾 says hi 👋🏽, 👨‍👩‍👧 too. "
    "Rain tomorrow? ☔☔ Maybe 🤷. 🇺🇦 🇭🇺 ❤️❤️ 100% 💯!!! :-) ;) <3",
    "fn turn(wheel: &mut Wheel, water: u64) -> Result<u64, Error> {\n    if water == 0 {\n        return Err(Error::Dry);\n"
    "    }\n    for tooth in 0..wheel.teeth {\n        wheel.angle += water * 0x1F % 360; // It's modular.\n    }\n"
    "    Ok(wheel.angle)\n}\n",
    "def turn(wheel, water=0):\n    \"\"\"Turn the wheel; return its angle.\"\"\"\n    if not water:\n        raise ValueError(f\"dry: {water!r}\")\n"
    "    for i in range(len(wheel.teeth)):\n\t\twheel.angle += (water << 3) ^ i\n    return wheel.angle % 360\n\n\n"
    "print(turn(Wheel(teeth=[1] * 16), water=2_500))  # 40\n",
    "{\"name\": \"mill\", \"wheels\": [{\"id\": 1, \"teeth\": 16}, {\"id\": 2, \"teeth\": 24}], \"open\": true, \"owner\": null, "
    "\"price\": 12.50}\r\n<mill><wheel id='1'/>&nbsp;</mill>\r\nSELECT id, teeth FROM wheels WHERE teeth >= 16;\r\n",
    "aaaaaaaaaaaaaaaa aaaa aaaaaaa bababababa abababab hahahahaha ha-ha-ha ........ ---- ==== ####\n",
    "Le moulin était près de la rivière; l'eau tournait la roue. Où est la clé? Là-bas, à côté du château, peut-être. "
    "Ähnlich rauschen Bäche, größer wird das Glück. Őszi szél fúj, hűvös az idő, a kulcs az asztalon fekszik.\t\tΤέλος.",
]

WORDS = (
    "the a and of to in that it was he she they said went saw river wheel mill stone key door castle snow bread cat "
    "morning evening water turn turned turning laugh laughed laughing small smaller smallest iron old older never ever "
    "млин річка колесо ключ камінь донька двері сніг ранок вечір вода 磨坊 河水 钥匙 石头 门 雪 女儿 1 12 123 1234 2024"
).split()

PROBES = [
    "",
    " ",
    "the",
    "The miller's daughter turned the wheel, and they'd laughed: \"It isn't ours!\"",
    "Unseen words: xylophone, quizzical, zephyr; ALL CAPS, camelCaseNames, snake_case_names.",
    "I'VE SEEN IT'S 'Ve 'LL 're''s d'accord 'ſ",
    "Мельникова донька знайшла ключ. Щастя, їжак, ґанок, Європа, п'ять.",
    "磨坊主的女儿找到了一把钥匙,雪下有一扇门。全角:,。!?「」",
    "日本語のテキスト 한국어 텍스트 ไทย العربية עברית हिन्दी",
    "🐈🍞 👩‍🌾👋🏽 🇺🇦❤️ 🏴󠁧󠁢󠁳󠁣󠁴󠁿 ☔",
    "    if water == 0:\n        return Err(Error::Dry)  # 0x1F\n\n\n\n\t\tprint('x')\r\n\r\n",
    "1 12 123 1234 12345678901234567890 3.14159 1,000,000 ½ ² Ⅷ ٣٤",
    "  two  three   four    \n \n  \t x\u00a0y\u2003z\u3000w\u0085v\u200bu ",
    "\n\n\n", "   ", "a   ", "   a", "\r\n\r", "\u2028\u2029\x0b\x0c\x1c",
    "<|endoftext|>", "a<|end|>b", "<|end|><|end|><|end|>", "<|endof", "<s>x</s>",
    "a" * 300, "ab" * 150, "ha" * 77 + "h", " " * 200 + "x", "!" * 130, "7" * 100, "中" * 90,
    "é e\u0301 ñ n\u0303 \ufb01 \u212b \u0130 ß ẞ",
    "\x00\x01\x02\x7f\x80\x9f\xa0\xad\xff",
    "HTTPServer's XMLHttpRequest DON'T'll iPhone's McDonald'S ǅungla ʰMod e\u0301E\u0301x \u0301 path/to//file/\n/\r\n /x",
    "\ufeffBOM \ufffd replaced \U0010ffff last",
]


# What only imported kinds tell apart: spaces at borders, added tokens with rules, `▁` itself, accents, control characters.
IMPORT_PROBES = [
    " the mill", "the  mill ", "mill", "windmill mill, mill_ mill", "a <m> b", "a \t<m>\n<m>  the", "<m>", "<s>the</s> the", " <s> ",
    "▁the▁▁mill ▁", "the the the", "the\n\nmill\n\n\n", "MILL Mill mill", "[CLS] the [MASK] mill [SEP]", "ÀÉÎõü Straße ΣΑΣ İ ǅ",
    "the\u200bmill\u00admill\ufeff \ue000", "it's we've don't, isn't: do not. ' x ' !", "a" * 41, "the " * 60, "x中y 中文", "<0x0A><0x41>",
    "\u05d0\u05c8\u05b0 e\u05c9\u0301", "٣٤ ½ ② — « » … ‖ ‿ ¿", "\x85\xa0\u2028\u3000x",
]


class Numbers:
    """A small fixed generator, so that the files do not depend on Python's."""

    def __init__(self, seed):
        self.state = seed

    def below(self, bound):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 33) % bound


def documents():
    numbers = Numbers(1)
    drawn = []
    for _ in range(60):
        words = [WORDS[min(numbers.below(len(WORDS)), numbers.below(len(WORDS)))] for _ in range(8 + numbers.below(30))]
        drawn.append(" ".join(words) + "." * numbers.below(3))
    return DOCUMENTS + drawn


def probes():
    numbers = Numbers(2)
    random = []
    for length in (8, 40, 150):
        octets = bytes(numbers.below(256) for _ in range(length))
        random += [octets.decode("latin-1"), octets.decode("utf-8", errors="replace")]
    for _ in range(12):
        # Any code points but surrogates, mostly from the low planes, between letters and spaces.
        codes = [numbers.below([0x80, 0x800, 0x3000, 0xD800, 0x110000][numbers.below(5)]) for _ in range(24)]
        random.append("".join("xX" if 0xD800 <= code < 0xE000 else chr(code) + " a1"[numbers.below(3)] for code in codes))
    return PROBES + random


def pre_tokenizer(pattern):
    if pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    split = pre_tokenizers.Split(Regex(REGEXES.get(pattern, pattern)), "isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(case, texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(case["pattern"])
    tokenizer.decoder = decoders.ByteLevel()
    limits = {}
    if "max_token_length" in case:
        limits["max_token_length"] = case["max_token_length"] + 1
    trainer = trainers.BpeTrainer(
        vocab_size=case["vocab_size"],
        special_tokens=case["special"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=case.get("min_count", 0),
        show_progress=False,
        **limits,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def ordinary_ids(tokenizer, text):
    """The ids without recognising special tokens: the pieces through the model alone."""
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(text)
    return [token.id for piece, _ in pieces for token in tokenizer.model.tokenize(piece)]


def ids_with_special(tokenizer, text):
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    return None if ids == ordinary_ids(tokenizer, text) else ids


def golden(case, tokenizer, texts):
    model = json.loads(tokenizer.to_str())["model"]
    return {
        "made_with": f"tokenizers=={VERSION}",
        **{"min_count": 0, "max_token_length": None, **case},
        "n_tokens": tokenizer.get_vocab_size(),
        "merges": [" ".join(pair) for pair in model["merges"]],
        "ids": [ordinary_ids(tokenizer, text) for text in texts],
        "ids_with_special": [ids_with_special(tokenizer, text) for text in texts],
    }


BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def all_splits(tokenizer):
    """Merges as a converter of SentencePiece models writes them: every split of every token, in order of the result's id."""
    file = json.loads(tokenizer.to_str())
    vocab = file["model"]["vocab"]
    merges = []
    for token, _ in sorted(vocab.items(), key=lambda entry: entry[1]):
        splits = [(token[:at], token[at:]) for at in range(1, len(token))]
        known = [split for split in splits if split[0] in vocab and split[1] in vocab and token not in BYTES]
        merges += sorted(known, key=lambda split: (vocab[split[0]], vocab[split[1]]))
    file["model"]["merges"] = merges
    return file


def sentencepiece(texts, vocab_size, normalizer, pre_tokenizer, strips, special, has_bytes):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=has_bytes))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=["<unk>", "<s>", "</s>"] + (BYTES if has_bytes else []),
        limit_alphabet=90,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    file = all_splits(tokenizer)
    file["added_tokens"] = [added for added in file["added_tokens"] if added["content"] not in BYTES]
    tokenizer = Tokenizer.from_str(json.dumps(file))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strips else []))
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    tokenizer.add_tokens(special)
    return tokenizer


def wordpiece(texts, vocab_size, normalizer, cleanup, special):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=40))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=names, limit_alphabet=120, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=cleanup)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.add_tokens(special)
    return tokenizer


def imported(texts):
    replace = normalizers.Replace(" ", "▁")
    words = [AddedToken("<m>", lstrip=True, rstrip=True, normalized=False, special=True), AddedToken("mill", single_word=True)]
    return {
        "llama2": sentencepiece(
            texts, 700, normalizers.Sequence([normalizers.Prepend("▁"), replace]), None, True, words, True
        ),
        "gemma": sentencepiece(texts, 700, replace, None, False, [AddedToken("\n\n", normalized=False), AddedToken("the the")], True),
        "metaspace": sentencepiece(
            texts, 700, None, pre_tokenizers.Metaspace("▁", prepend_scheme="first", split=False), True, words, True
        ),
        "unknown": sentencepiece(texts, 400, None, pre_tokenizers.Metaspace("▁"), True, [], False),
        "bert": wordpiece(texts, 900, normalizers.BertNormalizer(), True, [AddedToken("MILL")]),
        "bert-cased": wordpiece(
            texts, 900, normalizers.BertNormalizer(lowercase=False, handle_chinese_chars=False), False, words
        ),
    }


def imported_golden(tokenizer, texts):
    def ids(text, framed=False):
        return tokenizer.encode(text, add_special_tokens=framed).ids

    with_special = [ids(text) for text in texts]
    framed = [ids(text, True) for text in texts]
    decoded = [tokenizer.decode(row, skip_special_tokens=False) for row in with_special]
    tokenizer.encode_special_tokens = True
    ordinary = [ids(text) for text in texts]
    tokenizer.encode_special_tokens = False
    file = json.loads(tokenizer.to_str())
    return {"made_with": f"tokenizers=={VERSION}", "file": file, "ids": with_special, "framed": framed, "ordinary": ordinary, "decoded": decoded}


def write(name, value):
    # One list a line keeps the files small and their differences readable.
    lines = []
    for key, part in value.items():
        if key in ("documents", "probes", "ids", "ids_with_special", "framed", "ordinary", "decoded"):
            rows = ",\n".join(json.dumps(row, ensure_ascii=True, separators=(",", ":")) for row in part)
            lines.append(f"{json.dumps(key)}: [\n{rows}\n]")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(part, ensure_ascii=False)}")
    (FOLDER / name).write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def check():
    texts = json.loads((FOLDER / "texts.json").read_text(encoding="utf-8"))["probes"]
    paths = sorted(FOLDER.glob("*.tokenizer.json"))
    for path in paths:
        name = path.name.removesuffix(".tokenizer.json")
        expected = json.loads((FOLDER / f"{name}.golden.json").read_text(encoding="utf-8"))
        tokenizer = Tokenizer.from_file(str(path))
        assert tokenizer.get_vocab_size() == expected["n_tokens"], name
        assert [ordinary_ids(tokenizer, text) for text in texts] == expected["ids"], name
        assert [ids_with_special(tokenizer, text) for text in texts] == expected["ids_with_special"], name
        for text, ids in zip(texts, expected["ids"], strict=True):
            assert tokenizer.decode(ids, skip_special_tokens=False) == text, (name, text)
    print(f"{len(paths)} tokenizers give the golden ids and texts on {len(texts)} probes each")


def main():
    if tokenizers.__version__ != VERSION:
        sys.exit(f"tokenizers is {tokenizers.__version__}: install tokenizers=={VERSION}")
    if sys.argv[1:] == ["--check"]:
        return check()
    if sys.argv[1:]:
        sys.exit("usage: make_golden_tokenizer.py [--check]")
    FOLDER.mkdir(parents=True, exist_ok=True)
    write("texts.json", {"documents": documents(), "probes": probes()})
    for name, case in CASES.items():
        write(f"{name}.golden.json", golden(case, train(case, documents()), probes()))
    more = probes() + IMPORT_PROBES
    for name, tokenizer in imported(documents()).items():
        write(f"{name}.imported.json", {"probes": IMPORT_PROBES, **imported_golden(tokenizer, more)})
    print(f"wrote {len(CASES)} trainings with {len(probes())} probes to {FOLDER.name}")


if __name__ == "__main__":
    main()
