"""Commands around planning: imported models, measured machines, schemas, the environment."""
