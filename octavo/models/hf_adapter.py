"""A transformers model as the model runner sees it: flattened tokens in, hidden states out, logits on request.

    hidden = model.forward(token_ids, positions, query_start, seq_lens)   [T, hidden_size]
    logits = model.compute_logits(hidden[rows])                           [N, vocab_size], in compute dtype

`forward` runs every layer over the step's tokens; the attention layers read their `AttentionGroup.metadata`, which the
model runner sets before each call. `compute_logits` runs the model's own head on any rows of `hidden` (each request's
last row for sampling, or many rows in chunks for prompt log probabilities), with all the scaling and soft-capping that
the model's class applies; rows are independent of each other.
"""
