-- The key of this node's marker is the last argument, behind the marker; empty: no marker is compared, and it does not
-- matter what is read.
local place = table.remove(ARGV)
if place == '' then
  place = KEYS[2]
end
