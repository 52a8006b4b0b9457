"""What a broker knows besides messages: topics, groups, offsets, their versions, and the JSON dialect in which
they are kept in files and sent over the wire. Values and files; no sockets, no store."""
