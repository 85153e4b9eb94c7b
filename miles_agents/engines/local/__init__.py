"""In-process decoding with PyTorch: KV cache, continuous batching, the same bits whatever the neighbours.

| module | what it holds |
|---|---|
| `engine` | `LocalEngine`, the asynchronous front |
| `worker` | the one thread that owns the model and all state |
| `scheduler` | which request has which slot; plain Python |
| `model` | a Hugging Face causal LM run over the slots of one KV cache |
| `shapes` | the tensor shapes used, proved bit-equal when a model is loaded |
| `sampling` | from logits to tokens and logprobs |
| `weights` | checked replacement of all weights |
"""
