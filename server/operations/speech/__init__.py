"""Speech to text: windows of a recording and the text of a transcript."""
