"""How long `frog data prepare` takes for a large text, and how much memory it needs.

    python benchmarks/data_prepare.py            1 GB of text, generated under the system's temporary folder
    python benchmarks/data_prepare.py --mb 100

The text is the embedded corpus over and over, its lines shuffled and every tenth word replaced by a random one, so
that neither the tokenizer's cache nor its table of words has it easy. Memory is the largest resident set of the
process that prepares; the claim is 1 GB of text within 1.5 GB.
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

from frog.data import open_prepared, python_docs

_LIMIT_BYTES = 1.5e9
_PREPARE = """
import sys
from pathlib import Path
from frog.data import prepare, read_corpus
text = Path(sys.argv[1])
prepare("large", lambda: read_corpus(text), source=text.name, root=text.parent / "data")
"""


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
    """Largest resident set; Linux tells KiB, macOS bytes."""
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
        splits = open_prepared("large", Path(folder, "data"), verify=True).manifest.splits
        num_tokens = sum(split.num_tokens for split in splits.values())
        text_bytes = text.stat().st_size
    print(f"text                  {text_bytes / 1e6:.0f} MB, {num_tokens / 1e6:.1f} M tokens")
    print(f"cores                 {os.cpu_count()}")
    print(f"time                  {dur_s:.1f} s, {text_bytes / 1e6 / dur_s:.1f} MB/s (two passes over the text)")
    print(f"largest resident set  {memory_bytes / 1e6:.0f} MB")
    verdict = "held" if memory_bytes <= _LIMIT_BYTES else "BROKEN"
    print(f"claim                 at most {_LIMIT_BYTES / 1e6:.0f} MB: {verdict}")


if __name__ == "__main__":
    main()
