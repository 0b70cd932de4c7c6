"""PersonaPlex-7B-v1: Mimi codec, temporal transformer, depformer, prompts and the batched 80 ms unit step."""
