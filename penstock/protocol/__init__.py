"""The wire protocol as plain data: codes, commands, headers and bodies. No sockets, no state."""
