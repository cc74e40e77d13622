-- Redis runs Lua 5.1 and lets a script see only part of it.
std = "lua51"
read_globals = { "redis", "cjson", "cmsgpack", "bit", "struct", "KEYS", "ARGV" }
not_globals = { "debug", "dofile", "io", "loadfile", "module", "package", "print", "require" }
max_line_length = 100
