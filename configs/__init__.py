"""One experiment a file: each defines get_config() -> ml_collections.ConfigDict."""
