"""The `ignis` command. It converts words to calls and results to text; decisions lie below."""
