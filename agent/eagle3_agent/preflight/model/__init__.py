"""The model's folder: shards, configuration, tokenizer."""
