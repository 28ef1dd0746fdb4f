"""Document files (office, web, subtitles...): read their texts to translate, and write them back with translations."""
