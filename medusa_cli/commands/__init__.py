"""One module per command. They stay light to import: engine, templates and rich come in when a command runs."""
