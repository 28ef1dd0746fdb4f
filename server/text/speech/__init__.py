"""Text of speech recognition: special tokens, settings, words and subtitles."""
