"""What a call of a traced model does, and the step that runs it on shards."""
