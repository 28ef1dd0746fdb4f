"""Speech to text: read a recording, decode its windows, and assemble the transcript."""
