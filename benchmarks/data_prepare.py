"""Time and memory of `frog data prepare` for a large text.

    python benchmarks/data_prepare.py            1 GB of text, generated under the system's temporary folder
    python benchmarks/data_prepare.py --mb 100

The text repeats the embedded corpus, with its lines shuffled and every tenth word replaced by a random one, so that
neither the tokenizer's cache nor its word table makes the task easy. Memory is the largest resident set of the
preparing process; the claim is 1 GB of text within 1.5 GB. For comparison, the tokenizer library alone encodes the same
pieces of the text's first 100 MB, all in memory, without processing the tokens.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from frog.train.data import open_prepared, python_docs

_LIMIT_BYTES = 1.5e9
_PREPARE = """
import sys
from pathlib import Path
from frog.train.data import prepare, read_corpus
text = Path(sys.argv[1])
prepare("large", lambda: read_corpus(text), source=text.name, root=text.parent / "data")
"""
_FEED = """
import sys, time
from pathlib import Path
from frog.train.data import load_tokenizer
from frog.train.data.cutting import pieces
tokenizer = load_tokenizer(Path(sys.argv[1], "data", "large", "tokenizer.json"))
text = open(Path(sys.argv[1], "large.txt"), encoding="utf-8").read(100_000_000)
texts = list(pieces(text))
start_s = time.perf_counter()
for first in range(0, len(texts), 32):
    tokenizer.encode_batch_fast(texts[first : first + 32], add_special_tokens=False)
print(len(text.encode()) / (time.perf_counter() - start_s))
"""
_TARGET = 0.8


def write_text(path: Path, num_bytes: int) -> None:
    """Write about `num_bytes` of English with many words that occur once."""
    lines = [line for document in python_docs() for line in document.text.splitlines(keepends=True)]
    generator = random.Random(1337)
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < num_bytes:
            words = "".join(generator.sample(lines, 2000)).split(" ")
            for place in range(0, len(words), 10):
                words[place] = "".join(generator.choices("etaoinshrdlu", k=8))
            written += file.write(" ".join(words) + "\n\n")


def max_resident_bytes(usage: resource.struct_rusage) -> int:
    """Return the largest resident set; Linux reports KiB, macOS bytes."""
    return usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=1000, help="megabytes of text (default: %(default)s)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder, "large.txt")
        write_text(text, args.mb * 1_000_000)
        start_s = time.perf_counter()
        subprocess.run([sys.executable, "-c", _PREPARE, str(text)], check=True)
        dur_s = time.perf_counter() - start_s
        memory_bytes = max_resident_bytes(resource.getrusage(resource.RUSAGE_CHILDREN))
        fed = subprocess.run([sys.executable, "-c", _FEED, folder], check=True, capture_output=True, text=True)
        splits = open_prepared("large", Path(folder, "data"), verify=True).manifest.splits
        num_tokens = sum(split.num_tokens for split in splits.values())
        text_bytes = text.stat().st_size
    print(f"text                  {text_bytes / 1e6:.0f} MB, {num_tokens / 1e6:.1f} M tokens")
    print(f"cores                 {os.cpu_count()}")
    print(f"time                  {dur_s:.1f} s, {text_bytes / 1e6 / dur_s:.1f} MB/s (two passes over the text)")
    mb_per_s, fed_mb_per_s = text_bytes / 1e6 / dur_s, float(fed.stdout) / 1e6
    verdict = "reached" if mb_per_s >= _TARGET * fed_mb_per_s else "NOT reached"
    print(f"the library alone     {fed_mb_per_s:.1f} MB/s, fed from memory")
    print(f"target                {_TARGET} of the library: {mb_per_s / fed_mb_per_s:.2f}, {verdict}")
    print(f"largest resident set  {memory_bytes / 1e6:.0f} MB")
    verdict = "held" if memory_bytes <= _LIMIT_BYTES else "BROKEN"
    print(f"claim                 at most {_LIMIT_BYTES / 1e6:.0f} MB: {verdict}")


if __name__ == "__main__":
    main()
