"""Released engines and transfer engines: fetched by version into a cache, never into the project's own environment."""
