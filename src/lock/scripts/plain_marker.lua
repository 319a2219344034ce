-- The key of this node's marker.
local place = 'lockgate:deployment'
