def num_parameters(c):
    d = c["hidden_size"]
    share = c["num_key_value_heads"] / c["num_attention_heads"]
    layer = d * (2 * d * (1 + share) + 3 * c["intermediate_size"] + 2)
    tables = 1 if c["tie_word_embeddings"] else 2
    return round(tables * c["vocab_size"] * d + c["num_hidden_layers"] * layer + d)


def training_bytes(c):
    return 16 * num_parameters(c)
