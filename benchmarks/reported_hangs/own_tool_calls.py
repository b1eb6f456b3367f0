# openai/gpt-oss#270: each model-parallel rank samples for itself, and a token that calls a tool leads only some ranks
# to exchange its result.
import enum

import torch
import torch.distributed as dist


class Token(enum.IntEnum):
    END = 0
    CALL = 1


class TokenGenerator:
    def __init__(self, temperature=1.0, vocabulary=10):
        self.random = torch.Generator()
        self.random.seed()
        self.random.manual_seed(11 + 3 * dist.get_rank())
        self.temperature, self.vocabulary = temperature, vocabulary

    def mlp(self, token):
        hidden = torch.full((self.vocabulary,), 0.1 * token)
        dist.all_reduce(hidden)
        return hidden

    def sample(self, logits):
        probabilities = (logits / self.temperature).softmax(-1)
        return torch.multinomial(probabilities, 1, generator=self.random).item()  # here

    def generate(self, token, most):
        for _ in range(most):
            token = self.sample(self.mlp(token))  # here
            yield token


class Chat:
    def __init__(self, generator):
        self.generator, self.text = generator, []

    def use_tool(self):
        result = torch.zeros(3)
        dist.broadcast(result, src=0)  # here
        return result

    def run(self):
        for token in self.generator.generate(5, most=60):
            if token == Token.CALL:  # here
                self.use_tool()  # here
            self.text.append(token)
        return len(self.text)


def main():
    dist.init_process_group("gloo")
    print(Chat(TokenGenerator()).run())  # here
    dist.destroy_process_group()


main()
