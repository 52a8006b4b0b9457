"""The command line: reads options, builds what they ask for, shows the outcome. Nothing imports this room."""
