"""Compare the learner's counts with real models, and with counts under each misconception."""

from collections.abc import Callable
from typing import Any

from ranks import LAB, make_configs

from frog.core.config import ModelConfig
from frog.learn.grader.grade import Grade
from frog.train.model.transformer import TinyTransformer


def check(grade: Grade) -> None:
    found = grade.call({"seed": grade.seed}).values[0]
    configs = make_configs(grade.seed)
    counted = [count(config) for config in configs]
    check_numbers(grade, found["parameters"], counted, configs, "weights", BELIEFS)
    right = [16 * number for number in counted]
    check_numbers(grade, found["bytes"], right, configs, "bytes", {})
    two, four = grade.call({"seed": grade.seed}, work="train_both", seconds=20).values[0]
    ratio = four["seconds"] / two["seconds"]
    grade.measured("config.json with 2 and 4 layers", f"{counted[0]:,} and {counted[1]:,} weights")
    grade.measured("loss after 12 steps, 2 and 4 layers", f"{two['loss']:.3f} and {four['loss']:.3f}")
    grade.measured("a step, 2 and 4 layers", f"{1e3 * two['seconds']:.0f} and {1e3 * four['seconds']:.0f} ms")
    grade.predicted("weights-of-4-layers", counted[1])
    grade.predicted("bytes-of-4-layers", 16 * counted[1])
    grade.predicted("time-of-4-layers", ratio)
    grade.note("Twice the layers mean less than twice the weights and the time: the embedding and head stay the same.")


def check_numbers(
    grade: Grade,
    found: list[Any],
    right: list[int],
    configs: list[dict[str, Any]],
    what: str,
    beliefs: dict[str, Callable[[dict[str, Any]], int]],
) -> None:
    wrong = next((n for n, pair in enumerate(zip(found, right, strict=True)) if pair[0] != pair[1]), None)
    if wrong is None:
        return
    config, number = configs[wrong], found[wrong]
    sizes = ", ".join(f"{name} {value}" for name, value in config.items() if name not in LAB or value != LAB[name])
    if isinstance(number, bool) or not isinstance(number, int | float):
        grade.reject("unknown", f"Expected a number of {what}, found {type(number).__name__}.")
    has = "its training needs" if what == "bytes" else "the model has"
    text = f"{sizes or 'config.json of the course'}: you returned {number:,} {what}, but {has} {right[wrong]:,}."
    for belief, formula in beliefs.items():
        if found == [formula(config) for config in configs]:
            grade.reject(belief.split(".")[0], text)
    factors = {4: "weights-alone", 8: "weights-alone", 12: "half-of-adam"}
    for factor, belief in factors.items() if what == "bytes" else ():
        if found == [16 * 0 + value // 16 * factor for value in right]:
            grade.reject(belief, f"{text} That is {factor} bytes per weight.")
    grade.reject("unknown", text)


def count(config: dict[str, Any]) -> int:
    """Count the weights of a model built from the config."""
    return sum(weight.numel() for weight in TinyTransformer(ModelConfig(**config)).parameters())


def formula(c: dict[str, Any], **change: int) -> int:
    """Count the weights; `change` maps a part to the wrong count that replaces it."""
    D, F, V, L = c["hidden_size"], c["intermediate_size"], c["vocab_size"], c["num_hidden_layers"]
    kv = D // c["num_attention_heads"] * c["num_key_value_heads"]
    parts = {
        "queries": 2 * D * D,
        "keys": 2 * D * kv,
        "ffn": 3 * D * F,
        "norms": 2 * D,
        "layers": L,
        "embedding": V * D,
        "last": D,
        "head": 0 if c["tie_word_embeddings"] else V * D,
        "more": 0,
    } | change
    layer = parts["queries"] + parts["keys"] + parts["ffn"] + parts["norms"]
    return parts["layers"] * layer + parts["embedding"] + parts["last"] + parts["head"] + parts["more"]


def biases(c: dict[str, Any], last: int = 0) -> int:
    D, F = c["hidden_size"], c["intermediate_size"]
    kv = D // c["num_attention_heads"] * c["num_key_value_heads"]
    return formula(c, more=c["num_hidden_layers"] * (3 * D + 2 * kv + 2 * F) + last)


BELIEFS: dict[str, Callable[[dict[str, Any]], int]] = {
    "heads-multiply": lambda c: formula(c, queries=2 * c["hidden_size"] ** 2 * c["num_attention_heads"]),
    "heads-multiply.2": lambda c: formula(
        c,
        queries=2 * c["hidden_size"] ** 2 * c["num_attention_heads"],
        keys=2 * c["hidden_size"] ** 2 * c["num_key_value_heads"],
    ),
    "heads-multiply.3": lambda c: formula(
        c,
        queries=2 * c["hidden_size"] ** 2 * c["num_attention_heads"],
        keys=2 * c["hidden_size"] ** 2 * c["num_attention_heads"],
    ),
    "keys-as-wide-as-queries": lambda c: formula(c, keys=2 * c["hidden_size"] ** 2),
    "tied-twice": lambda c: formula(c, head=c["vocab_size"] * c["hidden_size"]),
    "head-forgotten": lambda c: formula(c, head=0),
    "norms-forgotten": lambda c: formula(c, norms=0, last=0),
    "norms-forgotten.2": lambda c: formula(c, last=0),
    "norms-forgotten.3": lambda c: formula(c, norms=0),
    "norms-forgotten.4": lambda c: formula(c, norms=c["hidden_size"]),
    "norms-forgotten.5": lambda c: formula(c, norms=c["hidden_size"], last=0),
    "ffn-of-two": lambda c: formula(c, ffn=2 * c["hidden_size"] * c["intermediate_size"]),
    "ffn-is-four-times": lambda c: formula(c, ffn=12 * c["hidden_size"] ** 2),
    "ffn-is-four-times.2": lambda c: formula(c, ffn=8 * c["hidden_size"] ** 2),
    "biases-counted": biases,
    "biases-counted.2": lambda c: biases(c, c["vocab_size"]),
    "layers-multiply-all": lambda c: c["num_hidden_layers"] * formula(c, layers=1),
    "layers-multiply-all.2": lambda c: formula(c, last=c["hidden_size"] * c["num_hidden_layers"]),
    "one-layer": lambda c: formula(c, layers=1),
    "positions-counted": lambda c: formula(c, more=c["max_position_embeddings"] * c["hidden_size"]),
}
