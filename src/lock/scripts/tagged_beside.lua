-- What the names beside the lock end with: what follows 'lockgate:fence:', a tag of the lock's slot and its key. While
-- the slot is moved, a key with such a name may be on another shard already: the script then fails, and does nothing
-- without that key.
local beside, ask = string.sub(KEYS[2], 16), redis.call
