"""Rules of the Moses toolkit to split a text into words and to join words to a text (Koehn et al. 2007, ACL P07-2045).

| file           | content                                                          |
|----------------|------------------------------------------------------------------|
| `located_text` | a text that rules rewrite, with the place of each character      |
| `tables`       | characters and abbreviations of a language, from `sacremoses`    |
| `punctuation`  | rules that make punctuation uniform                              |
| `words`        | rules that separate words                                        |
| `join`         | words to text, one word at a time                                |
"""
