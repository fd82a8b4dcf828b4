"""The commands, as a person types them: options, output, exit codes."""
