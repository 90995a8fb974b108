"""The HTML page at `/`: rendered from the documents of the API, and the files that it loads."""
