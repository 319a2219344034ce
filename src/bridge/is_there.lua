-- Selects a database. Returns whether there is one of this number: one that there is not has no keys.
local function is_there(database)
  local selected = redis.pcall('select', database)
  if type(selected) ~= 'table' or not selected.err then
    return true
  end
  -- Where the user may not SELECT, no key would be there.
  for _, reason in ipairs({'out of range', 'invalid DB index', 'cluster mode'}) do
    if string.find(selected.err, reason, 1, true) then
      return false
    end
  end
  error(selected.err)
end
