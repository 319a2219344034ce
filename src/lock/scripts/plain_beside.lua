-- What the names beside the lock end with, and how a key with such a name is asked for: an ACL may forbid it.
local beside, ask = KEYS[1], redis.pcall
