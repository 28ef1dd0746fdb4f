"""The Hugging Face hub: choose the files of a repository that a model needs, fetch them, and manage their cache."""
