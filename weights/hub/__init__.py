"""The Hugging Face hub: which files of a repository are needed, fetching them, and the cache they are kept in."""
