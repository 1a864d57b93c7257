"""One mutator for every text that sartor reads: JSON, TOML, YAML, CSV, scripts, and bytes that are none of them."""

from __future__ import annotations

import random
import re

TOKENS = re.compile(r'"(?:[^"\\\n]|\\.)*"|-?\d[\w.+-]*|[A-Za-z_][\w-]*|\s+|.', re.DOTALL)
NUMBER = re.compile(r"-?\d")
NUMBERS = (
    *("0", "-1", "1", "1.5", "-0.0", "0.1", "2", "3", "7", "63", "65", "100000", "16777217", "2147483648", "1e-30"),
    *(
        "1e30",
        "1e308",
        "1e400",
        "-1e9",
        "9007199254740993",
        "1" + "0" * 30,
        "9" * 4300,
        "NaN",
        "nan",
        "inf",
        "Infinity",
    ),
)
WORDS = (
    *("null", "None", "true", "false", '""', '"x"', "[]", "{}", "[1, 2]", "[[]]", '{"a": 1}', "abc", '"\\u0000"', "''"),
    *(
        '"\\u001b[31m"',
        '"../../x"',
        '"1e3"',
        '"٣"',
        "'\u202e'",
        '"' + "y" * 500 + '"',
        "[" * 70,
        "$(id)",
        "${X:-8}",
        "*",
    ),
)
PIECES = (
    "\n",
    ",",
    "=",
    ":",
    "[",
    "]",
    "{",
    "}",
    '"',
    "'",
    "#",
    "\\",
    "\t",
    "\x00",
    "\x1b[2J",
    "\ufeff",
    "a.b.c = 1\n",
)


def mutated(sample: bytes, rng: random.Random) -> bytes:
    """A sample with one to three changes, most of them to single tokens."""
    data = sample
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choices((_tokens, _lines, _bytes), (80, 12, 8))[0](data, rng)
    return data


def _tokens(data: bytes, rng: random.Random) -> bytes:
    """Another value in a token's place; a token left out, twice, or another's."""
    found = TOKENS.findall(data.decode(errors="surrogateescape"))
    solid = [i for i, token in enumerate(found) if not token.isspace()]
    if not solid:
        return _bytes(data, rng)
    numbers = [i for i in solid if NUMBER.match(found[i])]
    i = rng.choice(numbers) if numbers and rng.random() < 0.6 else rng.choice(solid)
    change = rng.random()
    if change < 0.75:
        values = NUMBERS if NUMBER.match(found[i]) and rng.random() < 0.8 else (*WORDS, *NUMBERS)
        found[i] = _scaled(found[i], rng) if NUMBER.match(found[i]) and rng.random() < 0.3 else rng.choice(values)
    elif change < 0.85:
        found[i] = ""
    elif change < 0.9:
        found[i] *= 2
    elif change < 0.95:
        found[i] = found[rng.choice(solid)]
    else:
        found[i] += rng.choice(PIECES)
    return "".join(found).encode(errors="surrogateescape")


def _scaled(token: str, rng: random.Random) -> str:
    """A number near or far from the one that was there."""
    try:
        value = float(token) * rng.choice((-1, 0.001, 0.5, 2, 3, 1000, 1e6)) + rng.choice((0, 0, 1))
    except ValueError:
        return "1"
    return str(int(value)) if abs(value) < 1e15 and rng.random() < 0.8 else str(value)


def _lines(data: bytes, rng: random.Random) -> bytes:
    """Lines left out, doubled or swapped; the end cut off."""
    lines = data.splitlines(keepends=True) or [b""]
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    change = rng.random()
    if change < 0.35:
        del lines[i]
    elif change < 0.6:
        lines.insert(j, lines[i])
    elif change < 0.8:
        lines[i], lines[j] = lines[j], lines[i]
    elif change < 0.83:
        lines[i] *= 1000
    else:
        return data[: rng.randrange(len(data) + 1)]
    return b"".join(lines)


def _bytes(data: bytes, rng: random.Random) -> bytes:
    """A flipped bit, a piece of syntax or some noise."""
    at = rng.randrange(len(data) + 1)
    change = rng.random()
    if change < 0.5 and at < len(data):
        return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]
    noise = rng.choice(PIECES).encode() if change < 0.9 else rng.randbytes(rng.randrange(64))
    return data[:at] + noise + data[at:]
